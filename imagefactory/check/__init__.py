"""Examines images: smoke tests, and benchmarks."""
