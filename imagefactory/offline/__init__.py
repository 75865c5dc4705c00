"""The factory on a machine without a network: one command packs what it needs, one script unpacks it there."""
