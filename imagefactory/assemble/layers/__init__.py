"""The entries of each kind of layer."""
