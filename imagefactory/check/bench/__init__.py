"""Measures what users of an image get: speed, latency, acceptance of drafts, starts. Above `smoke`."""
