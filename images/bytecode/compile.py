"""Compiles Python files to bytecode that Python runs without looking at the source.

    python3 compile.py ROOT LIST

LIST names paths below ROOT, one per line, or patterns, whose `*` also matches slashes. A path that does not exist or
does not compile gets no bytecode. Bytecode names its source as `/path`, which is where an image has it. The result
depends on the source and the version of Python alone: not on the machine, the order of files, or what else this process
compiled.
"""

from __future__ import annotations

import marshal
import os
import sys
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from types import CodeType

UNCHECKED_HASH = (1).to_bytes(4, "little")
"""PEP 552: identified by the hash of the source, which Python does not compare."""
MODE, TIME = 0o644, int(os.environ.get("SOURCE_DATE_EPOCH", "315619200"))


def bytecode(source: bytes, path: str) -> bytes:
    """Compile a file as an import would."""
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    # marshal marks an object that has more than one reference, as this process happens to have to a string or number.
    # With a second reference to everything, the marks are always the same.
    held = _reachable(code)
    if _depends_on_company(held):
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
        held += _reachable(code)
    data = marshal.dumps(code)
    del held
    return MAGIC_NUMBER + UNCHECKED_HASH + source_hash(source) + data


def _depends_on_company(held: list[object]) -> bool:
    """Return whether it matters if this process knew strings of the code before. The second time, it always did.

    A new string becomes the one that all later code uses. One that was known takes the place of the new one in names,
    but not in the constants that hold the new one: names of nested classes, and sets.
    """
    codes = [item for item in held if isinstance(item, CodeType)]
    nested = {code.co_qualname for code in codes if "." in code.co_qualname}
    named = (item for code in codes for item in code.co_consts if isinstance(item, str))
    return any(isinstance(item, frozenset) for item in held) or not nested.isdisjoint(named)


def _reachable(code: CodeType) -> list[object]:
    found: list[object] = [code]
    for item in found:  # grows while it is walked
        if isinstance(item, CodeType):
            found += (item.co_consts, item.co_names, item.co_varnames, item.co_freevars, item.co_cellvars)
            found += (item.co_filename, item.co_name, item.co_qualname)
            found += (item.co_linetable, item.co_exceptiontable)
        elif isinstance(item, tuple | frozenset):
            found += item
    return found


def _matching(root: str, pattern: str) -> list[str]:
    from fnmatch import fnmatchcase  # noqa: PLC0415 - Debian's smallest Python does without

    top = os.path.join(root, os.path.dirname(pattern.partition("*")[0]))
    files = (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names)
    return [path for file in files if fnmatchcase(path := os.path.relpath(file, root), pattern)]


def main(root: str, names: str) -> None:
    """Compile the files of a list; print the path of each and of its bytecode."""
    with open(names, encoding="utf-8") as lines:
        listed = lines.read().splitlines()
    found = {path for name in listed for path in (_matching(root, name) if "*" in name else [name])}
    for path in sorted(found):
        if os.path.islink(os.path.join(root, path)):
            continue  # another path, perhaps of another package
        try:
            with open(os.path.join(root, path), "rb") as file:
                data = bytecode(file.read(), f"/{path}")
        except (FileNotFoundError, SyntaxError, ValueError):
            continue
        target = cache_from_source(path, optimization="")
        place = os.path.join(root, target)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as file:
            file.write(data)
        os.chmod(place, MODE)
        os.utime(place, (TIME, TIME))
        sys.stdout.write(f"{path} {target}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
