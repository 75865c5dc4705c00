"""The commands: each parses, calls one function of a room below, and shows the result. Above `publish`."""
