"""Commands read their options, call a function of a lower room, and show the result. Above `publish`."""
