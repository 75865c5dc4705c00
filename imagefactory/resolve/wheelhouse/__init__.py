"""The wheelhouse: compiled wheels, identified by their inputs, kept locally and in the registry."""
