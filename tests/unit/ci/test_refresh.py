"""The weekly refresh: a new vLLM release in the matrix, and the text of the pull request."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefactory.ci.refresh import Refreshed, add_release, newest_release, refresh
from imagefactory.lock.mirrors import DebianMirrors
from imagefactory.mods.compatibility import ModResult
from imagefactory.project.matrix import load_matrix
from imagefactory.project.project import Project
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes
from tests.fixtures.checkouts import Checkout
from tests.fixtures.debian_archive import DebianArchive, stanza
from tests.fixtures.failures import raises
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.small_matrix import MATRIX
from tests.fixtures.wheels import WheelFactory


def test_a_new_release_is_found_and_added_after_the_newest(
    tmp_path: Path, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    for version in ("3.0", "3.1rc1", "3.1", "0.9"):
        simple_index.add(wheel_factory("vllm", version))
    indexes = Indexes(IndexConfig(indexes=(simple_index.url,)))
    file = tmp_path / "matrix.yaml"
    file.write_text(MATRIX, "utf-8")
    assert newest_release(load_matrix(file), indexes) == "3.1"
    add_release(file, "3.1")
    after = load_matrix(file)
    assert list(after.vllm)[-2:] == ["3.1", "nightly"]
    assert after.vllm["nightly"].version > after.vllm["3.1"].version
    # Everything else is as it was.
    assert len(set(file.read_text("utf-8").splitlines()) - set(MATRIX.splitlines())) == 2
    assert newest_release(after, indexes) is None


def test_a_release_cannot_be_added_to_a_matrix_of_another_form(tmp_path: Path) -> None:
    file = tmp_path / "matrix.yaml"
    file.write_text('vllm: {"1.0": {release: "1.0"}}\n')
    with raises("bad-release"):
        add_release(file, "2.0")


def test_security_updates_of_debian_are_named_and_come_first(
    locked_checkout: Checkout,
    archive: DebianArchive,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simple_index.add(wheel_factory("vllm", "2.0"))
    mirrors = archive.mirrors
    monkeypatch.setattr(DebianMirrors, "discover", lambda _debian: mirrors)
    for outside in ("update_licences", "lock_environment"):  # they ask for what the test does not have
        monkeypatch.setattr(f"imagefactory.ci.refresh.{outside}", lambda *_, **__: None)

    def refreshed() -> Refreshed:
        archive.publish("arm64", "amd64")
        indexes = Indexes(IndexConfig(indexes=(simple_index.url,)))
        return refresh(Project(locked_checkout.root), indexes, ["base"], lambda _line: None)

    base, old = stanza("base", "1.0", Architecture="all", Depends="openssl, bash"), "3.5.1-1"
    others = [stanza(name, old, Architecture="all") for name in ("bash", "openssl")]
    archive.suites["bookworm"] = [base, *others]
    refreshed()
    archive.suites["bookworm-updates"] = [stanza("bash", f"{old}+b1", Architecture="all")]
    archive.suites["bookworm-security"] = [stanza("openssl", f"{old}+deb13u1", Architecture="all")]
    found = refreshed()
    old_to_new = ("openssl 3.5.1-1 → 3.5.1-1+deb13u1 (security)", "bash 3.5.1-1 → 3.5.1-1+b1")
    files = ("bookworm/linux-amd64.toml", "bookworm/linux-arm64.toml")
    assert found.packages == tuple(f"{file}: {change}" for change in old_to_new for file in files)
    assert "4 packages moved, 2 of them with a security update from Debian:" in found.body([])


def test_a_proposal_has_the_table_and_warns_of_mods_that_do_not_hold() -> None:
    refreshed = Refreshed("0.33.0", ("0.32.0/a.toml: numpy 1 → 2",))
    body = refreshed.body([ModResult("m", "0.33.0", "conflict", "An anchor is gone")])
    assert "numpy 1 → 2" in body
    assert "| [m](m/mod.yaml) | conflict |" in body
    assert "Some mods do not hold" in body
