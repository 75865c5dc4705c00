"""The bytes of images: layers, layouts, manifests, and the registries that keep them. Above `store`."""
