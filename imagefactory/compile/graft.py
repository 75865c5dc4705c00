"""Makes a grafted wheel: the published one, with some of its extensions replaced by compiled ones.

Everything else stays as published and tested upstream. The wheel has a version of its own, and says in its dist-info
which files are whose.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from zipfile import ZipFile

from packaging.version import Version

from imagefactory.compile.extensions import read_extension, refuse_other_interface, without_search_path
from imagefactory.compile.packing import repack
from imagefactory.errors.kernels import GraftBaseError, GraftMismatchError
from imagefactory.locks.files import Graft, ReplacedFile
from imagefactory.locks.kernels import KernelVerdict
from imagefactory.resolve.wheelhouse.graft_record import FORMAT, RECORD
from imagefactory.resolve.wheelhouse.keep import CompileInputs
from imagefactory.store.digests import Sha256, sha256_of


def grafted_version(release: str, arch: str, key: str) -> str:
    """Return the version of a grafted wheel, which no publisher gives to theirs."""
    return str(Version(f"{release}+graft.{arch.replace('_', '-')}.{key[:8]}"))


def make_graft(
    published: Path,
    file: str,
    libraries: Iterable[Path],
    folder: Path,
    *,
    inputs: CompileInputs,
    arch: str,
    platform_tag: str,
    mods: Mapping[str, str],
    other_chips: Mapping[str, str],
) -> Path:
    """Replace the libraries of the published wheel `file` by compiled ones of the same name; return the new wheel.

    `mods` are the digests of the mods in the compiled sources, by name; `other_chips` has the operators that may be
    missing, with the reasons.
    """
    replaced: dict[str, bytes] = {}
    entries: list[ReplacedFile] = []
    left_out: list[str] = []
    with ZipFile(published) as archive:
        for library in sorted(libraries):
            path = _place_of(archive, library.name, file)
            before, after = archive.read(path), library.read_bytes()
            interfaces = read_extension(before, f"{file}, {path}"), read_extension(after, library.name)
            left_out += refuse_other_interface(library.name, *interfaces, other_chips)
            replaced[path] = without_search_path(after)
            entries.append(
                ReplacedFile(path=path, published=sha256_of(before), sha256=sha256_of(replaced[path]))
            )
    graft = Graft(
        file=file, sha256=Sha256(inputs.sources["published"].removeprefix("wheel:")), replaced=tuple(entries)
    )
    record = {
        "format": FORMAT,
        "graft": graft.model_dump(mode="json"),
        "key": inputs.key,
        "inputs": inputs.as_json(),
        "mods": dict(mods),
        "operators_for_other_chips": {name: other_chips[name] for name in sorted(left_out)},
    }
    return repack(
        published,
        folder,
        file=file,
        platform_tag=platform_tag,
        version=grafted_version(inputs.version, arch, inputs.key),
        replaced=replaced,
        added={RECORD: json.dumps(record, indent=1, sort_keys=True).encode() + b"\n"},
    )


def refuse_other_chips(replaced: Iterable[str], verdicts: Iterable[KernelVerdict], arch: str) -> None:
    """Raise an error unless every library that was replaced has code for the chip that it was compiled for."""
    outcomes = {verdict.library: verdict for verdict in verdicts}
    for path in sorted(replaced):
        found = outcomes.get(path)
        if found is None or found.outcome != "native":
            raise GraftMismatchError(
                f"The compiled {path} has no code for {arch}.",
                where=path,
                why=f"It has {found.why if found else 'no GPU code at all'}.",
                fix="Leave it as published (`--only`), or correct the arch list in matrix.yaml.",
            )


def _place_of(archive: ZipFile, library: str, file: str) -> str:
    places = [path for path in archive.namelist() if path.rpartition("/")[2] == library]
    if len(places) != 1:
        raise GraftBaseError(
            f"The published wheel has {'no' if not places else 'more than one'} {library}.",
            where=file,
            why="A graft replaces libraries of the published wheel, and adds none.",
            fix="Leave the extension out (`--only`), or correct its versions in images/compile.yaml, graft.extensions.",
        )
    return places[0]
