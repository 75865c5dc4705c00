"""Where an image comes from and what is in it: SBOM, licences, provenance, signatures, and checking them."""
