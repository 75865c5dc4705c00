"""The commands: each reads its options, calls a function of a lower room and shows the result. Above `publish`."""
