"""Turns other people's scripts and diffs into mods; scripts run in the Debian of `compile`."""
