"""How values look: on a terminal, in Markdown, in the documentation."""
