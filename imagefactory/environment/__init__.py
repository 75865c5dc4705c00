"""The factory's own Python environment; uses only the standard library, to create it. Above `errors`."""
