"""What to build: matrix.yaml, its cells, and how a user names them. Above `oci`."""
