"""Generates parts of README.md and docs/ for `./inv docs`."""
