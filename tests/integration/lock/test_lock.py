"""Tests locking against the real package index."""

from pathlib import Path

import pytest

from imagefactory.lock.making import make_locks
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from imagefactory.store.cache import Store
from tests.fixtures.checkouts import Checkout

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_locking_again_with_an_empty_cache_changes_nothing(factory_checkout: Checkout, tmp_path: Path) -> None:
    project = Project(factory_checkout.root, store=Store(tmp_path / "store"))
    path = factory_checkout.locks / "0.32.0" / "gb10-linux-arm64.toml"
    committed = path.read_bytes()
    said: list[str] = []
    # Everything is resolved again, but only named packages may change their version.
    results = list(make_locks(project, select(project.matrix, ["gemma4-31b"]), upgrade=["vllm"], say=said.append))
    assert path in {result.path for result in results}
    assert any(line.startswith("Resolving vLLM 0.32.0") for line in said)
    assert path.read_bytes() == committed
    # Zip directories were read, wheels were not downloaded.
    assert not (tmp_path / "store" / "downloads").exists()
    assert any((tmp_path / "store" / "facts").iterdir())
