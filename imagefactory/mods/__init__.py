"""Choose mods for a cell, check them on every vLLM version, and write new ones. Above `locks`."""
