"""How an image is served: one schema, and everything that is rendered from it."""
