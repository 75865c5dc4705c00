"""Makes locks from the matrix: wheels, Debian packages, model revisions, kernels. Above `mods`."""
