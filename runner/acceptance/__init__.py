"""The acceptance kit: the whole road on this host, step by step, with its evidence."""
