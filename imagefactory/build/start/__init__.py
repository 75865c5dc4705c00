"""Starting an image: what `invoke run` prints, composes, exports or runs."""
