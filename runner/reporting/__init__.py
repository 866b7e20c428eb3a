"""Figures of a run: from its ledger and the samples taken while it went on."""
