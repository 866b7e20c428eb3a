"""Benchmarks: `python -m trtb.tools.bench NAME [--quick] [--json FILE]`."""
