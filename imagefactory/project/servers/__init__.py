"""The servers that images run: what the factory has to know about each, in one place per server. Above `matrix`."""
