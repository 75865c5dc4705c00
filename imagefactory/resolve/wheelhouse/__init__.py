"""The wheelhouse: compiled wheels, named by what they were compiled from, kept here and in the registry."""
