"""A cell gets the mods it needs or names, and a note on each that is left out."""

from pathlib import Path
from typing import Any

import pytest

from imagefactory.mods.choose import Chosen, choose_mods
from imagefactory.project.cells import Cell
from imagefactory.project.matrix import load_matrix
from images.shipped.mods.load import load_mods
from tests.fixtures.failures import raises
from tests.fixtures.mods import Data, edit, has, manifest, write_mod
from tests.fixtures.small_matrix import HEAD

MATRIX = f"""\
{HEAD}
defaults: {{vllm: "1.5", arch: gpu}}
archs:
  gpu: {{platforms: [linux/arm64], base: bookworm, capability: "12.1"}}
  cpu: {{platforms: [linux/amd64], base: bookworm}}
vllm:
  "1.5": {{release: "1.5"}}
  "2.0": {{release: "2.0"}}
  main: {{git: some/where, ref: main, counts_as: 1.6.dev0}}
sglang: {{"0.5": {{release: "0.5"}}}}
models:
  big: {{repo: somebody/big, vllm: ">=0", sglang: ">=0", weights: bf16, mods: MODS}}
  drafted:
    repo: somebody/drafted
    vllm: ">=0"
    weights: fp8
    drafters: [{{repo: somebody/small, method: dflash, tokens: 3, vllm: ">=2"}}]
    draft: optional
"""


def one(name: str, versions: str = ">=1,<2", **more: Any) -> Data:
    return manifest(name, edit("vllm/x.py", name, after="!"), checks=[has("vllm/x.py", "!")], versions=versions, **more)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "mods"


def choose(root: Path, model: str = "big", vllm: str = "1.5", arch: str = "gpu", *, mods: str = "auto") -> Chosen:
    matrix = root.parent / "matrix.yaml"
    matrix.write_text(MATRIX.replace("MODS", mods))
    platform = "linux/arm64" if arch == "gpu" else "linux/amd64"
    return choose_mods(load_matrix(matrix), Cell(model, vllm, arch, platform), load_mods(root))


def names(chosen: Chosen) -> list[str]:
    return [mod.name for mod, _ in chosen.mods]


@pytest.mark.parametrize(
    ("conditions", "cell", "needed"),
    [
        ([{"model": "b*"}], ("big", "1.5", "gpu"), True),
        ([{"arch": "gpu"}], ("big", "1.5", "gpu"), True),
        ([{"capability": ">=12"}], ("big", "1.5", "cpu"), False),
        ([{"weights": "fp8"}], ("drafted", "1.5", "gpu"), True),
        ([{"drafter": "dflash"}], ("drafted", "2.0", "gpu"), True),
        ([{"drafter": "dflash"}], ("drafted", "1.5", "gpu"), False),
        ([{"model": "b*", "arch": "cpu"}], ("big", "1.5", "gpu"), False),
        ([{"model": "other"}, {"arch": "gpu"}], ("big", "1.5", "gpu"), True),
    ],
)
def test_auto_chooses_mods_whose_condition_holds(
    root: Path, conditions: list[Data], cell: tuple[str, str, str], *, needed: bool
) -> None:
    write_mod(root, one("m", ">=1", needed_when=conditions))
    assert names(choose(root, *cell)) == (["m"] if needed else [])


def test_auto_notes_why_a_needed_mod_is_left_out(root: Path) -> None:
    write_mod(root, one("a-upstream", upstreamed_in="2.0"))
    write_mod(root, one("b-needless", not_needed=[{"versions": ">=2", "reason": "the new way is better"}]))
    write_mod(root, one("c-compiled", ">=2", variant={"stage": "source"}))
    write_mod(root, one("d-forgotten"))
    chosen = choose(root, vllm="2.0")
    assert names(chosen) == []
    assert chosen.notes == (
        "a-upstream: upstream since 2.0",
        "b-needless: not needed, the new way is better",
        "c-compiled: changes sources that are compiled; these kernels come from a wheel",
        "d-forgotten: has no variant for 2.0",
    )


def test_source_mod_is_noted_when_kernels_are_compiled(root: Path) -> None:
    write_mod(root, one("m", variant={"stage": "source"}))
    for mods in ("auto", "[m]"):
        chosen = choose(root, vllm="main", mods=mods)
        assert chosen.mods == ()
        assert chosen.notes == ("m: is applied to the sources, before they are compiled",)


def test_named_mod_is_chosen_even_when_not_needed(root: Path) -> None:
    write_mod(root, one("m", needed_when=[{"model": "another"}]))
    write_mod(root, one("n"))
    assert names(choose(root, mods="[m]")) == ["m"]
    assert choose(root, mods="none") == Chosen((), ())
    with raises("unknown-name", match="Unknown mod 'l'"):
        choose(root, mods="[l]")


@pytest.mark.parametrize(
    ("vllm", "more", "why"),
    [
        ("2.0", {"upstreamed_in": "2.0"}, "m: upstream since 2.0."),
        ("1.5", {"variant": {"stage": "source"}}, "m: changes sources that are compiled; these kernels come"),
    ],
)
def test_named_mod_that_does_not_apply_is_refused(root: Path, vllm: str, more: Any, why: str) -> None:
    write_mod(root, one("m", **more))
    with raises("not-applicable") as caught:
        choose(root, vllm=vllm, mods="[m]")
    assert caught.value.what == f"The mod m does not apply to big@{vllm}/gpu."
    assert caught.value.where == "matrix.yaml, models.big.mods"
    assert why in caught.value.why


@pytest.mark.parametrize("mods", ["auto", "[of-vllm, of-sglang, of-kernels]"])
def test_cell_gets_the_mods_of_its_server_only(root: Path, mods: str) -> None:
    for name, more in {
        "of-vllm": {},
        "of-sglang": {"distribution": "sglang"},
        "of-kernels": {"distribution": "sglang-kernel", "server": "sglang"},
    }.items():
        write_mod(root, one(name, ">=0", **more))
    assert names(choose(root, mods=mods)) == ["of-vllm"]
    assert names(choose(root, vllm="sglang-0.5", mods=mods)) == ["of-kernels", "of-sglang"]
