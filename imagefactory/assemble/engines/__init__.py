"""Engines, which turn plans into images."""
