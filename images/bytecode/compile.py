"""Compiles Python files to bytecode that Python runs without looking at the source.

    python3 compile.py ROOT LIST                 puts bytecode beside its source
    python3 compile.py SOURCES LIST RESULTS      makes no file but RESULTS

LIST names paths below ROOT, one per line, or patterns, whose `*` also matches slashes. In the second form, SOURCES is
one file that holds all sources, and LIST has the offset and the size of each before its path; the line that is printed
has those of its bytecode in RESULTS.

A path that does not exist or does not compile gets no bytecode. Bytecode names its source as `/path`, which is where an
image has it. The result depends on the source and the version of Python alone: not on the machine, the order of files,
or what else this process compiled.
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
    held, depends_on_company = _reachable(code)
    if depends_on_company:
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
        held += _reachable(code)[0]
    data = marshal.dumps(code)
    del held
    return MAGIC_NUMBER + UNCHECKED_HASH + source_hash(source) + data


def _reachable(code: CodeType) -> tuple[list[object], bool]:
    """List what a code object consists of; also return whether it matters which strings this process knew before.

    The second time, it knows them all. A new string becomes the one that all later code uses. One that was known takes
    the place of the new one in names, but not in the constants that hold the new one: names of nested classes, and
    sets.
    """
    found: list[object] = [code]
    codes, constants = [code], [code.co_consts]
    has_set = False
    for values in constants:  # these lists grow while they are walked
        found.append(values)
        found += values
        for value in values:
            kind = type(value)
            if kind is CodeType:
                codes.append(value)
                constants.append(value.co_consts)
            elif kind is tuple or kind is frozenset:
                constants.append(value)
                has_set = has_set or kind is frozenset
    for item in codes:
        for names in (item.co_names, item.co_varnames, item.co_freevars, item.co_cellvars):
            found.append(names)
            found += names
        found += (item.co_filename, item.co_name, item.co_qualname, item.co_linetable, item.co_exceptiontable)
    nested = {item.co_qualname for item in codes if "." in item.co_qualname}
    return found, has_set or any(not nested.isdisjoint(_texts(item.co_consts)) for item in codes)


def _texts(values: tuple[object, ...]) -> list[object]:
    return [value for value in values if type(value) is str]


def _matching(root: str, pattern: str) -> list[str]:
    from fnmatch import fnmatchcase  # noqa: PLC0415 - Debian's smallest Python does without

    top = os.path.join(root, os.path.dirname(pattern.partition("*")[0]))
    files = (os.path.join(folder, name) for folder, _, names in os.walk(top) for name in names)
    return [path for file in files if fnmatchcase(path := os.path.relpath(file, root), pattern)]


def _listed(names: str) -> list[str]:
    with open(names, encoding="utf-8") as lines:
        return lines.read().splitlines()


def compile_packed(sources: str, names: str, results: str) -> None:
    """Compile the parts of a file; print offset, size, and the paths of source and bytecode of each."""
    with open(sources, "rb") as source, open(results, "wb") as result:
        for line in _listed(names):
            offset, size, path = line.split(" ", 2)
            source.seek(int(offset))
            try:
                data = bytecode(source.read(int(size)), f"/{path}")
            except (SyntaxError, ValueError):
                continue
            sys.stdout.write(
                f"{result.tell()} {len(data)} {path} {cache_from_source(path, optimization='')}\n"
            )
            result.write(data)


def main(root: str, names: str) -> None:
    """Compile the files of a list; print the path of each and of its bytecode."""
    found = {path for name in _listed(names) for path in (_matching(root, name) if "*" in name else [name])}
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
    words = sys.argv[1:]
    (compile_packed if words[2:] else main)(*words)
