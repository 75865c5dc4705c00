"""What goes into each kind of layer: entries, not bytes."""
