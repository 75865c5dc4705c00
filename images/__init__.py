"""Files that go into images, and the programs that build them."""
