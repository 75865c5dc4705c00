"""What an image will be: its layers, their keys, how it is served, and the digest that comes out. Above `resolve`."""
