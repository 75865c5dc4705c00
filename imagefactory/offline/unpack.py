"""Unpacks this folder, which `./inv offline` wrote, on a machine without a network.

    python3 unpack.py [FOLDER]

FOLDER becomes a checkout of the factory (default: spark-image-factory, in the folder you are in) whose `./inv` works,
with its images in the cache as if they had been built there. Parts may be in any folder below this file, in any order.
Missing or damaged parts are named; bring them, and run it again: it continues where it ended. Images whose parts are
here can be used meanwhile.
"""

# It travels with the parts, so it needs Python 3.11 and nothing else.

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTENTS = "contents.json"
PART = "part-{:04}"
BROUGHT = "build/offline"  # of the checkout: the archive of the checkout itself, wheels, whatever else came along
ARCHIVE = f"{BROUGHT}/checkout.tar.gz"
WHEELS = f"{BROUGHT}/wheels"
COMMIT = f"{BROUGHT}/commit"
BLOCK = 1 << 20


class UnpackError(Exception):
    """What stands in the way, for the user to mend."""


@dataclass(frozen=True)
class Piece:
    """A file among the parts, which lie end to end, and where it goes."""

    sha256: str
    size: int
    offset: int
    places: tuple[Path, ...]

    def parts(self, size: int) -> range:
        """Return the numbers of the parts that hold it; an empty file is in none."""
        return range(self.offset // size, (self.offset + self.size - 1) // size + 1) if self.size else range(0)

    @property
    def is_here(self) -> bool:
        # A file gets its name after it was checked, so its size is enough to know one that is finished.
        return all(place.is_file() and place.stat().st_size == self.size for place in self.places)


def cache_folder() -> Path:
    """Return the factory's cache, as `imagefactory.store.cache` finds it."""
    if named := os.environ.get("FACTORY_CACHE"):
        return Path(named).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "imagefactory"


def read_pieces(contents: Mapping[str, Any], checkout: Path) -> list[Piece]:
    roots = {"checkout": checkout, "cache": cache_folder()}
    pieces, offset = [], 0
    for file in contents["files"]:
        split = (place.partition("/") for place in file["places"])
        places = tuple(roots[root] / path for root, _, path in split)
        pieces.append(Piece(file["sha256"], file["size"], offset, places))
        offset += file["size"]
    return pieces


def sound_part(folder: Path, number: int, sha256: str) -> tuple[Path | None, str]:
    """Find a part anywhere below a folder; if there is none, say what is wrong."""
    trouble = "missing"
    for path in sorted(folder.rglob(PART.format(number))):
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == sha256:
                return path, ""
        trouble = f"damaged ({path})"
    return None, trouble


def blocks_of(piece: Piece, parts: Mapping[int, Path], size: int) -> Iterator[bytes]:
    left, position = piece.size, piece.offset
    for number in piece.parts(size):
        with parts[number].open("rb") as file:
            file.seek(position % size)
            while left and (block := file.read(min(BLOCK, left))):
                yield block
                left -= len(block)
                position += len(block)


def put(piece: Piece, parts: Mapping[int, Path], size: int) -> None:
    """Write a file to its first place, and link it to the others."""
    first = piece.places[0]
    first.parent.mkdir(parents=True, exist_ok=True)
    unfinished = first.with_name(f".writing-{first.name[:200]}")
    digest = hashlib.sha256()
    with unfinished.open("wb") as file:
        for block in blocks_of(piece, parts, size):
            digest.update(block)
            file.write(block)
    if digest.hexdigest() != piece.sha256:
        unfinished.unlink()
        raise UnpackError(f"{first} came out wrong although its parts are sound: is the disk failing?")
    unfinished.replace(first)
    for place in piece.places[1:]:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        try:
            os.link(first, place)
        except OSError:  # another disk, or one without hard links
            shutil.copyfile(first, place)


def unpack_files(contents: Mapping[str, Any], folder: Path, checkout: Path) -> None:
    """Write every file whose parts are here; raise if some are not."""
    size = contents["part"]
    left = [piece for piece in read_pieces(contents, checkout) if not piece.is_here]
    needed = sorted({number for piece in left for number in piece.parts(size)})
    here = len(contents["files"]) - len(left)
    print(f"files: {here} of {len(contents['files'])} are here; checking {len(needed)} parts", flush=True)
    parts, troubles = {}, {}
    for number in needed:
        path, trouble = sound_part(folder, number + 1, contents["parts"][number])
        if path:
            parts[number] = path
        else:
            troubles[number] = trouble
    for piece in left:
        if not troubles.keys() & set(piece.parts(size)):
            put(piece, parts, size)
    if troubles:
        named = "\n".join(f"  {PART.format(number + 1)}: {trouble}" for number, trouble in troubles.items())
        raise UnpackError(
            f"{len(troubles)} of {len(contents['parts'])} parts cannot be used:\n{named}\n"
            f"Copy them into {folder} again, and run this again: it continues where it ended."
        )


def find_python(versions: list[str]) -> str:
    """Return a Python that the wheels are for, this one first."""
    for candidate in (sys.executable, *(f"python{version}" for version in versions)):
        words = [candidate, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - a Python
        except OSError:
            continue
        if done.stdout.strip() in versions:
            return candidate
    raise UnpackError(f"The wheels are for Python {', '.join(versions)}, and there is none. Pack with --python X.Y.")


def set_up(checkout: Path, python: str, sets: list[str]) -> None:
    """Create the factory's environment from the wheels, with the uv that is among them: pip need not be here."""
    brought = checkout / BROUGHT
    wheel = next((checkout / WHEELS).glob("uv-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
        (brought / "bin").mkdir(exist_ok=True)
        (brought / "bin" / "uv").write_bytes(archive.read(name))
    (brought / "bin" / "uv").chmod(0o755)
    (brought / "uv.toml").touch()  # instead of the machine's, which may name an index
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    environment = kept | {
        "PATH": f"{brought / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(checkout),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(checkout / WHEELS),
        "UV_CONFIG_FILE": str(brought / "uv.toml"),
        "UV_OFFLINE": "1",
    }
    words = [python, "-m", "imagefactory.environment.setup", *sets]
    if subprocess.run(words, env=environment, cwd=checkout, check=False).returncode:  # noqa: S603 - the checkout's own
        raise UnpackError("The environment could not be set up; the lines above say why.")


def use_what_is_here(contents: Mapping[str, Any], checkout: Path, python: str) -> None:
    """Unpack the checkout and set it up, once all of it is here; name the images that are whole."""
    absent = [place for piece in read_pieces(contents, checkout) if not piece.is_here for place in piece.places]

    def here(path: str) -> bool:
        return not any(place.is_relative_to(checkout / path) for place in absent)

    if not (here(ARCHIVE) and here(WHEELS)):
        return
    if not (checkout / ".git" / "HEAD").exists():
        with tarfile.open(checkout / ARCHIVE) as archive:
            # In the archive .git comes last, so it shows that everything is there.
            archive.extractall(checkout, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # type: ignore[arg-type]  # noqa: S202 - hashed
    set_up(checkout, python, contents["sets"])
    print(f"ready: cd {checkout} && ./inv doctor")
    for target, image in contents["targets"].items():
        if here(f"build/{image}"):
            print(f"  ./inv load --target {target}", flush=True)


def unpack(folder: Path, checkout: Path) -> None:
    try:
        contents = json.loads((folder / CONTENTS).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UnpackError(f"{folder / CONTENTS} cannot be read ({error}). Copy it here again.") from None
    if platform.machine() != contents["machine"]:
        raise UnpackError(f"This is for {contents['machine']}, and this machine is {platform.machine()}.")
    python = find_python(contents["pythons"])
    marker = checkout / COMMIT
    if checkout.exists() and any(checkout.iterdir()) and not marker.exists():
        raise UnpackError(f"{checkout} is not empty, and not from here. Name another folder.")
    if marker.exists() and marker.read_text("utf-8") != contents["commit"]:
        raise UnpackError(f"{checkout} has another commit. Name another folder; images in the cache are shared.")
    marker.parent.mkdir(parents=True, exist_ok=True)
    marker.write_text(contents["commit"], "utf-8")
    missing = None
    try:
        unpack_files(contents, folder, checkout)
    except UnpackError as error:
        missing = error
    use_what_is_here(contents, checkout, python)
    if missing:
        raise missing


def main(arguments: list[str]) -> int:
    if len(arguments) > 1 or arguments[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0 if len(arguments) == 1 else 2
    try:
        unpack(Path(__file__).resolve().parent, Path(*arguments or ["spark-image-factory"]).expanduser().absolute())
    except UnpackError as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, RuntimeError) as error:  # a full disk, a user without a home
        print(f"{error}\nRun this again when that is mended: it continues where it ended.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
