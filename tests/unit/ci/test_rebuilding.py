"""A rebuild's surroundings: the commit that it fetches, and what that commit's programs get to know."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from imagefactory.ci.rebuilding import _fetch, _rebuild, passed_on
from imagefactory.project.project import Project
from imagefactory.publish.attest.image_check import Checked
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest
from tests.fixtures.failures import raises
from tests.fixtures.fake_github import commit_all, git
from tests.fixtures.small_factory import CELL
from tests.fixtures.small_matrix import MATRIX

IMAGE = Digest(f"sha256:{'1' * 64}")
SOURCE = "https://git.example/factory"
PROGRAM = """#!/bin/sh
env -0 > "$FACTORY_CACHE.environment"
echo building >&2
echo {image}
"""
# fmt: off
NOT_PASSED_ON = (
    "GITHUB_TOKEN", "ACTIONS_ID_TOKEN_REQUEST_TOKEN", "ACTIONS_RUNTIME_URL", "FACTORY_SIGNING_KEY", "AWS_SESSION",
    "FACTORY_SIGNING_PASSWORD", "DOCKER_AUTH_CONFIG", "DOCKER_CONFIG", "NETRC", "SSH_AUTH_SOCK", "MY_OWN", "HF_TOKEN",
    "UV_PUBLISH_TOKEN", "PIP_SECRET", "GIT_CONFIG_VALUE_1", "GITHUB_ENV",
)
# fmt: on
SECRETS = {name: f"s3cret-{number}" for number, name in enumerate(NOT_PASSED_ON)}


@dataclass
class Clone:
    """A clone of a repository that got another commit since, on a branch that the clone does not have."""

    origin: Path
    project: Project
    old: str
    new: str

    def checked(self, commit: str | None) -> Checked:
        return Checked(f"registry.example/x@{IMAGE}", IMAGE, (), None, commit, CELL)

    def has(self, commit: str) -> bool:
        return commit in git(self.project.root, "cat-file", "--batch-all-objects", "--batch-check")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clone:
    work, origin, root = tmp_path / "work", tmp_path / "origin.git", tmp_path / "clone"
    work.mkdir()
    (work / "matrix.yaml").write_text(MATRIX)
    (work / "inv").write_text(PROGRAM.format(image=IMAGE))
    (work / "inv").chmod(0o755)
    old = commit_all(work)
    git(tmp_path, "clone", "--quiet", "--bare", str(work), str(origin))
    git(tmp_path, "clone", "--quiet", origin.as_uri(), str(root))
    git(work, "checkout", "--quiet", "-b", "release")
    (work / "more").write_text("later")
    new = commit_all(work)
    git(work, "push", "--quiet", str(origin), "release")
    # As if the repository were where matrix.yaml says.
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{origin.as_uri()}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", SOURCE)
    return Clone(origin, Project(root, Store(tmp_path / "cache")), old, new)


def test_a_commit_that_is_here_is_not_fetched(clone: Clone) -> None:
    clone.origin.rename(clone.origin.with_name("gone"))
    assert _fetch(clone.project, clone.checked(clone.old)) == clone.old


def test_an_absent_commit_is_fetched_from_the_source_in_the_matrix(clone: Clone) -> None:
    assert not clone.has(clone.new)
    assert _fetch(clone.project, clone.checked(clone.new)) == clone.new
    assert clone.has(clone.new)
    assert git(clone.project.root, "rev-parse", "HEAD") == clone.old, "the checkout stays where it was"


@pytest.mark.parametrize("commit", ["0" * 40, "main", "--upload-pack=touch here", None], ids=str)
def test_a_commit_that_nobody_has_or_that_is_none_is_refused(clone: Clone, commit: str | None) -> None:
    with raises("run-failed", match="not available") as caught:
        _fetch(clone.project, clone.checked(commit))
    assert SOURCE in caught.value.fix
    assert not (clone.project.root / "here").exists()


def test_nobody_is_asked_for_a_password(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    log = clone.project.root.parent / "asked"
    helper = clone.project.root.parent / "git-remote-asking"
    helper.write_text(f'#!/bin/sh\nprintf %s "$GIT_TERMINAL_PROMPT" > "{log}"\nexit 1\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(helper.parent), prepend=":")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "url.asking::.insteadOf")
    with raises("run-failed"):
        _fetch(clone.project, clone.checked(clone.new))
    assert log.read_text() == "0"


def test_the_programs_of_another_commit_get_no_secret(
    clone: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.example/simple")
    said: list[str] = []
    rebuilt = _rebuild(clone.project, clone.checked(clone.new), tmp_path, said.append)
    assert (rebuilt.rebuilt, rebuilt.commit) == (IMAGE, clone.new)
    text = (tmp_path / "cache.environment").read_text()
    assert "s3cret" not in text
    got = dict(entry.split("=", 1) for entry in text.split("\0") if entry)
    assert got["PIP_INDEX_URL"] == "https://index.example/simple"
    assert {"PATH", "HOME", "FACTORY_CACHE"} <= got.keys()
    assert "s3cret" not in json.dumps(said)


def test_a_build_gets_what_it_needs_to_find_its_inputs() -> None:
    names = "PATH https_proxy NO_PROXY SSL_CERT_FILE UV_INDEX LC_ALL FACTORY_DEBIAN_MIRROR"
    needed = dict.fromkeys(names.split(), "something")
    assert passed_on({**needed, **SECRETS}) == needed
