"""Whether two images of a model give the same answers."""
