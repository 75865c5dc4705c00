"""Tests loading matrix.yaml: mistakes are reported with their line."""

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from imagefactory.errors import FactoryError
from imagefactory.lock.drift import wheels_made_from
from imagefactory.project.cells import Cell, reason_excluded
from imagefactory.project.locks.files import WheelLock
from imagefactory.project.matrix import SOURCE, load_matrix
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises


def test_committed_matrix_has_the_promised_archs_versions_and_models() -> None:
    matrix = load_matrix(REPOSITORY / "matrix.yaml")
    assert {"gb10", "rtx5090", "b200", "gb200", "b300", "h100", "a100", "cpu"} == set(matrix.archs)
    assert {"0.20.2", "0.28.0", "0.32.0", "nightly", "pr-41703"} <= set(matrix.vllm)
    assert {"gemma4-31b", "gemma4-26b-a4b", "qwen3.5-27b-nvfp4", "gpt-oss-120b", "tiny"} <= set(matrix.models)
    assert {"qwen3.5-35b-a3b-int4", "qwen3-coder-next-nvfp4"} <= set(matrix.models)
    assert len(matrix.models["gemma4-31b"].drafters) == 2


LEFT = "leave_out: [{distribution: one, reason: nobody opens it"
MISTAKES: list[tuple[str, str, str, str]] = [
    # the text, the mistake, the error, and part of its message
    ("    weights: bf16", "    wieghts: bf16", "bad-matrix", "Did you mean weights"),
    ("  - when: {model: tiny, arch:", "  - when: {modle: tiny, arch:", "bad-matrix", "Did you mean model"),
    ("    draft: optional", "    draft: sometimes", "bad-matrix", "required"),
    ("    draft: optional", "    good_for: [codign]", "bad-matrix", "'agents', 'chat', 'coding'"),
    ('{vllm: "3.0", arch: spark}', '{vllm: "3.0", arch: sprak}', "unknown-name", "spark"),
    ("  quantized:", "  large:", "duplicate-key", "line"),
    ('    vllm: ">=1.5"', '    vllm: "=>1.5"', "bad-version-range", "not a version range"),
    ('    vllm: ">=1.5"', "    vllm: >=1.5", "bad-yaml", "YAML"),
    ("    repo: somebody/large\n", "", "bad-matrix", "repo"),
    ("    wins: two", "    wins: three", "bad-matrix", "between"),
    ("\nconflicts:", f"\n{LEFT}, archs: [sprak]}}]\nconflicts:", "unknown-name", "spark"),
    ("\nconflicts:", f"\n{LEFT}, files: [/absolute]}}]\nconflicts:", "bad-matrix", "leave_out.0.files.0"),
    ("    platforms: [linux/arm64]", "    platforms: [linux/arm64, linux/arm64]", "bad-matrix", "twice"),
    ("ref: main, counts_as", "counts_as", "bad-matrix", "ref"),
    ("    compile: whole", "    compile: {spark: gratf}", "bad-matrix", "spark: there is no 'gratf'"),
    ("    compile: whole", "    compile: {sprak: graft}", "unknown-name", "spark"),
    ("    compile: whole", "    compile: [graft, whole]", "bad-matrix", "choose one of"),
    ("ref: main, counts_as", "ref: main, compile: graft, counts_as", "bad-matrix", "published wheel to"),
    ("ref: main, counts_as", "ref: main, extras: [fast], counts_as", "bad-matrix", "only a published wheel"),
    ("    serve:\n", "    serve:\n      flags: {max_model_len: 1}\n", "bad-matrix", "_len is a setting"),
    ("    without: [torchvision,", "    without: ['torch vision',", "bad-matrix", "Python package"),
]


@pytest.mark.parametrize(("old", "new", "kind", "word"), MISTAKES)
def test_mistake_is_reported_with_its_line(small_matrix: Checkout, old: str, new: str, kind: str, word: str) -> None:
    line = small_matrix.edit_matrix(old, new)
    with pytest.raises(FactoryError) as failure:
        load_matrix(small_matrix.matrix)
    assert failure.value.name == kind
    assert word in str(failure.value)
    found = re.fullmatch(r"matrix\.yaml:(\d+)", failure.value.where)
    assert found
    # A bad bracket is noticed a line later, and a missing key is reported at its parent.
    assert abs(int(found[1]) - line) <= 2


def test_first_of_several_mistakes_is_shown_and_the_rest_are_counted(small_matrix: Checkout) -> None:
    small_matrix.edit_matrix("    weights: bf16", "    wieghts: bf16")
    line = small_matrix.edit_matrix('    capability: "9.0"', "    capabilty: '9.0'")
    with raises("bad-matrix", match=r"capabilty.*\(1 more") as failure:
        load_matrix(small_matrix.matrix)
    assert failure.value.where == f"matrix.yaml:{line}"


def test_base_may_not_be_named_like_a_version(small_matrix: Checkout) -> None:
    text = small_matrix.matrix.read_text("utf-8")
    text = text.replace("base: bookworm", "base: nightly").replace("\n  bookworm:", "\n  nightly:")
    small_matrix.matrix.write_text(text, "utf-8")
    with raises("bad-matrix", match="both a base and a version"):
        load_matrix(small_matrix.matrix)


def test_file_without_a_matrix_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "matrix.yaml"
    for text in ("", "# nothing\n", "[]", "42", "registry: 1", "null"):
        path.write_text(text)
        with raises("bad-matrix"):
            load_matrix(path)


def test_extras_make_a_version_of_their_own_and_change_its_lock() -> None:
    matrix = load_matrix(REPOSITORY / "matrix.yaml")
    plain, extra = (Cell("gemma4-31b", name, "gb10", "linux/arm64") for name in ("0.32.0", "0.32.0-b12x"))
    assert reason_excluded(matrix, extra) is None
    assert wheels_made_from(matrix, plain) != wheels_made_from(matrix, extra)
    lock = WheelLock.read(REPOSITORY / "locks/0.32.0-b12x/gb10-linux-arm64.toml")
    assert lock.made_from == wheels_made_from(matrix, extra), "flags of a version change no lock"
    assert "no extras" in str(reason_excluded(matrix, replace(extra, model="tiny", arch="cpu")))


PLACEHOLDER = "ghcr.io/OWNER/images"


@pytest.mark.parametrize(
    ("origin", "repository"),
    [
        ("https://github.com/Some-Body/factory.git", "Some-Body/factory"),
        ("https://me:token@github.com/somebody/factory", "somebody/factory"),
        ("git@github.com:somebody/renamed.factory.git", "somebody/renamed.factory"),
        ("ssh://git@github.com/somebody/factory/", "somebody/factory"),
        ("https://github.com.evil.example/somebody/factory", None),
        ("https://git.example/github.com/somebody/factory", None),
        ("../factory", None),
    ],
)
def test_a_fork_on_github_knows_its_registry_and_whom_it_trusts(
    locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch, origin: str, repository: str | None
) -> None:
    for name in ("GITHUB_REPOSITORY", "GITHUB_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    locked_checkout.edit_matrix("registry.example/OWNER/small", PLACEHOLDER)
    locked_checkout.edit_matrix("https://git.example/factory", "https://github.com/OWNER/factory")
    subprocess.run(["git", "init", "-q", str(locked_checkout.root)], check=True)
    command = ["git", "-C", str(locked_checkout.root), "config", "remote.origin.url", origin]
    subprocess.run(command, check=True)
    matrix = load_matrix(locked_checkout.matrix)
    if repository is None:
        assert (matrix.identities, matrix.source_annotation) == ((), {})  # somebody may be called OWNER
        assert matrix.effective_source == "https://github.com/OWNER/factory"
        with raises("no-registry") as caught:
            matrix.require_registry()
        assert caught.value.fix == "export FACTORY_REGISTRY=ghcr.io/YOU/images  # or where you pull images from"
    # The workflow that runs may have checked out somebody else's factory, and then does not decide whom to trust.
    monkeypatch.setenv("GITHUB_REPOSITORY", "Another/factory")
    known = repository or "Another/factory"
    assert matrix.require_registry() == f"ghcr.io/{known.partition('/')[0].lower()}/images"
    assert matrix.identities == (f"https://github.com/{known}/.github/workflows/nightly.yml@refs/heads/main",)
    assert matrix.source_annotation == {SOURCE: f"https://github.com/{known}"}
    # On a GitHub of one's own, others have the same name on github.com.
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    assert bool(matrix.identities) == bool(repository)
    monkeypatch.setenv("FACTORY_REGISTRY", "registry.example/mine")
    assert matrix.require_registry() == "registry.example/mine"
