"""What to build: matrix.yaml, its cells, and the targets that select them. Above `oci`."""
