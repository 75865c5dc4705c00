"""Turns other people's scripts, diffs and files into mods. Above `compile`, whose Debian the scripts run in."""
