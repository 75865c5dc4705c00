"""Digests of images of others, looked up in a real registry."""

import json
from uuid import uuid4

import pytest

from imagefactory.ci.new_release import prepare
from imagefactory.ci.news import News
from imagefactory.oci.image import INDEX_TYPE
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from imagefactory.store.index_config import IndexConfig
from imagefactory.store.indexes import Indexes
from imagefactory.store.progress import Say
from tests.fixtures.checkouts import Checkout
from tests.fixtures.registries import HURRIED
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

pytestmark = pytest.mark.engine
EMPTY = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}


def test_the_refresh_pins_what_tags_name_and_says_what_moved(
    locked_checkout: Checkout,
    registry: str,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simple_index.add(wheel_factory("vllm", "2.0"))
    for outside in ("update_licences", "drop_unneeded"):
        monkeypatch.setattr(f"imagefactory.ci.new_release.{outside}", lambda *_, **__: None)
    monkeypatch.setattr("imagefactory.oci.registry.connection._RETRY", HURRIED)
    name = f"{registry}/test-companions/{uuid4().hex[:12]}"
    companions = f"companions: {{web: {name}:main, gone: {name}:gone, away: 127.0.0.1:9/away:main}}\nmodels:\n"
    locked_checkout.edit_matrix("\nmodels:\n", f"\n{companions}")

    def refreshed(say: Say = lambda _: None) -> News:
        indexes = Indexes(IndexConfig(indexes=(simple_index.url,)))
        return prepare(Project(locked_checkout.root), indexes, ["companions"], say)

    with Repository.open(name) as repository:
        first = repository.put_manifest(json.dumps(EMPTY).encode(), INDEX_TYPE, "main")
        said: list[str] = []
        refreshed(said.append)
        project = Project(locked_checkout.root)
        assert [project.companion(one) for one in ("web", "gone")] == [f"{name}@{first}", f"{name}:gone"]
        assert any("127.0.0.1:9/away:main keeps its tag: " in line for line in said)
        assert any(f"{name}:gone keeps its tag: The registry has no such tag." in line for line in said)
        second = repository.put_manifest(json.dumps(EMPTY, indent=1).encode(), INDEX_TYPE, "main")
        assert refreshed().packages == [f"companions.toml: web main@{first[:19]} → main@{second[:19]}"]
        repository.delete(second)
        refreshed()
        assert Project(locked_checkout.root).companion("web") == f"{name}@{second}"
