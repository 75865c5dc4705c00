"""Mods and sources to import that nobody would write end in an error with a remedy, soon; seeded, 1,000 of each."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagefactory.errors import FactoryError
from imagefactory.importing.importer import Importer
from imagefactory.importing.sources import read_source
from imagefactory.project.project import Project
from images.shipped.mods.apply import apply_mods
from images.shipped.mods.load import load_mod
from tests.fixtures.mods import edit, has, manifest
from tests.unit.importing.test_importer import BODY, DIFF, no_container
from tests.unit.importing.test_importer import project as project  # noqa: PLC0414 - a fixture

pytestmark = pytest.mark.slow
CASES, SECONDS = 1000, 10
# fmt: off
WORDS = [
    "", " ", "\n", "\r", "\0", "\x1b[31m", "\u2028", "\ud800", "é", "x" * 300, "(" * 200, "\n" * 5000, "def f(:\n",
    "../..", "/", "~", "vllm/x.py", "vllm/x/__init__.py", "https://github.com/a/b/pull/1", ">=1", "<0", "===x", "*",
    "step_5 = function(5)\n", "-", "+", "@@ -1 +1 @@\n", "--- a/vllm/x.py\n", "+++ b/vllm/y.py\n", "import ",
    "diff --git a/x b/x\n", "SPDX-License-Identifier: -x\n", "GIT binary patch\n", "rename from x\n",
    "\\ No newline at end of file\n",
]
# fmt: on
VALUES: list[Any] = [None, True, -1, 10**30, 1.5, float("nan"), [], {}, [[]], {"x": {}}, *WORDS]


def survives(case: Callable[[], object], seed: int) -> None:
    """Run a case; anything but an error with a remedy, or a long time, is a failure that names its seed."""
    start = time.monotonic()
    try:
        case()
    except FactoryError:
        pass
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    assert time.monotonic() - start < SECONDS, f"seed {seed}"


def spoiled(chance: random.Random, value: Any) -> Any:
    """Change something in a value, at any depth."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        changed = {**value, key: spoiled(chance, value[key])}
        if chance.random() < 0.1:
            changed[chance.choice(WORDS)] = changed.pop(key)
        return changed
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], spoiled(chance, value[at]), *value[at + chance.randrange(2) :]]
    if isinstance(value, str) and chance.random() < 0.5:
        at = chance.randrange(len(value) + 1)
        return value[:at] + chance.choice(WORDS) + value[at + chance.randrange(4) :]
    return chance.choice(VALUES)


def test_mods_with_any_values(tmp_path: Path) -> None:
    tree = {"vllm/__init__.py": "", "vllm/x.py": BODY, "vllm/z.py": "def f(:\n"}
    changes = [
        edit("vllm/x.py", "step_5 = function(5)\n", after="more = 1\n"),
        {"patch": "a.diff", "files": ["vllm/x.py"]},
        {"add": "vllm/new.py", "source": "new"},
    ]
    settings = {"env": {"VLLM_MOE_X": "1"}, "flags": {"block_size": "16"}}
    checks = [has("vllm/x.py", "more = 1"), {"file": "vllm/x.py", "function": "f", "returns": "1 + 1"}]
    for seed in range(CASES):
        chance = random.Random(seed)
        data: Any = manifest(
            "m", chance.choice(changes), checks=chance.sample(checks, 1), settings=settings, upstreamed_in="2"
        )
        data = spoiled(chance, data) if chance.random() < 0.8 else spoiled(chance, spoiled(chance, data))
        folder = tmp_path / str(seed) / "m"
        folder.mkdir(parents=True)
        text = yaml.dump(data, allow_unicode=chance.random() < 0.5)
        (folder / "mod.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
        (folder / "new").write_text("new = 1\n")
        (folder / "a.diff").write_bytes(spoiled_text(chance, DIFF))

        def case(folder: Path = folder) -> None:
            mod = load_mod(folder)
            apply_mods([(mod, mod.manifest.variants[0])], tree.get)

        survives(case, seed)


def spoiled_text(chance: random.Random, text: str) -> bytes:
    """Change lines, words and bytes of a text."""
    lines = text.splitlines(keepends=True)
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(lines))
        lines[at : at + chance.randrange(3)] = [chance.choice([*WORDS, *lines]) for _ in range(chance.randrange(3))]
        lines = lines or [""]
    data = bytearray("".join(lines).encode("utf-8", "surrogatepass"))
    for _ in range(chance.randrange(3)):
        if data:
            data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def test_sources_with_any_content(tmp_path: Path, project: Project) -> None:
    names = [name for name in WORDS if name and not {"/", "\0", "\ud800"} & {*name} and len(name) < 100]
    importer = Importer(project, no_container, lambda _: None, {})
    for seed in range(CASES):
        chance = random.Random(seed)
        folder = tmp_path / "sources" / str(seed)
        folder.mkdir(parents=True)
        ending = chance.choice([".diff", ".patch", ".jinja", ".py"])
        for number in range(chance.randrange(1, 3)):
            (folder / f"{number}{chance.choice(names)}{ending}").write_bytes(spoiled_text(chance, DIFF))
        source = chance.choice([folder, *folder.iterdir()])
        version = chance.choice(["1.0", "2.0", "4.0"])
        survives(lambda: importer.run(read_source(str(source), f"m{seed}"), [version]), seed)  # noqa: B023
