"""The bytes of images: layers, layouts and manifests, and the registries that store them. Above `store`."""
