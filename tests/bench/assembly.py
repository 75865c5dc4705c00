"""Measures assembling an image, beside a lower bound.

Run `.venv/bin/python -m tests.bench.assembly` once everything is downloaded. Nothing is asserted; compare ratios within
one run between machines.
"""

import argparse
import hashlib
import io
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import deflate
from debian.arfile import ArFile
from isal import igzip_lib

from imagefactory.assemble.parallel import available_cores
from imagefactory.oci.format import COMPRESSION_LEVEL, MEMBER_LIMIT, SPLICE_FROM
from imagefactory.plan.known_layers import read_blob_record
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from tests.bench.measuring import Spent, middle, row, timed

ROOT = Path(__file__).resolve().parents[2]
GB10 = Cell("gemma4-31b", "0.32.0", "gb10", "linux/arm64")
OTHER_MODEL = Cell("gemma4-26b-a4b", "0.32.0", "gb10", "linux/arm64")
_PIECE = 1024 * 1024
_LOCAL_HEADER = 30


# --- what cannot be avoided ----------------------------------------------------------------------


class Work:
    """Hashes content and compressed bytes, and does the extras: `record` hashes, `compress` packs small files."""

    def __init__(self, extras: Sequence[str]) -> None:
        self.extras = frozenset(extras)
        self.content, self.compressed, self.record = hashlib.sha256(), hashlib.sha256(), hashlib.sha256()
        self.pending = bytearray()

    def take(self, data: bytes, *, small: bool) -> None:
        """Work on uncompressed bytes."""
        self.content.update(data)
        if "record" in self.extras:
            self.record.update(data)
        if "compress" in self.extras and small:
            self.pending += data
            if len(self.pending) >= MEMBER_LIMIT:
                self.compressed.update(deflate.deflate_compress(bytes(self.pending), COMPRESSION_LEVEL))
                self.pending.clear()


def inflate_and_hash(path: Path, name: str, extras: Sequence[str]) -> None:
    """Read everything in a package once: inflate it, hash it, hash its compressed bytes. Write nothing."""
    work = Work(extras)
    if name.endswith(".deb"):
        _decompress_deb(path, work)
        return
    with ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            lengths = file.read(4)
            skip = int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
            file.seek(info.header_offset + _LOCAL_HEADER + skip)
            small = info.file_size < SPLICE_FROM
            inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
            left = info.compress_size
            while left:
                data = file.read(min(256 * 1024, left))
                left -= len(data)
                work.compressed.update(data)
                if info.compress_type != ZIP_DEFLATED:
                    work.take(data, small=True)
                    continue
                work.take(inflater.decompress(data, _PIECE), small=small)
                while not inflater.eof and not inflater.needs_input:
                    work.take(inflater.decompress(b"", _PIECE), small=small)


def _decompress_deb(path: Path, work: Work) -> None:
    work.compressed.update(path.read_bytes())
    for member in ArFile(str(path)).getmembers():
        name = member.name if isinstance(member.name, str) else member.name.decode()
        if name.startswith("data.tar"):
            with lzma.open(io.BytesIO(member.read())) as tar:
                while data := tar.read(_PIECE):
                    work.take(data, small=True)


def lower_bound(plan: Plan, store: Store, *extras: str) -> Spent:
    """Time one process per core that inflates and hashes the inputs of a plan, the largest first."""
    packages = (".whl", ".deb")
    inputs = [item for layer in plan.layers for item in layer.inputs if item.name.endswith(packages)]
    files = sorted(
        ((store.download(item.sha256), item.name) for item in inputs),
        key=lambda item: -item[0].stat().st_size,
    )

    def work() -> None:
        with ProcessPoolExecutor(available_cores()) as pool:
            for future in [pool.submit(inflate_and_hash, *item, extras) for item in files]:
                future.result()

    return timed(work)


# --- the factory ---------------------------------------------------------------------------------


class Cache:
    """A cache that shares only the machine's downloads, and a copy of the checkout.

    A build that forgets the record of layers has to check all of them. A fat one keeps the GPU code of other chips; the
    checkout has no record of it, but may get one from an earlier build.
    """

    def __init__(
        self,
        folder: Path,
        *,
        reuse: bool = False,
        forget: bool = False,
        fat: bool = False,
        record: str | None = None,
    ) -> None:
        self.folder = folder
        self.checkout = folder / "checkout"
        if not reuse:
            for name in ("imagefactory", "images", "locks", "mods"):
                shutil.copytree(ROOT / name, self.checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("matrix.yaml", "tasks.py"):
                shutil.copy(ROOT / name, self.checkout)
            if forget:
                self.record.unlink()
                (self.checkout / "locks" / "slim.toml").unlink()
            if fat:
                matrix = (ROOT / "matrix.yaml").read_text()
                (self.checkout / "matrix.yaml").write_text(matrix.replace("    slim: yes\n", ""))
            if record is not None:
                self.record.write_text(record)
            (self.folder / "downloads").symlink_to(Store().root / "downloads")

    def build(self, cell: Cell) -> Spent:
        """Run `./inv build` as a user does."""
        invoke = [sys.executable, "-m", "invoke", "--search-root", str(self.checkout)]
        command = [*invoke, "build", "--target", str(cell), "--output", str(self.folder / "out")]
        environment = {"FACTORY_CACHE": str(self.folder), "PYTHONPATH": str(self.checkout)}
        started = time.perf_counter()
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # Workers, which the program waits for, are part of what it used.
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"the build of {cell} failed")
        return Spent(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)

    @property
    def record(self) -> Path:
        """The digests of layers, which a build completes."""
        return self.checkout / "locks" / "layers.toml"

    def blobs(self) -> int:
        """Count the bytes of all blobs."""
        return sum(path.stat().st_size for path in (self.folder / "blobs/sha256").iterdir())


def reused(old: Plan, new: Plan, store: Store) -> tuple[int, int]:
    """Count the bytes of a plan's layers that an earlier plan has too, and all of them."""
    before = {layer.key for layer in old.layers}

    def size(key: str, download: int) -> int:
        blob = read_blob_record(key, store)  # type: ignore[arg-type]
        return blob.size if blob else download

    sizes = [(layer.key in before, size(layer.key, layer.download)) for layer in new.layers]
    return sum(size for known, size in sizes if known), sum(size for _, size in sizes)


# --- the table -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    project = Project(ROOT)
    with tempfile.TemporaryDirectory(dir=Store().root, prefix="bench-") as name:
        row("what", "time", "ratio", "processor", "ratio")
        row("---", *["---:"] * 4)
        assembly_rows(project, Path(name), options.rounds)


def assembly_rows(project: Project, folder: Path, rounds: int) -> None:
    plan = make_plan(project, GB10)
    bound = partial(lower_bound, plan, project.store)
    cache_folder = folder / "cache"
    learnt = Cache(cache_folder, fat=True)
    learnt.build(GB10)
    fat_record = learnt.record.read_text()
    steps: dict[str, Callable[[], Spent]] = {
        "one process per core inflates, and hashes content and compressed bytes": bound,
        "... and hashes content once more, as RECORD wants": partial(bound, "record"),
        "... and compresses what is not copied": partial(bound, "record", "compress"),
        "cold assembly, everything downloaded, no layer on record": lambda: Cache(cache_folder, forget=True).build(
            GB10
        ),
        "cold assembly of a fat image, everything downloaded, digests on record": lambda: Cache(
            cache_folder, fat=True, record=fat_record
        ).build(GB10),
        "cold assembly, everything downloaded, digests on record": lambda: Cache(cache_folder).build(GB10),
    }
    taken: dict[str, list[Spent]] = {name: [] for name in steps}
    for number in range(rounds):
        for name, step in steps.items():
            shutil.rmtree(folder / "cache", ignore_errors=True)
            taken[name].append(step())
            print(f"# round {number + 1}: {taken[name][-1]} {name}", file=sys.stderr)
    medians = {name: middle(values) for name, values in taken.items()}
    least = next(iter(medians.values()))
    for name, spent in medians.items():
        ratios = f"{spent.seconds / least.seconds:.2f}", f"{spent.processor / least.processor:.2f}"
        row(name, f"{spent.seconds:.1f} s", ratios[0], f"{spent.processor:.1f} s", ratios[1])
    cache = Cache(folder / "cache", reuse=True)
    size = cache.blobs()
    unchanged = min(cache.build(GB10) for _ in range(3))
    row("the same again, nothing changed", f"{unchanged.seconds:.2f} s", columns=5)
    row("another model on the same vLLM and arch", f"{cache.build(OTHER_MODEL).seconds:.2f} s", columns=5)
    row("... new blobs", f"{(cache.blobs() - size) / 1e3:.0f} kB of {size / 1e9:.2f} GB", columns=5)
    peak = max(spent.memory for values in taken.values() for spent in values)
    row("peak memory of any process", f"{peak / 1e6:.0f} MB", columns=5)
    for old in ("0.24.0", "0.28.0"):
        earlier = Cell(GB10.model, old, GB10.arch, GB10.platform)
        if project.is_locked(earlier):
            kept, total = reused(make_plan(project, earlier), plan, Store(cache.folder))
            share = f"{kept / total:.0%}"
            row(f"bytes of layers that {old} has already", f"{kept / 1e9:.2f} GB", share, columns=5)
    shutil.rmtree(folder / "cache")


if __name__ == "__main__":
    main()
