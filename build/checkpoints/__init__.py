"""Checkpoints as they come: where from, what a folder or file holds, and how one form becomes another."""
