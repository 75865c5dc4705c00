"""Engines: ways to turn a plan into an image."""
