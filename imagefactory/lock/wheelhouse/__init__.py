"""The wheelhouse keeps compiled wheels by their inputs, locally and in the registry."""
