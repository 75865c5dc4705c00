"""The serve program: reads the settings, checks the machine and becomes the server.

It runs before every start, so it uses only those parts of the standard library that import quickly. The settings and
their defaults in this image come from settings.json.
"""
