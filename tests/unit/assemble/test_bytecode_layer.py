"""Bytecode is the same however it is compiled, is that of the image's files, and covers what mods change."""

import marshal
import random
import runpy
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

import pytest

from imagefactory.assemble.assemble import Built
from imagefactory.assemble.inputs import LayerInputs
from imagefactory.oci.format import VENV
from imagefactory.oci.listing import read_listing
from imagefactory.plan.bytecode import COMPILER, MODULES, ListedModules, is_list, listed_paths, module_lists
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Environment
from imagefactory.project.cells import Cell
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.lock_files import deb_entry, locked_wheel, write_base_lock, write_wheel_lock
from tests.fixtures.mods import edit, has, manifest, write_mod
from tests.fixtures.platforms import FOREIGN, PLATFORM
from tests.fixtures.small_factory import CELL, SmallFactory, python_debs, small_debs

SITE = f"{VENV}/lib/python3.11/site-packages"
SOURCES = {
    "a.py": "X = 'aarch64-linux-gnu'\ndef f(self, *, key=1.5): return {1, 2, 'linux'} and (key, 257, b'x')\n",
    "b.py": "Y = ('aarch64-linux-gnu', 'name', 3.25)\nclass C:\n    def f(self):\n        return lambda: self\n",
    "deep/c.py": "import a\nif a in {'x', 'y', 'z', 'linux'}: print(f'{a!r}', 257, 10**20)\n",
}
THIS_PYTHON = f'shift 5\nunset PYTHONHOME\nexec {sys.executable} "$@"'
"""In place of Debian's loader, which gets five words of its own: run the Python of the tests."""


def compile_all(folder: Path, names: list[str], seed: int = 0) -> dict[str, bytes]:
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "list").write_text("\n".join(names))
    command = [sys.executable, "-B", str(REPOSITORY / COMPILER), str(folder), str(folder / "list")]
    subprocess.run(command, check=True, env={"PYTHONHASHSEED": str(seed)}, stdout=subprocess.DEVNULL)
    return {path.name: path.read_bytes() for path in folder.rglob("*.pyc")}


def test_bytecode_does_not_depend_on_seed_or_company(tmp_path: Path) -> None:
    together = compile_all(tmp_path / "all", sorted(SOURCES))
    alone: dict[str, bytes] = {}
    for number, name in enumerate(random.Random(1).sample(sorted(SOURCES), len(SOURCES))):
        alone |= compile_all(tmp_path / str(number), [name], seed=number + 1)
    assert together == alone
    assert len(together) == len(SOURCES)


@pytest.mark.parametrize(
    "source",
    [
        "def outer():\n    class Nested{0}:\n        def f(self): return 1\n    return Nested{0}\n",
        "def f(x): return x in {{'first{0}', 'second{0}'}}\ndef g(x): return x in {{'first{0}', 'second{0}'}}\n",
        "from a{0}.b import c\nX = ('a{0}.b', 'a{0}', 'word{0}', 'two words{0}', 1{0}, 1{0}.5)\n",
    ],
)
def test_bytecode_does_not_depend_on_strings_that_python_knows(source: str) -> None:
    """A string is new to a process only once, so each has a number that nothing else has.

    It makes a difference to Python 3.13, not to 3.11.
    """
    program = runpy.run_path(str(REPOSITORY / COMPILER))
    text = source.format(random.Random(source).randrange(10**9)).encode()
    first = program["bytecode"](text, "/x.py")
    kept = compile(text, "/x.py", "exec")
    assert program["bytecode"](text, "/x.py") == first
    assert kept.co_filename == "/x.py"


def test_bytecode_is_unchecked_and_names_the_path_in_the_image(tmp_path: Path) -> None:
    data = compile_all(tmp_path, ["deep/c.py"])[Path(cache_from_source("c.py")).name]
    assert data[:8] == MAGIC_NUMBER + (1).to_bytes(4, "little")
    assert data[8:16] == source_hash(SOURCES["deep/c.py"].encode())
    assert marshal.loads(data[16:]).co_filename == "/deep/c.py"  # noqa: S302 - compiled a moment ago


def test_packed_sources_give_the_same_bytecode(tmp_path: Path) -> None:
    expected = compile_all(tmp_path / "folder", sorted(SOURCES))
    texts = {**SOURCES, "broken.py": "def (\n"}
    offsets = [sum(map(len, list(texts.values())[:number])) for number in range(len(texts))]
    (tmp_path / "sources").write_text("".join(texts.values()))
    lines = [f"{offset} {len(text)} {name}" for offset, (name, text) in zip(offsets, texts.items(), strict=True)]
    (tmp_path / "list").write_text("\n".join(lines))
    words = [str(tmp_path / name) for name in ("sources", "list", "results")]
    command = [sys.executable, "-B", str(REPOSITORY / COMPILER), *words]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    results = (tmp_path / "results").read_bytes()
    found = {}
    for offset, size, _, compiled in map(str.split, printed.splitlines()):
        found[Path(compiled).name] = results[int(offset) :][: int(size)]
    assert found == expected


def test_missing_and_broken_sources_get_no_bytecode_and_patterns_find_modules(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (\n")
    (tmp_path / "odd.py").write_bytes(b"x = '\xff'\n")
    found = compile_all(tmp_path, ["missing.py", "broken.py", "odd.py", "dee*.py", "b*.py"])
    assert found.keys() == {Path(cache_from_source(name)).name for name in ("b.py", "c.py")}


def test_listed_modules_are_found_by_distribution() -> None:
    listed = ListedModules("# recorded\n\npure pure/a.py\npure pure/sub/*.py # all\npython os.py\n")
    assert listed.has("pure", "pure/a.py")
    assert listed.has("pure", "pure/sub/deep/b.py")
    assert not listed.has("pure", "os.py")
    assert not listed.has("other", "pure/a.py")


def test_the_list_of_this_checkout_is_sorted_and_without_duplicates() -> None:
    recorded = (REPOSITORY / MODULES).read_text().partition("# Recorded:\n")[2].splitlines()
    assert recorded == sorted(set(recorded))
    assert {"python argparse.py", "vllm vllm/__init__.py"} <= set(recorded)


def test_a_server_may_have_a_list_of_its_own_which_no_other_gets() -> None:
    assert module_lists(REPOSITORY, "vllm") == [MODULES]
    shared, own = module_lists(REPOSITORY, "sglang")
    assert shared == MODULES
    assert is_list(own)
    assert not is_list(COMPILER)
    modules = ListedModules((REPOSITORY / own).read_text())
    assert modules.has("sglang", "sglang/srt/models/gemma4.py")
    assert not modules.has("sglang", "sglang/test/runners.py")
    environment = Environment(python="3.13", venv="opt/venv")
    both = listed_paths(REPOSITORY, environment, [shared, own])
    assert {f"{environment.site}/sglang/__init__.py", f"{environment.site}/vllm/__init__.py"} <= set(both)


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallFactory:
    """A small factory whose base has a Python, and whose list names a few of its modules."""
    factory = SmallFactory(tmp_path)
    with_python(factory, THIS_PYTHON)
    images = factory.root / "images"
    images.unlink()
    shutil.copytree(REPOSITORY / "images", images, ignore=shutil.ignore_patterns("__pycache__"))
    (factory.root / MODULES).write_text(
        "pure pure/__init__.py\nnamespaced shared/*.py\nplatform platform_/gone.py\npython os.py\nabsent x.py\n"
    )
    factory.configure(monkeypatch)
    return factory


def with_python(factory: SmallFactory, program: str) -> None:
    pool = factory.mirror / "pool/main"
    factory.lock_debs([*small_debs(pool), *python_debs(pool, program)])


def compiled(built: Sequence[Built]) -> dict[str, str | None]:
    """Return the bytecode in an image: paths, those in site-packages below it, and hashes."""
    [image] = built
    return {
        entry.path.removeprefix(f"{SITE}/"): entry.sha256
        for digest in image.layout.layer_digests()
        for entry in read_listing(image.layout.blob(digest))
        if entry.path.endswith(".pyc")
    }


def place(source: str) -> str:
    return cache_from_source(source, optimization="")


def test_listed_modules_and_the_serve_program_are_compiled(factory: SmallFactory) -> None:
    found = compiled(factory.build())
    modules = {"pure/__init__.py", "shared/__init__.py", "shared/one.py", "usr/lib/python3.11/os.py"}
    assert {place(path) for path in modules} <= found.keys()
    assert place("shared/two.py") not in found
    assert place("usr/lib/python3.11/turtle.py") not in found
    assert place("usr/share/imagefactory/serve/program/main.py") in found


def test_a_file_that_a_mod_changes_has_the_bytecode_of_the_changed_source(factory: SmallFactory) -> None:
    one = place("shared/one.py")
    [first] = factory.build()
    before = compiled([first])
    factory.cache = factory.folder / "mods-applied-again"
    change = edit("shared/one.py", "ONE = 1\n", replace="ONE = 11\n")
    add = {"add": "shared/added.py", "source": "new"}
    checks = [has("shared/one.py", "ONE = 11"), has("shared/added.py", "new")]
    mod = manifest("m", change, add, checks=checks, distribution="namespaced")
    write_mod(factory.replace_mods(), mod, {"new": "new = 1\n"})
    [built] = factory.build()
    after = compiled([built])
    assert after[one] != before[one]
    old, new = ([layer.key for layer in made.plan.layers if layer.kind == "bytecode"] for made in (first, built))
    assert (old[0] == new[0], old[1] == new[1]) == (True, False), "that of wheels is shared"
    assert {path for path in after if path not in before} == {place("shared/added.py")}
    layers = zip(built.plan.layers, built.layout.layer_digests(), strict=True)
    modules, own = (built.layout.blob(digest) for layer, digest in layers if layer.kind == "bytecode")
    for blob, source in ((modules, b"ONE = 1\n"), (own, b"ONE = 11\n")):
        with tarfile.open(blob) as archive:
            data = archive.extractfile(f"{SITE}/{one}")
            assert data is not None
            assert data.read()[8:16] == source_hash(source)


def test_a_base_without_python_has_no_bytecode(factory: SmallFactory) -> None:
    factory.lock_debs(small_debs(factory.mirror / "pool/main"))
    assert "bytecode" not in {layer.kind for layer in make_plan(factory.project, CELL).layers}


def test_a_python_that_fails_is_reported(factory: SmallFactory) -> None:
    with_python(factory, "echo Segmentation fault >&2; exit 139")
    with raises("bytecode-failed") as caught:
        factory.build()
    assert caught.value.why == "Segmentation fault"


@pytest.mark.parametrize("version", ["3.11.0-1", "3.11.0-2", None])
def test_another_platform_takes_the_same_python_here(
    factory: SmallFactory, tmp_path: Path, version: str | None
) -> None:
    """The image's platform is a foreign one; `version` is what is locked for this machine."""
    debs = python_debs(tmp_path / "foreign", "", platform=FOREIGN)
    write_base_lock(factory.locks, FOREIGN, [deb_entry(deb.name, deb.read_bytes()) for deb in debs])
    project, foreign = factory.project, Cell(CELL.model, CELL.version, CELL.arch, FOREIGN)
    write_wheel_lock(factory.locks, foreign, map(locked_wheel, factory.links.glob("pure-*")))
    if version is None:
        project.base_lock_path(CELL).unlink()
    else:
        here = python_debs(tmp_path / "here", "", version=version)
        write_base_lock(factory.locks, PLATFORM, [deb_entry(deb.name, deb.read_bytes()) for deb in here])
    layers = [layer for layer in make_plan(project, foreign).layers if layer.kind == "bytecode"]
    inputs = LayerInputs(project, [foreign])
    if version == "3.11.0-1":
        found = {deb.architecture for layer in layers for deb in inputs.python_of(layer)}
        assert found == {PLATFORM.rpartition("/")[2]}
        return
    with raises("no-python") as caught:
        inputs.python_of(layers[0])
    assert "3.11.0-1" in caught.value.why
