"""Registries of recipes for other launchers."""
