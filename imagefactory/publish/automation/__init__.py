"""What the workflows in .github do: each step is a function here, and a command that a person can run."""
