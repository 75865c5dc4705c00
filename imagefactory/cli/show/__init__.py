"""Shows values on a terminal, in Markdown and in the documentation."""
