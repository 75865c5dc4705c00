"""What ships into every image: the code that applies mods when a container starts.

The library imports it; it imports nothing of the library. An edit here changes the digest of every image.
"""
