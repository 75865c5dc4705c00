"""Tables in Markdown, and their places in a document."""

from collections.abc import Iterable


def markdown_table(rows: Iterable[Iterable[str]], *columns: str) -> str:
    heading, *lines = [f"| {' | '.join(cells)} |" for cells in (columns, *rows)]
    return "\n".join([heading, f"{'|---' * len(columns)}|", *lines])


def replace_between(text: str, name: str, table: str) -> str:
    """Replace the text between two marks of a document with a table."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, opened, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"the document has no {begin} … {end}")
    return f"{head}{begin}\n{table.strip()}\n{end}{tail}"
