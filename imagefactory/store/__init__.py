"""The local cache and how files get into it: indexes, downloads, digests. Above `environment`."""
