"""Reads the GPU code in libraries, and takes out what a chip cannot load."""
