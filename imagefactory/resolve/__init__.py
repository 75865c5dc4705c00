"""From the matrix to locks: wheels, Debian packages, model revisions, kernels, compiled wheels. Above `mods`."""
