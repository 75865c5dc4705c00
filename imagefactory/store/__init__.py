"""The cache on this machine and how files get into it: indexes, downloads, digests. Above `environment`."""
