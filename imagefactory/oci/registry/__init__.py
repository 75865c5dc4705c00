"""Container registries: push and pull images and artifacts, reliably, over the OCI distribution protocol."""
