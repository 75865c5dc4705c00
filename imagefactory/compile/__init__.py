"""Kernels that no wheel ships: the toolchain, the sources, and the container that compiles them. Above `build`."""
