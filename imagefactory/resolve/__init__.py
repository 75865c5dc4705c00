"""Turning what the matrix asks for into exact files."""
