"""Starts an image: what `invoke run` prints or runs."""
