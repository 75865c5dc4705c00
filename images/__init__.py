"""What goes into images, and what they are made with."""
