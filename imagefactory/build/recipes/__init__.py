"""Recipes of other launchers: reading theirs, and writing registries of ours."""
