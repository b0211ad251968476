"""Measurements, side by side in one run: ``python -m benchmarks``. Never a test's pass mark."""
