"""The image under test is identified by its digest and verified."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagefactory.assemble.assemble import Built
from imagefactory.assemble.engines.docker import daemon
from imagefactory.check.smoke import contents as smoke_contents
from imagefactory.check.smoke.contents import Contents
from imagefactory.check.smoke.subject import (
    Subject,
    in_daemon,
    in_layout,
    plan_of,
    subject_of_image,
    subject_of_layout,
    subject_of_target,
)
from imagefactory.oci.layout import Layout
from imagefactory.oci.listing import FACTS, LayerReading, Sink, read_layer
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256, canonical_json, digest_of, sha256_of
from tests.fixtures.failures import raises
from tests.fixtures.platforms import MACHINE
from tests.fixtures.servers import Answer, Asked, ScriptedServer
from tests.fixtures.small_factory import CELL, SmallFactory
from tests.fixtures.smoke import with_config


class Daemon:
    """A fake Docker daemon."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images: dict[str, dict[str, Any]] = {}
        self.takes = ""
        self.pulled: list[str] = []
        self.removed: list[str] = []
        monkeypatch.setattr(daemon, "inspect", self.images.get)
        monkeypatch.setattr(daemon, "ask", lambda: daemon.Daemon("20.10.24", MACHINE))
        monkeypatch.setattr(daemon, "load", lambda layout, _: self.takes or layout.config_digest())
        monkeypatch.setattr(daemon, "pull", self.pull)
        monkeypatch.setattr(daemon, "remove_name", self.removed.append)

    def pull(self, reference: str, *, auth: object) -> dict[str, Any]:  # noqa: ARG002
        self.pulled.append(reference)
        return self.images[reference]

    def has(self, built: Built, name: str, *digests: str) -> None:
        config = json.loads(built.image.config)
        self.images[name] = {
            "Id": built.image.config_digest,
            "Config": config["config"],
            "Os": config["os"],
            "Architecture": config["architecture"],
            "RepoDigests": list(digests),
        }


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    return Daemon(monkeypatch)


def test_a_target_leads_to_its_built_image(small_factory: SmallFactory, built: Built) -> None:
    found = subject_of_target(small_factory.project, "tiny")
    assert (found.digest, found.config) == (built.image.digest, built.image.config_digest)
    assert (found.cell, found.plan_key, found.layout) == (CELL, built.plan.key, built.layout.folder)
    assert plan_of(small_factory.project, found) == built.plan
    foreign = found.model_copy(update={"plan_key": "0" * 64})
    assert plan_of(small_factory.project, foreign) is None


def test_a_damaged_document_is_refused(small_factory: SmallFactory, built: Built) -> None:
    for what, digest in (("configuration", built.image.config_digest), ("manifest", built.image.digest)):
        blob = built.layout.blob(digest)
        data = blob.read_bytes()
        blob.unlink()  # it is a link into the store
        blob.write_bytes(data.replace(b"linux", b"Linux") if what == "configuration" else data + b" ")
        with raises("no-image", match=f"The {what} of the image is damaged"):
            subject_of_layout(small_factory.project, built.layout)


def test_a_changed_image_has_another_digest_and_one_without_labels_is_refused(
    small_factory: SmallFactory, built: Built, tmp_path: Path
) -> None:
    other = with_config(built.layout, tmp_path / "one", lambda config: config["config"].update(User="nobody"))
    found = subject_of_image(small_factory.project, str(other.folder))
    assert found.digest == f"sha256:{sha256_of(other.blob(found.digest).read_bytes())}" != built.image.digest
    other = with_config(built.layout, tmp_path / "two", lambda config: config["config"].pop("Labels"))
    with raises("no-image", match="is not an image of this matrix"):
        subject_of_image(small_factory.project, str(other.folder))


class Registry(ScriptedServer):
    """A registry that has one image, and whatever else a test puts into it."""

    def __init__(self, built: Built) -> None:
        self.content = {path.name: path.read_bytes() for path in (built.layout.folder / "blobs" / "sha256").iterdir()}
        self.media_type = "application/vnd.oci.image.manifest.v1+json"
        super().__init__(self._answer)
        self.reference = f"{self.address}/o/n@{built.image.digest}"

    def put(self, document: object) -> str:
        """Add a manifest or a configuration; return the digest."""
        data = canonical_json(document)
        self.content[sha256_of(data)] = data
        return digest_of(data)

    def _answer(self, asked: Asked) -> Answer:
        data = self.content.get(asked.path.rpartition(":")[2])
        headers = {"Content-Type": self.media_type} if "/manifests/" in asked.path else {}
        return Answer(data, headers=headers) if data is not None else Answer(status=404)


@pytest.fixture
def registry(built: Built) -> Iterator[Registry]:
    server = Registry(built)
    yield server
    server.close()


def test_an_image_in_a_registry_is_pulled_to_run_and_has_the_requested_digest(
    small_factory: SmallFactory, built: Built, docker: Daemon, registry: Registry
) -> None:
    reference = registry.reference
    found = subject_of_image(small_factory.project, reference)
    assert (found.digest, found.config) == (built.image.digest, built.image.config_digest)
    assert (found.name, found.layout, docker.pulled) == (reference, None, [])
    docker.has(built, reference, reference)
    said: list[str] = []
    with in_daemon(found, said.append) as image:
        assert (image, docker.pulled, said) == (built.image.config_digest, [reference], [])
    docker.images.clear()
    with pytest.raises(KeyError), in_daemon(found, said.append):
        pass  # the fake daemon finds nothing to pull
    assert said == [f"pulling {reference}"]
    docker.has(built, reference, f"registry.example/small@sha256:{'0' * 64}")
    with raises("engine-failed", match="another image"), in_daemon(found):
        pass
    docker.has(built, reference, reference)
    docker.images[reference]["Id"] = f"sha256:{'1' * 64}"
    with raises("engine-failed", match="another image"), in_daemon(found):
        pass


def test_what_is_no_image_of_the_factory_is_refused(
    small_factory: SmallFactory, built: Built, registry: Registry
) -> None:
    where, project = f"{registry.address}/o/n", small_factory.project
    manifest = json.loads(built.image.manifest)
    unfit: list[object] = [{}, [], {"os": "linux", "architecture": MACHINE, "rootfs": {"diff_ids": []}}]
    for config in unfit:
        described = {**manifest["config"], "digest": registry.put(config)}
        with raises("unusable-answer", match="configuration cannot be used"):
            subject_of_image(project, f"{where}@{registry.put({**manifest, 'config': described})}")
    registry.content[built.image.config_digest[7:]] += b" "
    with raises("wrong-digest"):
        subject_of_image(project, registry.reference)
    registry.media_type = "application/vnd.oci.image.index.v1+json"
    with raises("no-image", match="an index of several images"):
        subject_of_image(project, f"{where}@{registry.put({'schemaVersion': 2, 'manifests': []})}")


def test_an_image_in_a_registry_is_laid_out_with_one_request_for_each_blob_that_the_store_lacks(
    small_factory: SmallFactory, built: Built, registry: Registry, store: Store
) -> None:
    project = Project(small_factory.root, store)
    layers = [layer.digest for layer in built.image.layers]

    def downloaded(subject: Subject) -> list[str]:
        registry.log.clear()
        with in_layout(project, subject) as folder:
            made = subject_of_layout(project, Layout(folder))
            assert (made.digest, made.config, made.plan_key) == (subject.digest, subject.config, subject.plan_key)
            assert Contents(Layout(folder), store).files == Contents(built.layout, small_factory.project.store).files
        assert folder.exists() == (subject.layout is not None)
        return [name for asked in registry.log if (name := asked.path.rpartition("/")[2]) in layers]

    subject = subject_of_image(project, registry.reference)
    assert sorted(downloaded(subject)) == sorted(layers)
    assert downloaded(subject) == []
    blob = store.blob(built.image.layers[0].digest)
    blob.write_bytes(blob.read_bytes()[:-1])
    assert downloaded(subject) == layers[:1]
    # A layout is used where it is.
    assert downloaded(subject_of_target(small_factory.project, "tiny")) == []


def test_a_name_without_a_digest_is_refused(small_factory: SmallFactory) -> None:
    for name in ("small:tiny", "registry.example/small:latest"):
        with raises("no-image", match="neither an OCI layout nor a reference by digest"):
            subject_of_image(small_factory.project, name)


def test_an_image_is_loaded_once_and_its_id_is_verified(
    small_factory: SmallFactory, built: Built, docker: Daemon
) -> None:
    subject = subject_of_layout(small_factory.project, built.layout)
    said: list[str] = []
    with in_daemon(subject, said.append) as image:
        assert (image, said) == (built.image.config_digest, [f"loading {subject.cell} into Docker"])
    docker.has(built, built.image.config_digest)
    with in_daemon(subject) as image:
        assert image == built.image.config_digest
    assert len(docker.removed) == 1
    docker.images.clear()
    docker.takes = f"sha256:{'2' * 64}"
    with raises("engine-failed", match="another image"), in_daemon(subject):
        pass


def test_contents_are_the_files_that_a_container_sees(small_factory: SmallFactory, built: Built) -> None:
    contents = Contents(built.layout, small_factory.project.store)
    found = contents.read(["etc/motd", "opt/models/tiny/config.json", "etc/none", "etc"])
    assert found["etc/motd"] == b"a small base\n"
    assert sorted(found) == ["etc/motd", "opt/models/tiny/config.json"]
    assert json.loads(found["opt/models/tiny/config.json"])
    target = small_factory.folder / "copied"
    contents.copy("usr/lib/base/data", target)
    assert sha256_of(target.read_bytes()) == contents.files["usr/lib/base/data"].sha256


def test_layers_are_read_once_and_give_up_what_is_kept(
    small_factory: SmallFactory, built: Built, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ["etc/motd", "opt/models/tiny/config.json", "usr/lib/base/data"]
    expected = Contents(built.layout, small_factory.project.store).read(wanted)
    monkeypatch.setattr(smoke_contents, "igzip", None)
    monkeypatch.setattr(smoke_contents, "_IN_MEMORY", 10)
    contents = Contents(
        built.layout, small_factory.project.store, keep=wanted.__contains__, scratch=small_factory.folder
    )
    read: list[Path] = []

    def spy(blob: Path, sink: Sink) -> LayerReading:
        read.append(blob)
        return read_layer(blob, sink)

    monkeypatch.setattr(smoke_contents, "read_layer", spy)
    assert {digest: layer.diff_id for digest, layer in contents.layers.items()} == {
        layer.digest: layer.diff_id for layer in built.image.layers
    }
    assert contents.read(wanted) == expected == contents.read(wanted)
    assert len(contents.files) > len(wanted)
    assert sorted(read) == sorted({built.layout.blob(layer.digest) for layer in built.image.layers})
    contents.close()


def test_a_damaged_layer_is_a_finding_and_its_listing_is_not_remembered(
    small_factory: SmallFactory, built: Built
) -> None:
    store, layout = small_factory.project.store, built.layout
    digest = built.image.layers[0].digest
    blob = layout.blob(digest)
    data = blob.read_bytes()
    blob.unlink()  # the store has the same file
    blob.write_bytes(data[:-9])
    contents = Contents(layout, store)
    assert contents.layers[digest].digest == digest_of(data[:-9])
    assert contents.layers[digest].fault
    with raises("damaged-file", match="cannot be read"):
        len(contents.files)
    assert not store.facts(FACTS, Sha256(digest[7:])).exists()
    assert store.facts(FACTS, Sha256(built.image.layers[1].digest[7:])).exists()
