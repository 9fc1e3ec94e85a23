"""Measurements, as ratios within one run: ``python -m benchmarks --json FILE``."""
