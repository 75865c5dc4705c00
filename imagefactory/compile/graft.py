"""Makes a grafted wheel: the published one, with some of its extensions replaced by compiled ones.

Everything else stays as published and tested upstream. The wheel has a version of its own, and says in its dist-info
which files are whose.

Wheels are packed the same on every machine, with the same library as layers.
"""

import io
import json
import re
import struct
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import deflate
from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from packaging.version import Version

from imagefactory.assemble.layers.wheel_layer import record_hash, record_text
from imagefactory.errors import BuildError, InputError
from imagefactory.lock.wheelhouse.keep import GRAFT_FORMAT, GRAFT_RECORD, CompileInputs
from imagefactory.project.locks.files import Graft, ReplacedFile
from imagefactory.project.locks.kernels import KernelVerdict
from imagefactory.store.atomic import writing
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
            entries.append(ReplacedFile(path=path, published=sha256_of(before), sha256=sha256_of(replaced[path])))
    graft = Graft(file=file, sha256=Sha256(inputs.sources["published"].removeprefix("wheel:")), replaced=tuple(entries))
    record = {
        "format": GRAFT_FORMAT,
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
        added={GRAFT_RECORD: json.dumps(record, indent=1, sort_keys=True).encode() + b"\n"},
    )


def refuse_other_chips(replaced: Iterable[str], verdicts: Iterable[KernelVerdict], arch: str) -> None:
    """Raise an error unless every library that was replaced has code for the chip that it was compiled for."""
    outcomes = {judged.library: judged for judged in verdicts}
    for path in sorted(replaced):
        verdict = outcomes.get(path)
        if verdict is None or verdict.outcome != "native":
            raise BuildError(
                "graft-mismatch",
                f"The compiled {path} has no code for {arch}.",
                where=path,
                why=f"It has {verdict.why if verdict else 'no GPU code at all'}.",
                fix="Leave it as published (`--only`), or correct the arch list in matrix.yaml.",
            )


def _place_of(archive: ZipFile, library: str, file: str) -> str:
    places = [path for path in archive.namelist() if path.rpartition("/")[2] == library]
    if len(places) != 1:
        raise InputError(
            "bad-graft-base",
            f"The published wheel has {'no' if not places else 'more than one'} {library}.",
            where=file,
            why="A graft replaces libraries of the published wheel, and adds none.",
            fix="Leave the extension out (`--only`), or correct its versions in images/compile.yaml, graft.extensions.",
        )
    return places[0]


_SCHEMA: Final = re.compile(rb"\0\s*([A-Za-z_][\w.:]*\([ -~\s]*\)\s*->[ -~\s]+)(?=\0)")
"""An operator as it is registered with torch: name(arguments) -> results, in a text of its own."""
_SYSTEM: Final = re.compile(r"(libc|libm|libdl|libpthread|librt|libgcc_s|libstdc\+\+|ld-linux[\w-]{0,40})\.so\.\d+")
"""Parts of glibc and GCC, which is what differs between the systems that libraries are compiled on."""
_SEARCH_PATHS: Final = ("DT_RPATH", "DT_RUNPATH")


@dataclass(frozen=True)
class Extension:
    """What an extension offers and needs."""

    modules: frozenset[str]  # the functions that Python calls to import it
    operators: frozenset[str]  # the schemas of the operators that it registers with torch
    needed: frozenset[str]  # the libraries that it is linked to, without those of glibc and GCC


def read_extension(data: bytes, name: str) -> Extension:
    try:
        elf = ELFFile(io.BytesIO(data))
        sections = list(elf.iter_sections())
        [symbols] = [
            section for section in sections if isinstance(section, SymbolTableSection) and section.name == ".dynsym"
        ]
        dynamic = _dynamic(elf)
        defined = [symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"]
        texts = b"\0".join(section.data() for section in sections if section.name.startswith(".rodata"))
        needed: list[str] = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")]  # type: ignore[attr-defined]
    except (ELFError, ValueError, KeyError, struct.error) as error:
        raise BuildError(
            "graft-mismatch",
            f"{name} is not an extension.",
            where=name,
            why=f"It cannot be read as a shared library: {error}.",
            fix="Compile it again; if it is the published one, choose another release.",
        ) from None
    return Extension(
        modules=frozenset(symbol for symbol in defined if symbol.startswith("PyInit_")),
        operators=frozenset(" ".join(schema.decode().split()) for schema in _SCHEMA.findall(b"\0" + texts + b"\0")),
        needed=frozenset(library for library in needed if not _SYSTEM.fullmatch(library)),
    )


def refuse_other_interface(
    name: str, published: Extension, compiled: Extension, other_chips: Collection[str]
) -> tuple[str, ...]:
    """Raise an error unless a compiled extension can take the place of the published one.

    Operators in `other_chips` may be missing, since they exist for other chips only; those that are get returned.
    """
    missing = {schema: schema.partition("(")[0] for schema in sorted(published.operators - compiled.operators)}
    left_out = tuple(name for name in missing.values() if name in other_chips)
    lacking = [schema for schema, name in missing.items() if name not in other_chips]
    added = sorted(compiled.operators - published.operators)
    differences = []
    if compiled.modules != published.modules:
        ours, theirs = (", ".join(sorted(extension.modules)) or "none" for extension in (compiled, published))
        differences.append(f"its modules are {ours} instead of {theirs}")
    differences += [
        *(f"it lacks the operator {schema}" for schema in lacking[:3]),
        *(f"it adds the operator {schema}" for schema in added[:3]),
        # It may need fewer: code for other chips calls the driver, which ours then does not.
        *(f"it also needs {library}" for library in sorted(compiled.needed - published.needed)),
    ]
    if differences:
        raise BuildError(
            "graft-mismatch",
            f"{name} cannot take the place of the published one.",
            where=name,
            why="; ".join(differences) + ".",
            fix="Compile the sources of the same release without mods that change its operators. An operator that only "
            "other chips have belongs into images/compile.yaml, graft.other_chips.",
        )
    return left_out


def without_search_path(data: bytes) -> bytes:
    """Remove the library search path, which names folders of the machine that compiled; torch loads what is needed."""
    dynamic = _dynamic(ELFFile(io.BytesIO(data)))
    names = [tag.entry.d_tag for tag in dynamic.iter_tags()]
    size, start = dynamic["sh_entsize"], dynamic["sh_offset"]
    entries = [data[start + number * size : start + (number + 1) * size] for number in range(len(names))]
    kept = [entry for entry, name in zip(entries, names, strict=True) if name not in _SEARCH_PATHS]
    # The section keeps its size, so that no offset in the file changes.
    filled = b"".join(kept).ljust(len(entries) * size, b"\0")  # DT_NULL is all zeros
    return data[:start] + filled + data[start + len(filled) :]


def _dynamic(elf: ELFFile) -> DynamicSection:
    [section] = [section for section in elf.iter_sections() if isinstance(section, DynamicSection)]
    return section


_LEVEL: Final = 6  # of libdeflate; another one changes the bytes of every wheel
_DATE: Final = (1980, 1, 2, 0, 0, 0)  # the day before is too early for zip in some time zones


def _add(archive: ZipFile, name: str, data: bytes, *, executable: bool = False) -> tuple[str, str, int]:
    """Add a file to a zip without anything that differs between machines; return its row for RECORD."""
    packed = bytes(deflate.deflate_compress(data, _LEVEL))
    entry = ZipInfo(name, _DATE)
    # The upper half is the Unix mode; 0o100000 stands for a regular file.
    entry.external_attr = (0o100755 if executable else 0o100644) << 16
    entry.compress_type, entry.CRC = ZIP_DEFLATED, zlib.crc32(data)
    entry.compress_size, entry.file_size = len(packed), len(data)
    # zipfile compresses what it is given; it has no way to take what is compressed already.
    file = archive.fp
    assert file is not None  # noqa: S101 - the archive is open
    entry.header_offset = file.tell()
    # Without ZIP64, which zipfile wants above 2 GiB: it raises for such a file.
    file.write(entry.FileHeader(zip64=False) + packed)
    archive.filelist.append(entry)
    # Closing the archive writes the central directory there.
    archive.start_dir = file.tell()
    return name, record_hash(sha256_of(data)), len(data)


def repack(
    source: Path,
    folder: Path,
    *,
    platform_tag: str,
    file: str = "",
    version: str = "",
    replaced: Mapping[str, bytes] | None = None,
    added: Mapping[str, bytes] | None = None,
) -> Path:
    """Write a wheel again under a platform tag and, if given, a version; return its path.

    `file` is its name, where the path has another; `replaced` has the new content of files by path; `added` are files
    for the dist-info folder.
    """
    name, old_version, *build, python, abi, _ = (file or source.name).removesuffix(".whl").split("-")
    version, tag = version or old_version, f"{python}-{abi}-{platform_tag}"
    new = {**(replaced or {})}
    info = f"{name}-{version}.dist-info"
    target = folder / f"{'-'.join([name, version, *build, tag])}.whl"
    with ZipFile(source) as archive, writing(target) as output, ZipFile(output, "w") as made:
        old_info = next(path for path in archive.namelist() if path.endswith(".dist-info/METADATA")).partition("/")[0]
        new[f"{old_info}/METADATA"] = _with_version(archive.read(f"{old_info}/METADATA"), version)
        new[f"{old_info}/WHEEL"] = _with_tag(archive.read(f"{old_info}/WHEEL"), tag)
        infos = [entry for entry in archive.infolist() if not entry.is_dir() and entry.filename != f"{old_info}/RECORD"]
        rows = []
        # Sorted, for the same bytes everywhere; dist-info comes last, as PEP 427 recommends.
        for entry in sorted(infos, key=lambda entry: (entry.filename.startswith(f"{old_info}/"), entry.filename)):
            path = entry.filename
            renamed = f"{info}/{path.partition('/')[2]}" if path.startswith(f"{old_info}/") else path
            data = new[path] if path in new else archive.read(entry)
            rows.append(_add(made, renamed, data, executable=bool((entry.external_attr >> 16) & 0o111)))
        rows += [_add(made, f"{info}/{path}", data) for path, data in sorted((added or {}).items())]
        # RECORD has the hashes of all other files.
        _add(made, f"{info}/RECORD", record_text(rows, f"{info}/RECORD"))
    return target


def _with_version(metadata: bytes, version: str) -> bytes:
    # The fields end at the first blank line; the description below may have any text.
    head, blank, rest = metadata.partition(b"\n\n")
    return re.sub(rb"(?m)^Version: .*$", b"Version: " + version.encode(), head, count=1) + blank + rest


def _with_tag(wheel: bytes, tag: str) -> bytes:
    lines = [line for line in wheel.decode().splitlines() if line and not line.startswith("Tag:")]
    return "".join(f"{line}\n" for line in [*lines, f"Tag: {tag}"]).encode()
