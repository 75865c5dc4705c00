"""Reads the flags of servers from their sources, without importing them."""
