"""The catalog as a static site: made from the checkout and the records of a registry, and from nothing else."""
