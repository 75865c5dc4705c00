"""Says in plain words what is wrong in a file that people write, where YAML and pydantic say it in theirs.

Images ship the readers of such files. So their errors are reworded here: no word of ours changes an image.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import yaml
from pydantic import ValidationError

from imagefactory.errors import ConfigError, FactoryError, Location, ModError
from imagefactory.store.paths import read_text

_WORDS: Final = {
    r"Field required": "it is missing",
    r"Extra inputs are not permitted": "there is no such key",
    r"String should have at least 1 character\b": "it is empty",
    r"String should have at least (\d+) characters": r"it is too short: say it in \1 characters or more",
    r"String should have at most (\d+) characters": r"it is too long: say it in up to \1 characters",
    r"String should match pattern '(.*)'": r"it is not written as `\1` asks",
    r"\w+ should have at least (\d+) items? after validation, not (\d+)": r"it needs \1 or more, and has \2",
    r"\w+ should have at most (\d+) items? after validation, not (\d+)": r"it may have up to \1, and has \2",
    r"Input should be a valid string": "it has to be text; put it in quotes",
    r"Input should be a valid integer[^.]*": "it has to be a whole number",
    r"Input should be a valid number[^.]*": "it has to be a number",
    r"Input should be a valid boolean[^.]*": "it has to be true or false",
    r"Input should be a valid (?:list|tuple|array)": "it has to be a list",
    r"Input should be (?:a valid dictionary|a valid mapping|an object)[^.]*": "it has to be keys with values",
    r"Input should be greater than or equal to (\S+)": r"it has to be \1 or more",
    r"Input should be less than or equal to (\S+)": r"it has to be \1 or less",
    r"Input should be ": "it has to be ",
    r"Value error, ": "",
}
"""How pydantic begins, or says it all, and what we say instead."""


def in_words(complaint: str) -> str:
    """Reword what pydantic says about a value."""
    for theirs, ours in _WORDS.items():
        complaint = re.sub(theirs, ours, complaint)
    return complaint


def first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {in_words(first['msg'])}"


@contextmanager
def plainly(root: Path) -> Iterator[None]:
    """Reword errors about files below a folder; a brace that is not closed is on the line where it opens."""
    try:
        yield
    except (ConfigError, ModError) as error:
        where, why = error.where, in_words(error.why)
        if error.name == "bad-yaml" and "flow" in why:
            file = where.rpartition(":")[0]
            opened, noticed = _unclosed(root / file) or (0, 0)
            if opened:
                where = str(Location(file=file, line=opened))
                why = f"What opens on this line with {{ or [ is not closed before line {noticed}, or lacks a comma."
        raise type(error)(error.name, error.what, where=where, why=why, fix=error.fix) from None


def _unclosed(path: Path) -> tuple[int, int] | None:
    """Return the lines where an unfinished { or [ opens, and where YAML notices."""
    try:
        for _ in yaml.parse(read_text(path), Loader=yaml.SafeLoader):
            """Read on: only the parser in Python knows where a mapping opened."""
    except yaml.MarkedYAMLError as error:
        if error.context_mark and error.problem_mark and "flow" in (error.context or ""):
            return error.context_mark.line + 1, error.problem_mark.line + 1
    except (OSError, ValueError, FactoryError, yaml.YAMLError):
        pass
    return None
