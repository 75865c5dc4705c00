"""The smoke levels: pytest modules that `./inv smoke` runs on an image."""
