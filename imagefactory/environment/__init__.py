"""The factory's own Python environment, made before anything is installed: standard library only. Above `errors`."""
