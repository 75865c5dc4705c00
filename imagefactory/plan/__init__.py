"""Plans images: their layers, keys, settings and digests. Above `resolve`."""
