"""Publishing: an image is uploaded, tested by its digest, and only then named by tags."""
