"""Guided decoding: what a client may ask for, translated for the engine or refused by name."""
