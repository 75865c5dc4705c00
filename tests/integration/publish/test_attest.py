"""Published images with SBOM, provenance and signatures, in a real registry: what holds, and what is noticed."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from imagefactory.errors.layers import VerificationError
from imagefactory.errors.supply import ImageSignatureError, TamperedError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload
from imagefactory.oci.registry.descriptor import Descriptor
from imagefactory.oci.registry.image_push import index_document
from imagefactory.oci.registry.referrers import fallback_tag
from imagefactory.publish.attest import bundles, provenance, sbom
from imagefactory.publish.attest.findings import refuse_failing
from imagefactory.publish.attest.image_check import check_image, require_plan
from imagefactory.publish.attest.keys import new_key_pair, read_private_key
from imagefactory.publish.attest.published import attest
from imagefactory.publish.attest.signing import KeySigner
from imagefactory.store.digests import Digest, canonical_json
from tests.fixtures.published import Published, edited, failures, states
from tests.fixtures.small_factory import CELL, SECOND

pytestmark = pytest.mark.engine


def test_a_published_image_is_what_was_signed(published: Published) -> None:
    checked = published.check(every_byte=True)
    assert set(states(checked).values()) == {"ok"}
    assert checked.plan == published.built.plan
    refuse_failing(checked.reference, checked.findings)


def test_attached_are_an_sbom_and_three_signed_statements(published: Published) -> None:
    with published.open() as repository:
        found = referrers.find(repository, published.digest)
    assert sorted(str(item.artifact_type) for item in found) == [
        sbom.MEDIA_TYPE,
        *[bundles.MEDIA_TYPE] * 3,
    ]
    assert {item.digest for item in found} == set(published.attached)


def test_attaching_again_adds_nothing(published: Published) -> None:
    assert published.attach(published.signer) == published.attached
    with published.open() as repository:
        assert len(referrers.find(repository, published.digest)) == len(published.attached)


def test_the_run_that_first_made_an_image_stands(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKFLOW_REF", "owner/factory/.github/workflows/nightly.yml@refs/heads/main")
    assert published.attach(published.signer) == published.attached


def test_an_image_without_signatures_is_refused(published: Published, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    new_key_pair(other, other.with_suffix(".pub"))
    checked = published.check(other.with_suffix(".pub"))
    [finding] = failures(checked)
    assert finding.check == "signature"
    assert "signed with another key" in finding.detail
    with pytest.raises(ImageSignatureError):
        refuse_failing(checked.reference, checked.findings)


def test_the_signature_of_a_stranger_does_not_harm(published: Published, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    new_key_pair(other, other.with_suffix(".pub"))
    published.attach(KeySigner(read_private_key(str(other)), "a stranger's"))
    checked = published.check()
    assert failures(checked) == []
    assert any("not counted" in finding.detail for finding in checked.findings)


def test_a_changed_layer_is_named_with_the_path(published: Published) -> None:
    layers = published.built.layout.layer_digests()
    position = next(n for n, layer in enumerate(published.built.plan.layers) if layer.kind == "model")
    other = published.built.layout.blob(layers[0]).read_bytes()
    published.change(layers[position], lambda _: other)
    checked = published.check(every_byte=True)
    [finding] = failures(checked)
    assert finding.check == "layers"
    assert f"layer model {CELL.model}: {layers[position]} has other bytes" in finding.detail
    assert "should be" in finding.detail
    with pytest.raises(TamperedError):
        refuse_failing(checked.reference, checked.findings)


def test_a_layer_that_is_gone_is_noticed_without_downloading(published: Published) -> None:
    # A layer of this image alone; the registry keeps the link of a repository to a blob apart from the blob.
    model = published.built.layout.layer_digests()[-1]
    links = published.folder / "data/docker/registry/v2/repositories"
    name = published.address.partition("/")[2]
    link = links / name / "_layers/sha256" / model.partition(":")[2] / "link"
    link.unlink()
    [finding] = failures(published.check())
    assert finding.detail == f"layer model {CELL.model}: the registry does not have it"


def test_an_image_with_another_layer_under_a_consistent_manifest_is_refused(published: Published) -> None:
    document = json.loads(published.built.image.manifest)
    document["layers"][-1] = document["layers"][0]
    with published.open() as repository:
        repository.put_manifest(canonical_json(document), MANIFEST_TYPE, "latest")
        tagged = type(repository).open(f"{published.address}:latest")
        [checked] = check_image(published.factory.project, tagged, published.trust(), lambda _: None)
    found = {finding.check: finding.detail for finding in failures(checked)}
    assert "nothing is attached" in found["signature"]
    assert f"layer model {CELL.model} is" in found["record"]
    with pytest.raises(TamperedError):
        refuse_failing(checked.reference, checked.findings)


def test_a_changed_sbom_is_named_with_the_component(published: Published) -> None:
    def hide(document: dict[str, Any]) -> None:
        document["components"] = [part for part in document["components"] if part["name"] != "pure"]

    # A changed copy with a digest of its own, attached like the right one.
    with published.open() as repository:
        [right] = referrers.find(repository, published.digest, sbom.MEDIA_TYPE)
        data = edited(hide)(repository.blob(published.held(right.digest)))
        subject = Descriptor(MANIFEST_TYPE, published.digest, len(published.built.image.manifest))
        payload = Payload(sbom.MEDIA_TYPE, data)
        wrong = referrers.attach(repository, subject, sbom.MEDIA_TYPE, [payload])
    [finding] = failures(published.check())
    assert finding.check == "sbom"
    assert wrong.digest in finding.detail
    assert "the component pkg:pypi/pure@1.0" in finding.detail
    assert "is missing" in finding.detail


def test_an_sbom_with_changed_bytes_is_named(published: Published) -> None:
    with published.open() as repository:
        [right] = referrers.find(repository, published.digest, sbom.MEDIA_TYPE)
    published.change(published.held(right.digest), lambda data: data.replace(b"1.0", b"9.9", 1))
    [finding] = failures(published.check())
    assert finding.check == "sbom"
    assert f"{right.digest}: its bytes are not what its name says" in finding.detail


def test_a_signed_statement_that_was_changed_does_not_count(published: Published) -> None:
    """Change the statement and give it a consistent digest, as somebody who may write to the registry can."""

    def forge(document: dict[str, Any]) -> None:
        envelope = document["dsseEnvelope"]
        statement = json.loads(base64.b64decode(envelope["payload"]))
        statement["predicate"]["components"] = statement["predicate"]["components"][1:]
        envelope["payload"] = base64.b64encode(canonical_json(statement)).decode()

    right = published.statement(sbom.PREDICATE_TYPE)
    with published.open() as repository:
        forged = edited(forge)(repository.blob(published.held(right)))
        subject = Descriptor(MANIFEST_TYPE, published.digest, len(published.built.image.manifest))
        referrers.attach(repository, subject, bundles.MEDIA_TYPE, [Payload(bundles.MEDIA_TYPE, forged)])
        kept = [item for item in referrers.find(repository, published.digest) if item.digest != right]
        repository.put_manifest(index_document(kept), INDEX_TYPE, fallback_tag(published.digest))
    checked = published.check()
    [finding] = failures(checked)
    assert finding.check == "signature"
    assert "no trusted SBOM" in finding.detail
    assert "its signature does not fit its content" in finding.detail


def test_statements_about_another_image_do_not_count(published: Published) -> None:
    """Attach the signed statements of one image to another one."""
    document = json.loads(published.built.image.manifest)
    document["annotations"]["changed"] = "yes"
    body = canonical_json(document)
    with published.open() as repository:
        digest = repository.put_manifest(body, MANIFEST_TYPE)
        for kind in (provenance.PREDICATE_TYPE, sbom.PREDICATE_TYPE, bundles.SIGNATURE_PREDICATE):
            data = repository.blob(published.held(published.statement(kind)))
            payload = Payload(bundles.MEDIA_TYPE, data)
            referrers.attach(
                repository, Descriptor(MANIFEST_TYPE, digest, len(body)), bundles.MEDIA_TYPE, [payload]
            )
        other = type(repository).open(f"{published.address}@{digest}")
        [checked] = check_image(published.factory.project, other, published.trust(), lambda _: None)
    detail = next(finding.detail for finding in failures(checked) if finding.check == "signature")
    assert "it speaks of another image" in detail


def test_every_image_of_an_index_is_checked(published: Published) -> None:
    descriptor = Descriptor(MANIFEST_TYPE, published.digest, len(published.built.image.manifest))
    with published.open() as repository:
        repository.put_manifest(index_document([descriptor]), INDEX_TYPE, "all")
        tagged = type(repository).open(f"{published.address}:all")
        checked = check_image(published.factory.project, tagged, published.trust(), lambda _: None)
    assert [one.digest for one in checked] == [published.digest]
    assert failures(checked[0]) == []


def test_another_checkout_can_check_but_not_rebuild(published: Published) -> None:
    matrix = published.factory.root / "matrix.yaml"
    matrix.write_text(matrix.read_text().replace("git.example/factory", "git.example/fork"))
    checked = published.check()
    assert failures(checked) == []
    assert states(checked)["sbom"] == "not checked"
    assert states(checked)["signature"] == "ok"
    with pytest.raises(VerificationError, match="cannot rebuild"):
        require_plan(checked)


def test_nothing_is_attested_of_another_image(published: Published) -> None:
    with pytest.raises(VerificationError, match="not other"):
        attest(published.factory.project, SECOND, published.reference, published.signer)


def test_the_commands_sign_check_and_rebuild(published: Published) -> None:
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = published.factory.command(*arguments)
        environment = published.factory.environment() | env
        return subprocess.run(
            command, env=environment, cwd=published.factory.root, capture_output=True, text=True, check=False
        )

    made = run("keys.new", "--private", str(published.key.with_name("second.key")))
    assert made.returncode == 0, made.stderr
    signed = run(
        "attest",
        "--image",
        published.reference,
        "--target",
        str(CELL),
        FACTORY_SIGNING_KEY=str(published.key.with_name("second.key")),
    )
    assert signed.returncode == 0, signed.stderr
    assert len(signed.stdout.split()) == 4
    good = run("verify", "--image", published.reference, "--rebuild")
    assert good.returncode == 0, good.stderr
    assert good.stdout.split() == [published.digest]
    assert "a rebuild gives the same bits" in good.stderr
    layer = published.built.layout.layer_digests()[-1]
    published.change(layer, lambda data: data[:-1] + b"?")
    bad = run("verify", "--image", published.reference, "--rebuild")
    assert bad.returncode == TamperedError.exit_code
    assert f"layer model {CELL.model}: {layer} has other bytes" in " ".join(bad.stderr.split())


def test_openssl_agrees_with_a_signature(published: Published, tmp_path: Path) -> None:
    """Check a statement with another implementation: the signature is over DSSE's encoding of it."""
    held: Digest = published.held(published.statement(provenance.PREDICATE_TYPE))
    bundle = bundles.Bundle.read(published.blob(held).read_bytes())
    (tmp_path / "signature").write_bytes(bundle.signature)
    (tmp_path / "data").write_bytes(
        f"DSSEv1 28 application/vnd.in-toto+json {len(bundle.payload)} ".encode() + bundle.payload
    )
    command = ["openssl", "dgst", "-sha256", "-verify", str(published.public)]
    done = subprocess.run(
        [*command, "-signature", "signature", "data"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "Verified OK"
