"""Mods of this checkout: choosing them for a cell, trying them on every version, writing new ones. Above `locks`."""
