"""What runs in the container: read the settings, look at the machine, become `vllm serve`.

Only the standard library, and only the cheap parts of it: this runs before every start. Which settings exist, and
their defaults in this image, is data (settings.json), written by the factory from the one schema.
"""
