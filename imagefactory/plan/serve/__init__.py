"""The settings of images, and everything that is rendered from them."""
