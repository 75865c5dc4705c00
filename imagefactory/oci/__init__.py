"""The container image formats: tar, gzip, layers, images and layouts."""
