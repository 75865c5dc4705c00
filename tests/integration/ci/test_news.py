"""A rehearsal on the real package index: the newest vLLM is forgotten, and `./inv news` brings it back."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from imagefactory.ci import new_release
from imagefactory.ci.news import new_releases, newest_here
from imagefactory.ci.pull_request import git
from imagefactory.compile.settings import load_settings
from imagefactory.project.locks.indexed_files import configured_indexes
from imagefactory.project.matrix import load_matrix
from tests.fixtures.checkouts import REPOSITORY, Checkout, add_pages
from tests.fixtures.fake_github import IDENTITY, commit_all

pytestmark = [pytest.mark.network, pytest.mark.slow]


def forget(checkout: Checkout) -> tuple[str, str]:
    """Remove the newest vLLM from a checkout, as if it were not out yet; return its release and the one before."""
    matrix = load_matrix(checkout.matrix)
    newest = newest_here(matrix, "vllm")
    releases = sorted((one.version, name) for name, one in matrix.vllm.items() if one.release and name == one.release)
    before = releases[-2][1]
    text = checkout.matrix.read_text("utf-8")
    text = re.sub(rf'^  "?{newest}[^:\n]*:.*\n(    .*\n)*', "", text, flags=re.MULTILINE)
    text = re.sub(rf"^  - when: {{version: {newest}.*\n    reason: .*\n", "", text, flags=re.MULTILINE)
    # Tags without a version may follow a variant of the newest, which is forgotten too.
    text = re.sub(
        rf'^defaults: {{vllm: "{newest}"(.*?)(, tags: {newest}\S*)?}}',
        rf'defaults: {{vllm: "{before}"\1}}',
        text,
        flags=re.MULTILINE,
    )
    checkout.matrix.write_text(text, "utf-8")
    for folder in checkout.locks.glob(f"{newest}*"):
        shutil.rmtree(folder)
    path = checkout.root / "images/compile.yaml"
    text = re.sub(
        rf'^  \w+:\n(?:    .*\n)*?    refs: {{"{newest}": .*\n', "", path.read_text("utf-8"), flags=re.MULTILINE
    )
    path.write_text(re.sub(rf'(, |\n      )"{newest}": [^,}}\n]+', "", text), "utf-8")
    return newest, before


def test_what_is_known_of_the_newest_release_is_found_again(
    factory_checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = factory_checkout.root
    add_pages(root)
    newest, before = forget(factory_checkout)
    commit_all(root)
    there = new_releases(load_matrix(factory_checkout.matrix), "vllm", configured_indexes())
    assert newest in there
    # A release that is newer than this checkout would be another rehearsal.
    monkeypatch.setattr(new_release, "new_releases", lambda _, server, __: [newest] if server == "vllm" else [])
    done = factory_checkout.invoke(
        "news", "--branch", "prepared", env={**IDENTITY, "FACTORY_CACHE": str(tmp_path / "cache")}
    )
    assert done.returncode == 0, done.stderr
    assert f"`defaults` in `matrix.yaml` still names {before}." in done.stdout
    for path in (
        f"locks/{newest}/flags.toml",
        f"locks/{newest}/flashinfer.toml",
        "locks/sources.toml",
        "mods/README.md",
    ):
        assert git(root, "show", f"prepared:{path}") == (REPOSITORY / path).read_text("utf-8"), path
    prepared = yaml.safe_load(git(root, "show", "prepared:images/compile.yaml"))["sources"]
    known = load_settings(REPOSITORY).sources
    assert {name: source["refs"][newest] for name, source in prepared.items()} == {
        name: source.refs[newest] for name, source in known.items() if before in source.refs
    }


def test_a_release_that_cannot_be_locked_ends_in_its_own_failure_with_the_next_step(
    factory_checkout: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = factory_checkout.root
    add_pages(root)
    commit_all(root)
    monkeypatch.setattr(new_release, "new_releases", lambda _, server, __: ["99.0"] if server == "vllm" else [])
    given = {**IDENTITY, "FACTORY_CACHE": str(tmp_path / "cache")}
    done = factory_checkout.invoke("news", "--branch", "prepared", env=given)
    assert done.returncode == 5, done.stderr
    message = done.stderr.partition("error[release-refused]")[2]
    assert "vLLM 99.0 cannot be locked." in message
    assert "`overrides`" in message
    assert "vLLM 99.0 is not added: " in done.stdout
    assert "&lt;" not in done.stdout + done.stderr
    done = factory_checkout.invoke("news", "--branch", "again", "--refused", "refused.json", env=given)
    assert done.returncode == 0, done.stderr
    assert list(json.loads((root / "refused.json").read_text())) == ["vLLM 99.0"]
