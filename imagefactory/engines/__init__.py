"""Ways to turn a plan into an image."""
