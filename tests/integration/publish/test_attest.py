"""Published images with SBOM, provenance and signatures in a real registry, and what a check notices."""

import base64
import io
import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from imagefactory.cli.show.tables import checked_lines
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.image_push import index_document
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.referrers import fallback_tag
from imagefactory.plan import make
from imagefactory.plan.plan import ImageConfig
from imagefactory.project.matrix import SOURCE
from imagefactory.publish import history
from imagefactory.publish.attest import bundles, provenance, sbom
from imagefactory.publish.attest.image_check import refuse_failing, require_plan
from imagefactory.publish.attest.keys import new_key_pair, read_private_key
from imagefactory.publish.attest.signing import KeySigner
from imagefactory.publish.catalog import Pointer
from imagefactory.store.digests import Digest, canonical_json, digest_of
from tests.fixtures.failures import raises, refused
from tests.fixtures.signed_image import SignedImage, edited, failures, states
from tests.fixtures.small_factory import CELL


def test_a_published_image_is_what_was_signed(signed_image: SignedImage, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = signed_image.check(every_byte=True)
    assert set(states(checked).values()) == {"ok"}
    assert checked.plan == signed_image.built.plan
    refuse_failing(checked)
    descriptor = Descriptor(MANIFEST_TYPE, signed_image.digest, len(signed_image.built.image.manifest))
    assert signed_image.check(at=index_of(signed_image, descriptor)).digest == signed_image.digest
    # Attaching again adds nothing, and provenance keeps naming the first run.
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "owner/factory/.github/workflows/nightly.yml@refs/heads/main")
    assert signed_image.attach(signed_image.signer) == signed_image.attached
    with signed_image.open() as repository:
        found = referrers.find(repository, signed_image.digest)
    assert sorted(str(item.artifact_type) for item in found) == [sbom.MEDIA_TYPE, *[bundles.MEDIA_TYPE] * 3]
    assert {item.digest for item in found} == set(signed_image.attached)


def test_an_image_that_nobody_signed_is_told_from_one_that_a_stranger_signed(
    signed_image: SignedImage, tmp_path: Path
) -> None:
    new_key_pair(tmp_path / "other.key", tmp_path / "other.pub")
    checked = signed_image.check(tmp_path / "other.pub")
    assert [finding.check for finding in failures(checked)] == ["signature"]
    with raises("no-trusted-signature", match="signed with another key"):
        refuse_failing(checked)
    with signed_image.open() as repository:
        repository.put_manifest(index_document([]), INDEX_TYPE, fallback_tag(signed_image.digest))
    checked = signed_image.check()
    assert [finding.check for finding in failures(checked)] == ["signature"]
    with raises("unsigned-image", match="Whoever published it: sign it"):
        refuse_failing(checked)


def test_a_layer_that_is_gone_is_noticed_without_downloading(signed_image: SignedImage) -> None:
    # A layer of this image alone; the registry keeps the link of a repository to a blob apart from the blob.
    model = signed_image.built.layout.layer_digests()[-1]
    links = signed_image.folder / "data/docker/registry/v2/repositories"
    name = signed_image.address.partition("/")[2]
    link = links / name / "_layers/sha256" / model.partition(":")[2] / "link"
    link.unlink()
    [finding] = failures(signed_image.check())
    assert finding.detail == f"layer model {CELL.model}: the registry does not have it"


def test_a_changed_sbom_is_named_with_the_component_or_its_bytes(signed_image: SignedImage) -> None:
    def hide(document: dict[str, Any]) -> None:
        document["components"] = [part for part in document["components"] if part["name"] != "pure"]

    # A changed copy with a digest of its own, attached like the right one.
    [right, *_] = signed_image.attached
    data = edited(hide)(signed_image.blob(signed_image.held(right)).read_bytes())
    wrong = signed_image.attach_artifact(sbom.MEDIA_TYPE, data)
    [finding] = failures(signed_image.check())
    assert finding.check == "sbom"
    assert wrong in finding.detail
    assert "the component pkg:pypi/pure@1.0" in finding.detail
    assert "is missing" in finding.detail
    signed_image.change(signed_image.held(right), lambda data: data.replace(b"1.0", b"9.9", 1))
    details = [finding.detail for finding in failures(signed_image.check()) if finding.check == "sbom"]
    assert any(f"{right}: its bytes are not what its name says" in detail for detail in details)


def test_a_signed_statement_that_was_changed_does_not_count(signed_image: SignedImage) -> None:
    """Change the statement and give it a consistent digest, as somebody who may write to the registry can."""

    def forge(document: dict[str, Any]) -> None:
        envelope = document["dsseEnvelope"]
        statement = json.loads(base64.b64decode(envelope["payload"]))
        statement["predicate"]["components"] = statement["predicate"]["components"][1:]
        envelope["payload"] = base64.b64encode(canonical_json(statement)).decode()

    right = signed_image.statement(sbom.PREDICATE_TYPE)
    data = signed_image.blob(signed_image.held(right)).read_bytes()
    signed_image.attach_artifact(bundles.MEDIA_TYPE, edited(forge)(data))
    with signed_image.open() as repository:
        kept = [item for item in referrers.find(repository, signed_image.digest) if item.digest != right]
        repository.put_manifest(index_document(kept), INDEX_TYPE, fallback_tag(signed_image.digest))
    checked = signed_image.check()
    [finding] = failures(checked)
    assert finding.check == "signature"
    assert "no trusted SBOM" in finding.detail
    with raises("no-trusted-signature", match="its signature does not fit its content"):
        refuse_failing(checked)


def test_statements_about_another_image_do_not_count(signed_image: SignedImage) -> None:
    """Attach the signed statements of one image to another one."""
    document = json.loads(signed_image.built.image.manifest)
    document["annotations"]["changed"] = "yes"
    body = canonical_json(document)
    with signed_image.open() as repository:
        digest = repository.put_manifest(body, MANIFEST_TYPE)
    subject = Descriptor(MANIFEST_TYPE, digest, len(body))
    for kind in (provenance.PREDICATE_TYPE, sbom.PREDICATE_TYPE, bundles.SIGNATURE_PREDICATE):
        data = signed_image.blob(signed_image.held(signed_image.statement(kind))).read_bytes()
        signed_image.attach_artifact(bundles.MEDIA_TYPE, data, subject)
    checked = signed_image.check(at=f"{signed_image.address}@{digest}")
    found = [finding.detail for finding in checked.findings if finding.state == "not counted"]
    assert sum("it is about another image" in detail for detail in found) == 3
    assert states(checked)["signature"] == "failed"


def index_of(signed_image: SignedImage, *children: Descriptor, media_type: str = INDEX_TYPE) -> str:
    """Push an index of these manifests, as anybody who may write to the registry can; return its reference."""
    with signed_image.open() as repository:
        digest = repository.put_manifest(index_document(children), media_type, "all")
    return f"{signed_image.address}@{digest}"


def test_an_index_that_the_factory_would_not_publish_is_refused(signed_image: SignedImage) -> None:
    image = Descriptor(MANIFEST_TYPE, signed_image.digest, len(signed_image.built.image.manifest))
    body = canonical_json(json.loads(signed_image.built.image.manifest) | {"annotations": {"gone": "yes"}})
    index = index_document([image])
    foreign = signed_image.attach_artifact("application/x-foreign", b"anything")
    with signed_image.open() as repository:
        gone = Descriptor(MANIFEST_TYPE, repository.put_manifest(body, MANIFEST_TYPE), len(body))
        without = index_of(signed_image, image, gone)
        repository.delete(gone.digest)
        inner = repository.put_manifest(index, INDEX_TYPE)
        mixed = index_of(signed_image, image, repository.require_manifest(foreign).descriptor())
    nested = f"{inner}, which is no image: {re.escape(INDEX_TYPE)}"
    for at, reason in (
        (index_of(signed_image), "it is empty"),
        (without, f"it lists {gone.digest}, which the registry does not have"),
        (index_of(signed_image, image, Descriptor(INDEX_TYPE, inner, len(index))), nested),
        (index_of(signed_image, image, Descriptor(MANIFEST_TYPE, inner, len(index))), nested),
        (mixed, "of several targets: a foreign image, tiny@"),
    ):
        with raises("unfit-index", match=reason):
            signed_image.check(at=at)
    elsewhere = replace(image, platform={"os": "linux", "architecture": "s390x"})
    checked = signed_image.check(at=index_of(signed_image, elsewhere))
    assert "the index lists it for linux/s390x" in failures(checked)[0].detail
    with raises("tampered"):
        refuse_failing(checked)


def test_whoever_pushed_an_image_cannot_add_lines(signed_image: SignedImage) -> None:
    def forge(document: dict[str, Any]) -> None:
        document["config"]["Labels"]["imagefactory.plan"] = "x\n  signature     ok          key of the owner"

    manifest = json.loads(signed_image.built.image.manifest)
    config = edited(forge)(signed_image.blob(Digest(manifest["config"]["digest"])).read_bytes())
    manifest["config"] |= {"digest": digest_of(config), "size": len(config)}
    with signed_image.open() as repository:
        repository.upload(digest_of(config), len(config), lambda: io.BytesIO(config))
        repository.put_manifest(canonical_json(manifest), MANIFEST_TYPE, "forged")
    checked = signed_image.check(at=f"{signed_image.address}:forged")
    assert len(checked_lines(checked).plain.splitlines()) == 1 + len(checked.findings)


def test_a_fork_checks_the_image_as_its_own(signed_image: SignedImage) -> None:
    signed_image.factory.edit_matrix("git.example/factory", "git.example/fork")
    checked = signed_image.check()
    found = states(checked)
    assert (found["sbom"], found["layers"], found["signature"]) == ("ok", "ok", "ok")
    assert require_plan(checked).key == signed_image.built.plan.key


def test_another_checkout_can_check_but_not_rebuild(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check an image of an earlier version, whose label named the repository."""
    image_config = vars(make)["_image_config"]

    def with_source(*arguments: object, **settings: object) -> ImageConfig:
        config: ImageConfig = image_config(*arguments, **settings)
        return config.model_copy(update={"labels": {**config.labels, SOURCE: "https://git.example/factory"}})

    with monkeypatch.context() as earlier:
        earlier.setattr(make, "_image_config", with_source)
        signed_image: SignedImage = request.getfixturevalue("signed_image")
    assert SOURCE in json.loads(signed_image.built.image.config)["config"]["Labels"]
    checked = signed_image.check()
    assert failures(checked) == []
    assert states(checked)["sbom"] == "not checked"
    assert states(checked)["signature"] == "ok"
    with raises("rebuild-differs", match="cannot rebuild"):
        require_plan(checked)


def test_the_commands_make_a_key_verify_and_rebuild(signed_image: SignedImage) -> None:
    run = signed_image.factory.invoke
    key = str(signed_image.key.with_name("second.key"))
    made = run("keys.new", "--private", key)
    assert made.returncode == 0, made.stderr
    signed_image.attach(KeySigner(read_private_key(key), "the second"))
    image = ("--image", signed_image.reference)
    good = run("verify", *image, "--rebuild")
    assert good.returncode == 0, good.stderr
    assert good.stdout.split() == [signed_image.digest]
    assert "a rebuild gives the same bits" in good.stderr
    layer = signed_image.built.layout.layer_digests()[-1]
    signed_image.change(layer, lambda data: data[:-1] + b"?")
    bad = run("verify", *image, "--rebuild")
    assert refused(bad, "tampered")
    assert f"layer model {CELL.model}: {layer} has other bytes" in " ".join(bad.stderr.split())


def test_openssl_agrees_with_a_signature(signed_image: SignedImage, tmp_path: Path) -> None:
    """Check a statement with another implementation: the signature is over DSSE's encoding of it."""
    held: Digest = signed_image.held(signed_image.statement(provenance.PREDICATE_TYPE))
    bundle = bundles.Bundle.read(signed_image.blob(held).read_bytes())
    (tmp_path / "signature").write_bytes(bundle.signature)
    (tmp_path / "data").write_bytes(
        f"DSSEv1 28 application/vnd.in-toto+json {len(bundle.payload)} ".encode() + bundle.payload
    )
    command = ["openssl", "dgst", "-sha256", "-verify", str(signed_image.public)]
    command += ["-signature", "signature", "data"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "Verified OK"


TAGS: list[tuple[str, str | None, str]] = [
    ("tiny", "this", "ok"),
    ("tiny", "an older one", "failed"),
    ("tiny", None, "not checked"),
    ("other", "this", "failed"),
    ("nightly-20261105-other", None, "failed"),
    ("prod", None, "not checked"),
]


def test_a_tag_must_be_the_targets_and_point_where_the_catalog_says(
    signed_image: SignedImage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tag, listed, state in TAGS:
        with signed_image.open() as repository:
            repository.put_manifest(signed_image.built.image.manifest, MANIFEST_TYPE, tag)
        digest = signed_image.digest if listed == "this" else Digest(f"sha256:{'0' * 64}")
        pointer = Pointer(digest=digest, images={CELL.platform: digest}) if listed else None
        catalog = SimpleNamespace(pointer=lambda _, found=pointer: found, owners={})
        stored = SimpleNamespace(catalog=catalog)
        monkeypatch.setattr(history, "read_catalog", lambda _, found=stored: found)
        checked = signed_image.check(at=f"{signed_image.address}:{tag}")
        assert f"target {CELL} for {CELL.platform}" in [f"{one.check} {one.detail}" for one in checked.findings]
        assert states(checked)["tag"] == state, (tag, listed)
        if state == "failed":
            with raises("wrong-tag"):
                refuse_failing(checked)
            continue
        refuse_failing(checked)
        if state == "not checked":
            with raises("not-checked"):
                refuse_failing(checked, strict=True)
