"""The engine's Triton model repository, and the wire contract both ends of it read."""
