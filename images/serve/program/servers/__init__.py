"""The servers that an image may have. What is particular to one lives in its module, behind a `Server`."""
