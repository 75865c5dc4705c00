"""Smoke tests: what an image has to pass before it gets a tag. Above `compile`."""
