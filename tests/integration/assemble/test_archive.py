"""Tests that builds find in the registry what indexes and mirrors have lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from imagefactory.assemble.archive import archive, archive_tag
from imagefactory.oci.registry.repository import Repository
from tests.fixtures.failures import raises
from tests.fixtures.small_factory import CELL, SECOND, SmallFactory


@pytest.fixture
def where(registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"{registry}/archive-{abs(hash(tmp_path)):x}"
    monkeypatch.setenv("FACTORY_REGISTRY", name)
    return name


def lose(factory: SmallFactory) -> None:
    """Let the index, the mirror and this machine forget every file."""
    shutil.rmtree(factory.cache, ignore_errors=True)
    for file in [*factory.links.glob("*.whl"), *factory.mirror.rglob("*.deb")]:
        file.unlink()


def test_build_takes_from_the_archive_what_was_lost(small_factory: SmallFactory, where: str) -> None:
    [first] = small_factory.build()
    [archived] = archive(small_factory.project, [CELL, SECOND], small_factory.said.append)
    lock, base = small_factory.project.wheel_lock(CELL), small_factory.project.base_lock(CELL)
    sizes = [*(wheel.size for wheel in lock.wheels), *(deb.size for deb in base.debs)]
    assert archived.reference == f"{where}:{archive_tag(small_factory.project, CELL)}"
    assert archived.files == len(sizes)
    assert archived.pushed == archived.size == sum(sizes)
    shutil.rmtree(small_factory.root / "build", ignore_errors=True)
    lose(small_factory)
    [again] = small_factory.build()
    assert again.image.digest == first.image.digest


def test_files_that_the_registry_has_are_not_pushed_again(small_factory: SmallFactory, where: str) -> None:
    archive(small_factory.project, [CELL], small_factory.said.append)
    lose(small_factory)
    [again] = archive(small_factory.project, [CELL], small_factory.said.append)
    assert again.pushed == 0
    with Repository.open(where) as repository:
        document = repository.require_manifest(archive_tag(small_factory.project, CELL)).document()
    assert len(document["layers"]) == again.files


def test_file_that_nobody_has_is_named_and_the_others_are_kept(
    small_factory: SmallFactory, where: str
) -> None:
    [lost] = small_factory.links.glob("platform-*.whl")
    kept = lost.rename(lost.with_suffix(".kept"))
    with raises("archive-incomplete") as refused:
        archive(small_factory.project, [CELL], small_factory.said.append)
    assert refused.value.where == lost.name
    with Repository.open(where) as repository:
        assert repository.resolve(archive_tag(small_factory.project, CELL)) is None
    kept.rename(lost)
    [archived] = archive(small_factory.project, [CELL], small_factory.said.append)
    assert archived.pushed == lost.stat().st_size


def test_build_says_that_the_archive_lacks_a_file_too(small_factory: SmallFactory, where: str) -> None:
    [wheel] = small_factory.links.glob("platform-*.whl")
    wheel.unlink()
    with raises("download-failed") as refused:
        small_factory.build()
    assert where in refused.value.why


@pytest.mark.usefixtures("where")
def test_wrong_file_on_the_index_does_not_hide_the_archived_one(small_factory: SmallFactory) -> None:
    [first] = small_factory.build()
    archive(small_factory.project, [CELL], small_factory.said.append)
    [wheel] = small_factory.links.glob("platform-*.whl")
    lose(small_factory)
    shutil.rmtree(small_factory.root / "build", ignore_errors=True)
    wheel.write_bytes(b"something else")
    [again] = small_factory.build()
    assert again.image.digest == first.image.digest


def test_archive_needs_a_registry(small_factory: SmallFactory) -> None:
    small_factory.edit_matrix("registry.example/factory/small", "registry.example/OWNER/small")
    with raises("no-registry"):
        archive(small_factory.project, [CELL], small_factory.said.append)
