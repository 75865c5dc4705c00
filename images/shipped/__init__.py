"""The code that ships in every image, to apply mods when a container starts.

The library imports it; it imports nothing from the library. An edit here changes the digest of every image.
"""
