"""Sweeps: NVIDIA's perf_analyzer against a deployed engine, point by point."""
