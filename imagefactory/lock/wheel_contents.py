"""Lists the paths that wheels install, leaves some out, and settles conflicts between wheels over the others.

Only the zip directory of a wheel is read, by HTTP range requests instead of a full download.
"""

import configparser
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from itertools import combinations
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import requests
from installer.utils import parse_entrypoints
from packaging.utils import parse_wheel_filename

from imagefactory.errors import ConfigError, LockError, NetworkError
from imagefactory.project.bases import LeaveOut
from imagefactory.project.locks.files import LeftOutFiles, LeftOutWheel, LockedWheel, WheelLock
from imagefactory.project.matrix import Conflict, load_matrix
from imagefactory.store.atomic import writing
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.http import RangeFile, RangesRefusedError
from imagefactory.store.index_config import redact
from imagefactory.store.indexes import WheelLocation
from images.shipped.yamlfile import read_yaml

FACTS = "wheel-contents-1"  # a new number when records mean something else: old ones are then ignored
# What zipfile raises for broken, encrypted and unsupported members, and installer for entry points.
_DAMAGED = (
    *(BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError),
    *(zlib.error, configparser.Error, AssertionError),
)

_GONE = {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}


@dataclass(frozen=True)
class WheelContents:
    """The paths that a wheel installs, and its packed and unpacked size."""

    size: int
    unpacked: int
    paths: dict[str, str]  # path below the environment's root -> "crc32:size", or the entry point of a script


def wheel_contents(
    location: WheelLocation, sha256: Sha256, python: str, store: Store, session: requests.Session
) -> WheelContents:
    contents = recorded_contents(sha256, python=python, store=store)
    if contents is None:
        contents = _read(location, python, session)
        with writing(_record(sha256, python, store)) as file:
            file.write(json.dumps(asdict(contents), sort_keys=True).encode())
    return contents


def recorded_contents(sha256: Sha256, *, python: str, store: Store) -> WheelContents | None:
    """Return what a wheel installs if this machine has seen it; a damaged record counts as none."""
    with suppress(FileNotFoundError, TypeError, ValueError, RecursionError):
        return WheelContents(**json.loads(_record(sha256, python, store).read_text("utf-8")))
    return None


def _record(sha256: Sha256, python: str, store: Store) -> Path:
    return store.facts(f"{FACTS}-py{python}", sha256)


def installed_path(member: str, *, distribution: str, python: str) -> str:
    """Return where a file of a wheel is installed, relative to the environment's root (PEP 427 `.data` folders)."""
    roots = scheme_roots(distribution, python)
    top, _, rest = member.partition("/")
    if not top.endswith(".data") or not rest:
        return f"{roots['purelib']}/{member}"
    scheme, _, below = rest.partition("/")
    return f"{roots.get(scheme, roots['purelib'])}/{below}".lstrip("/")


def scheme_roots(distribution: str, python: str) -> dict[str, str]:
    """Return where the schemes of a wheel are installed, below the environment's root."""
    site, headers = f"lib/python{python}/site-packages", f"include/site/python{python}/{distribution}"
    return {"purelib": site, "platlib": site, "scripts": "bin", "headers": headers, "data": ""}


def _read(location: WheelLocation, python: str, session: requests.Session) -> WheelContents:
    try:
        source = location.local or RangeFile(location.url, session)
        size = source.size if isinstance(source, RangeFile) else source.stat().st_size
        with ZipFile(source) as archive:
            return _describe(archive, location.file, size, python)
    except (requests.RequestException, OSError, *_DAMAGED) as error:
        answer = error.response if isinstance(error, requests.HTTPError) else None
        gone = answer is not None and answer.status_code in _GONE
        # A release with such a file cannot be locked, while a network that fails says nothing about it.
        bad = gone or not isinstance(error, requests.RequestException | OSError)
        fix = "Check the network and run the command again."
        if bad:
            fix = "Choose another version or another index: this one lists a file that is damaged or not there."
        elif isinstance(error, RangesRefusedError):
            fix = "Use an index that supports range requests, or put the wheel into a PIP_FIND_LINKS folder."
        raise (LockError if bad else NetworkError)(
            "unreadable-wheel" if bad else "download-failed",
            f"The directory of {location.file} cannot be read.",
            where=redact(location.url),
            why=f"{type(error).__name__}: {redact(str(error))}",
            fix=fix,
        ) from None


def _describe(archive: ZipFile, file: str, size: int, python: str) -> WheelContents:
    distribution = parse_wheel_filename(file)[0]
    paths: dict[str, str] = {}
    unpacked = 0
    for info in archive.infolist():
        if info.is_dir():
            continue
        unpacked += info.file_size
        path = installed_path(info.filename, distribution=distribution, python=python)
        paths[path] = f"{info.CRC:08x}:{info.file_size}"
        if info.filename.endswith(".dist-info/entry_points.txt"):
            scripts = parse_entrypoints(archive.read(info).decode("utf-8"))
            paths |= {f"bin/{name}": f"{module}:{function}" for name, module, function, _ in scripts}
    return WheelContents(size=size, unpacked=unpacked, paths=paths)


def settle(wheels: Sequence[tuple[LockedWheel, WheelContents]], conflicts: Sequence[Conflict]) -> list[LockedWheel]:
    """Record for every wheel the paths that it yields to another one; raise an error for undecided conflicts."""
    owners: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for wheel, contents in wheels:
        for path, content in contents.paths.items():
            owners[path].append((wheel.name, content))
    winner = {frozenset(conflict.between): conflict.wins for conflict in conflicts}
    given_up: dict[str, set[str]] = defaultdict(set)
    unsettled: dict[frozenset[str], list[str]] = defaultdict(list)
    for path, claims in owners.items():
        for (first, content), (second, second_content) in combinations(claims, 2):
            pair = frozenset((first, second))
            if content == second_content:
                continue  # the same bytes from both: nothing to decide
            if pair in winner:
                given_up[second if winner[pair] == first else first].add(path)
            else:
                unsettled[pair].append(path)
    if unsettled:
        pair, paths = min(unsettled.items(), key=lambda conflict: sorted(conflict[0]))
        first, second = sorted(pair)
        more = "" if len(unsettled) == 1 else f" {len(unsettled) - 1} more pairs conflict."
        raise LockError(
            "path-conflict",
            f"{first} and {second} both install {min(paths)}, with different content.",
            where="matrix.yaml, `conflicts`",
            why=f"They share {len(paths)} such path{'s' if len(paths) > 1 else ''}; "
            f"the order of installation would decide which one the image gets.{more}",
            fix=f"Add an entry to `conflicts`: between: [{first}, {second}], wins: one of them, and the reason.",
        )
    return [
        wheel.model_copy(update={"without": tuple(sorted(given_up[wheel.name]))})
        for wheel, _ in sorted(wheels, key=lambda entry: entry[0].name)
    ]


ReadWheel = tuple[LockedWheel, WheelContents]


def leave_out(
    wheels: Sequence[ReadWheel], entries: Iterable[LeaveOut], matrix: Path
) -> tuple[list[ReadWheel], tuple[LeftOutWheel, ...]]:
    """Return the wheels to install, with what is left out of them, and the wheels that are left out.

    An entry is an error if a pattern matches no file of its distribution, or if `matrix` itself asks for it.
    """
    names = {wheel.name for wheel, _ in wheels}
    entries = [entry for entry in entries if entry.beside is None or entry.beside in names]
    whole = {entry.distribution: entry for entry in entries if not entry.files}
    for wheel, _ in wheels:
        if wheel.name in whole and "matrix.yaml" in wheel.needed_by:
            why = f"{wheel.name} is not there because another distribution requires it: matrix.yaml names it"
            raise _cannot(matrix, whole[wheel.name], "distribution", why)
    reasons = _with_requirements({name: whole[name].reason for name in names if name in whole}, wheels)
    kept = [_without_files(read_wheel, entries, matrix) for read_wheel in wheels if read_wheel[0].name not in reasons]
    left_out = [LeftOutWheel(**dict(wheel), reason=reasons[wheel.name]) for wheel, _ in wheels if wheel.name in reasons]
    return kept, tuple(sorted(left_out, key=lambda wheel: wheel.name))


def refuse_unmatched(matrix: Path, locks: Iterable[WheelLock]) -> None:
    """Raise an error if an entry of matrix.yaml has left nothing out of any of these locks."""
    left_out: set[tuple[str, str]] = set()
    for lock in locks:
        left_out |= {(wheel.name, wheel.reason) for wheel in lock.left_out}
        left_out |= {(wheel.name, files.reason) for wheel in lock.wheels for files in wheel.left_out}
    for entry in load_matrix(matrix).leave_out:
        if (entry.distribution, entry.reason) not in left_out:
            raise _cannot(matrix, entry, "distribution", "It leaves nothing out of any lock")


def _with_requirements(reasons: dict[str, str], wheels: Sequence[ReadWheel]) -> dict[str, str]:
    """Add the distributions that nothing but left ones requires, each with its reason."""
    for wheel, _ in wheels:
        if wheel.name not in reasons and wheel.needed_by and reasons.keys() >= {*wheel.needed_by}:
            verb = "needs" if len(wheel.needed_by) == 1 else "need"
            reason = f"only {' and '.join(wheel.needed_by)} {verb} it"
            return _with_requirements({**reasons, wheel.name: reason}, wheels)
    return reasons


def _without_files(read_wheel: ReadWheel, entries: Iterable[LeaveOut], matrix: Path) -> ReadWheel:
    wheel, contents = read_wheel
    paths = dict(contents.paths)
    groups: list[LeftOutFiles] = []
    for entry in entries:
        if entry.distribution != wheel.name or not entry.files:
            continue
        gone: dict[str, str] = {}
        for number, pattern in enumerate(entry.files):
            matched = list(entry.matching(pattern, contents.paths))
            if not matched:
                raise _cannot(matrix, entry, "files", f"{wheel.file} has no file {pattern}", number)
            gone |= {path: paths.pop(path) for path in matched if path in paths}
        if gone:
            # The script of an entry point has no size, and next to no content.
            sizes = (content.partition(":")[2] for content in gone.values())
            size = sum(int(size) for size in sizes if size.isdecimal())
            groups.append(LeftOutFiles(reason=entry.reason, unpacked=size, paths=tuple(sorted(gone))))
    return wheel.model_copy(update={"left_out": tuple(groups)}), replace(contents, paths=paths)


def _cannot(matrix: Path, entry: LeaveOut, key: str, why: str, number: int = 0) -> ConfigError:
    index = load_matrix(matrix).leave_out.index(entry)
    return ConfigError(
        "bad-leave-out",
        f"{entry.distribution} cannot be left out as matrix.yaml says.",
        where=read_yaml(matrix).location(("leave_out", index, key, number)),
        why=f"{why}.",
        fix="Correct or remove the entry, or limit it with `archs`, `vllm` or `beside`; then run `./inv lock`.",
    )
