"""Makes wheel locks: uv resolves the versions, the indexes provide the files."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from imagefactory.errors import FactoryError, LockError, NetworkError
from imagefactory.lock.wheel_contents import WheelContents, leave_out, settle, wheel_contents
from imagefactory.lock.wheelhouse.keep import MACHINES, KeptWheel, read_graft
from imagefactory.project.bases import Base, LeaveOut
from imagefactory.project.cells import Cell, KernelOrigin
from imagefactory.project.locks.files import LockedWheel, MadeFrom, WheelLock
from imagefactory.project.matrix import Arch, Conflict
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, file_sha256
from imagefactory.store.http import new_session
from imagefactory.store.index_config import IndexConfig, environment_for_uv, redact
from imagefactory.store.indexes import Indexes, WheelLocation, local_label, local_wheels, reachable
from imagefactory.store.progress import Say, count

PARALLEL = 16  # wheels whose directories are read at once; that is mostly waiting for the network
_OLDEST_GLIBC = {"aarch64": 17, "x86_64": 5}  # minor versions: manylinux1 (PEP 513), on Arm manylinux2014 (PEP 599)
_UV_KNOWS = 40  # the newest minor version of glibc that uv knows; no wheels exist for newer ones yet
# The names of tags before PEP 600, by the minor version of glibc.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
_FLASHINFER = "flashinfer-python"
_DECIDING = re.compile(
    r"UV_(DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|CONSTRAINT|BUILD_CONSTRAINT|OVERRIDE"
    r"|EXCLUDE|EXCLUDE_NEWER|PRERELEASE|RESOLUTION|FORK_STRATEGY|NO_BINARY|TORCH_BACKEND|CONFIG_FILE)"
)
"""The variables that would change uv's result."""
_CHOOSE_ANOTHER = "Choose another version or base in matrix.yaml, or override there what can be done without."
_CHECK_INDEXES = "Check PIP_INDEX_URL, UV_INDEX_URL and PIP_FIND_LINKS; `./inv doctor` shows what is used."
Adopt = Callable[[str, str], KeptWheel]  # returns the compiled wheel of a package and version, or fails


@dataclass(frozen=True, kw_only=True)
class WheelRequest:
    """Everything that determines a wheel lock."""

    cell: Cell  # the version, the arch and the platform; the model does not matter
    distribution: str  # that of the server
    release: str
    arch: Arch
    base: Base
    conflicts: Sequence[Conflict]
    made_from: MadeFrom
    compiled: tuple[str, ...] = ()  # packages whose wheels we compile ourselves
    kernels: KernelOrigin = "upstream"
    leave_out: Sequence[LeaveOut] = ()  # what applies of the matrix's
    overrides: Sequence[str] = ()  # requirements that replace those of every package
    extras: Sequence[str] = ()  # extras of the server's distribution
    matrix: Path = Path("matrix.yaml")

    def __str__(self) -> str:
        return f"{self.cell.runs} on {self.cell.arch} ({self.cell.platform})"


class Pin(NamedTuple):
    """A version that uv chose, and what requires it."""

    name: str
    version: str
    needed_by: tuple[str, ...]


def lock_wheels(
    request: WheelRequest,
    *,
    config: IndexConfig,
    store: Store,
    adopt: Adopt | None = None,
    keep: Sequence[LockedWheel] = (),
    say: Say,
) -> WheelLock:
    """Resolve versions, find every file, and settle path conflicts; only zip directories are downloaded."""
    # An extra index that cannot be reached is skipped: a local folder may have the same wheels.
    usable = {url: reachable(url) for url in request.arch.indexes}
    for url in (url for url, answers in usable.items() if not answers):
        say(f"{redact(url)} does not answer; continuing without it")
    config = config.with_extra([url for url, answers in usable.items() if answers])
    pins, compiled = _resolve_compiled(request, config, keep, adopt)
    say(f"{count(len(pins), 'package')}; reading their directories")
    indexes = Indexes(config)
    tags = tag_ranks(request.base.python, request.base.glibc, request.cell.platform)

    with new_session() as session, ThreadPoolExecutor(PARALLEL) as pool:

        def look_up(pin: Pin) -> tuple[LockedWheel, WheelContents]:
            if ours := compiled.get(pin.name):
                url = ours.path.absolute().as_uri()
                location = WheelLocation(file=ours.filename, url=url, sha256=ours.sha256)
            else:
                location = choose_file(indexes.files(pin.name), pin, tags, request)
            unhashed = location.local if location.sha256 is None else None
            digest = file_sha256(unhashed) if unhashed else Sha256(str(location.sha256))
            contents = wheel_contents(location, digest, request.base.python, store, session)
            wheel = LockedWheel(
                **pin._asdict(),
                file=location.file,
                sha256=digest,
                size=contents.size,
                unpacked=contents.unpacked,
                compiled=ours.key if ours else None,
                graft=read_graft(ours.path, ours.inputs) if ours and ours.inputs.kind == "graft" else None,
            )
            return wheel, contents

        wheels = list(pool.map(look_up, pins))
    kept, left_out = leave_out(wheels, request.leave_out, request.matrix)
    return WheelLock(
        made_from=request.made_from,
        version=request.cell.version,
        arch=request.cell.arch,
        platform=request.cell.platform,
        python=request.base.python,
        kernels=request.kernels,
        wheels=tuple(settle(kept, request.conflicts)),
        left_out=left_out,
    )


def _resolve_compiled(
    request: WheelRequest, config: IndexConfig, keep: Sequence[LockedWheel], adopt: Adopt | None
) -> tuple[list[Pin], dict[str, KeptWheel]]:
    """Resolve with the compiled wheels in place of published ones.

    vLLM's version is known; other packages get the version that vLLM requires, and those that belong to FlashInfer get
    FlashInfer's.
    """
    compiled: dict[str, KeptWheel] = {}
    if adopt is not None and "vllm" in request.compiled:
        compiled["vllm"] = adopt("vllm", request.release)
    pins = _resolve(request, config, keep, compiled)
    others = [name for name in request.compiled if name != "vllm"]
    if adopt is not None and others:
        versions = {pin.name: pin.version for pin in pins}
        usual = versions.get(_FLASHINFER, request.release)
        compiled |= {name: adopt(name, versions.get(name, usual)) for name in others}
        pins = _resolve(request, config, keep, compiled)
    return pins, compiled


def _resolve(
    request: WheelRequest, config: IndexConfig, keep: Iterable[LockedWheel], compiled: Mapping[str, KeptWheel]
) -> list[Pin]:
    """Let uv resolve versions for the image's Python and platform rather than this machine's."""
    from uv import find_uv_bin  # noqa: PLC0415 - only locking needs it

    with tempfile.TemporaryDirectory() as folder:
        inputs, overrides, pins = (Path(folder, name) for name in ("in.txt", "overrides.txt", "pins.txt"))
        extras = f"[{','.join(request.extras)}]" if request.extras else ""
        server = [] if "vllm" in compiled else [f"{request.distribution}{extras}=={request.release}"]
        ours = [f"{name} @ {wheel.path.absolute().as_uri()}" for name, wheel in compiled.items()]
        requirements = [*server, *ours, *request.arch.also]
        inputs.write_text("".join(f"{requirement}\n" for requirement in requirements))
        # Overriding a package with a marker that is never true makes uv leave it out, with its dependencies.
        left_out = [f"{name} ; python_version < '3'" for name in request.arch.without]
        overrides.write_text("".join(f"{line}\n" for line in (*left_out, *request.overrides)))
        kept = [f"{wheel.name}=={wheel.version}\n" for wheel in keep if wheel.name not in compiled]
        # uv prefers the versions that its output file has already.
        pins.write_text("".join(kept))
        glibc = min(int(request.base.glibc.split(".")[1]), _UV_KNOWS)
        # Wheels only: to learn what an sdist requires, uv would run its code on this machine.
        command: list[str] = [
            find_uv_bin(), "pip", "compile", str(inputs), "--output-file", str(pins),
            "--only-binary", ":all:", "--no-header", "--no-config",
            *(["--override", str(overrides)] if overrides.stat().st_size else []),
            "--python-version", request.base.python,
            "--python-platform", f"{MACHINES[request.cell.platform][0]}-manylinux_2_{glibc}",
            "--annotation-style", "line", "--index-strategy", "unsafe-best-match", "--color", "never",
            *_index_options(config, request.arch, Path(folder)),
        ]  # fmt: skip
        # Everything that matters is passed as options.
        environment = {name: value for name, value in environment_for_uv().items() if not _DECIDING.fullmatch(name)}
        done = subprocess.run(  # noqa: S603 - our own arguments
            command, capture_output=True, text=True, check=False, env=environment
        )
        if done.returncode:
            raise _resolution_failed(request, config, done.stderr)
        resolved = list(_parse_pins(pins.read_text(), folder))
    versions = [pin.version for pin in resolved if pin.name == request.distribution]
    if server and [Version(version) for version in versions] != [Version(request.release)]:
        raise LockError(
            "release-replaced",
            f"{request.distribution} {request.release} was asked for, and uv chose {', '.join(versions) or 'none'}.",
            where=str(request),
            why="An override in matrix.yaml replaces the release itself.",
            fix="Remove that override; `release` alone decides the version of the server.",
        )
    return resolved


def tag_ranks(python: str, glibc: str, platform: str) -> dict[Tag, int]:
    """Rank the wheel tags that run on a platform, the most specific and the newest glibc first."""
    machine = MACHINES[platform][0]
    platforms: list[str] = []
    for minor in range(int(glibc.split(".")[1]), _OLDEST_GLIBC[machine] - 1, -1):
        platforms.append(f"manylinux_2_{minor}_{machine}")
        if minor in _LEGACY and (minor == 17 or machine == "x86_64"):  # noqa: PLR2004 - manylinux2014
            platforms.append(f"{_LEGACY[minor]}_{machine}")
    platforms.append(f"linux_{machine}")  # last, since it promises no glibc
    version, interpreter = tuple(map(int, python.split("."))), f"cp{python.replace('.', '')}"
    tags = [
        *cpython_tags(version, abis=[interpreter], platforms=platforms),
        *compatible_tags(version, interpreter=interpreter, platforms=platforms),
    ]
    return {tag: rank for rank, tag in enumerate(dict.fromkeys(tags))}  # each tag once


def choose_file(
    offered: Iterable[WheelLocation], pin: Pin, tags: dict[Tag, int], request: WheelRequest
) -> WheelLocation:
    of_version: list[str] = []
    unhashed: list[str] = []
    fitting: list[tuple[int, int, str, WheelLocation]] = []
    accepted = Version(pin.version).local in (None, *request.arch.local_versions)
    for location in offered:
        try:
            its_name, version, build, file_tags = parse_wheel_filename(location.file)
        except ValueError:  # no name of a wheel, or a version of thousands of digits
            continue
        if its_name != pin.name or version != Version(pin.version):
            continue
        of_version.append(location.file)
        ranks = [tags[tag] for tag in file_tags if tag in tags and accepted]
        if ranks and not location.sha256 and not location.local:
            unhashed.append(location.file)
        elif ranks:
            # Of files with the same tag, the highest build number comes first (PEP 427).
            fitting.append((min(ranks), -build[0] if build else 0, location.file, location))
    if fitting:
        # min() returns the first of equals, so the preferred source of the same file wins.
        return min(fitting, key=lambda offer: offer[:3])[3]
    name, fix = "no-wheel", _CHECK_INDEXES
    what = f"No index has a wheel of {pin.name} {pin.version}."
    why = "uv chose it, but the configured indexes do not have the file."
    if unhashed:
        what = f"No index provides the sha256 of {unhashed[0]}."
        why = "A lock identifies files by their sha256, and this index does not provide it."
        fix = "Use an index with hashes, or put the wheel into a folder listed in PIP_FIND_LINKS."
    elif of_version:
        name, fix = "incompatible-wheel", _CHOOSE_ANOTHER
        what = f"No wheel of {pin.name} {pin.version} runs on this base."
        files = ", ".join(sorted(set(of_version)))
        why = f"Python {request.base.python} with glibc {request.base.glibc} takes none of: {files}."
    raise LockError(name, what, where=str(request), why=why, fix=fix)


def _index_options(config: IndexConfig, arch: Arch, parent: Path) -> list[str]:
    # torch 2.13.0+cpu counts as newer than torch 2.13.0, so a CPU wheel in a configured folder would otherwise end up
    # in a CUDA image: uv gets a folder of its own with the local wheels that the arch accepts.
    folder = parent / "wheels"
    folder.mkdir()
    for wheel in local_wheels(config):
        if local_label(wheel.name) in ("", *arch.local_versions) and not (folder / wheel.name).exists():
            (folder / wheel.name).symlink_to(wheel.absolute())
    # uv takes the files of a version from the first index that has the version, and searches the default index
    # last. The main index has to come first: an extra one may have a version for some platforms only.
    *others, last = (url or PYPI_SIMPLE_ENDPOINT for url in config.indexes)
    return [
        *(option for url in others for option in ("--index", url)),
        *("--default-index", last),
        *(["--find-links", str(folder)] if any(folder.iterdir()) else []),
    ]


def _parse_pins(text: str, folder: str) -> Iterator[Pin]:
    """Parse `name==version  # via a, b` lines, and `name @ file:///folder/wheel` for local wheels."""
    for line in text.splitlines():
        match = re.match(r"^([A-Za-z0-9._-]+)(?:==| @ )(\S+)(?:\s+;.*?)?(?:\s+# via (.*))?$", line.strip())
        if match:
            name, version, via = match.groups()
            if version.startswith("file:"):
                version = str(parse_wheel_filename(unquote(version.rpartition("/")[2]))[1])
            needed_by = sorted(
                "matrix.yaml" if folder in part else str(canonicalize_name(part.strip()))
                for part in (via or "").split(",")
                if part.strip()
            )
            yield Pin(str(canonicalize_name(name)), version, tuple(dict.fromkeys(needed_by)))


_INDEX_FAILED = re.compile(
    "error sending request|dns error|Could not connect|Failed to fetch|client error"
    "|unexpected (JSON|HTML)|Unsupported `Content-Type`"
)


def _resolution_failed(request: WheelRequest, config: IndexConfig, stderr: str) -> FactoryError:
    # uv prints its reasons as a tree, below its warnings.
    text = " ".join(re.sub(r"[\u00d7\u2500-\u257f\u25b6]", " ", stderr).split())
    why = redact(text.partition("error: ")[2] or text) or "uv gave no reason."
    misfit = re.search(r"(?<!\S)([^\s=]+==\S+) has no (?:wheels with a matching|usable wheels)", why)
    missing = re.search(r"there is no version of ([^\s=]+==[^\s,]+)|(?<!\S)(\S+) was not found in the package", why)
    kind: type[FactoryError] = LockError
    where = str(request)
    if _INDEX_FAILED.search(why):
        kind, name, where = NetworkError, "index-unreachable", config.describe()
        what = "The package index does not answer."
        fix = "Check the network, or point PIP_INDEX_URL or UV_INDEX_URL at an index you can reach."
    elif misfit:
        name, fix = "incompatible-wheel", _CHOOSE_ANOTHER
        what = f"No wheel of {misfit[1]} runs with Python {request.base.python} on this base."
    elif missing:
        name, fix = "no-wheel", _CHECK_INDEXES
        what = f"No index has a wheel of {missing[1] or missing[2]}."
    else:
        name = "unresolvable"
        what = f"{request.distribution} {request.release} cannot be resolved for {request.cell.arch}."
        fix = "Choose another release in matrix.yaml, or make the missing wheels available (PIP_FIND_LINKS)."
    return kind(name, what, where=where, why=why, fix=fix)
