"""`verify --image` explains every statement in a line, and fails whenever something is wrong."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.publish.attest.bundles import MEDIA_TYPE
from imagefactory.publish.tags import CATALOG
from imagefactory.store.digests import canonical_json, digest_of
from tests.fixtures.inv import Inv, check_failure
from tests.fixtures.local_sigstore import Job, JobSigner, LocalSigstore
from tests.fixtures.publishing import Publisher
from tests.fixtures.signed_image import SignedImage

NIGHTLY = Job()


def leave(_: SignedImage) -> None:
    """Change nothing."""


def swap_a_layer(image: SignedImage) -> str:
    """Push a manifest with another layer, and attach the right image's statements to it."""
    document = json.loads(image.built.image.manifest)
    document["layers"][-1] = document["layers"][0]
    body = canonical_json(document)
    with image.open() as repository:
        repository.put_manifest(body, MANIFEST_TYPE)
        statements = referrers.find(repository, image.digest, MEDIA_TYPE)
    for statement in statements:
        data = image.blob(image.held(statement.digest)).read_bytes()
        image.attach_artifact(MEDIA_TYPE, data, Descriptor(MANIFEST_TYPE, digest_of(body), len(body)))
    return digest_of(body)


def edit_the_record(image: SignedImage) -> None:
    """Let the record name the first layer of the image where it names the last one."""
    first, *_, last = image.built.layout.layer_digests()
    record = image.factory.project.known_layers
    text = record.read_text()
    assert last in text
    record.write_text(text.replace(last, first))


def poison_the_cache(image: SignedImage) -> None:
    """Change a Debian package that was downloaded, without changing its size."""
    files = [path for path in (image.factory.cache / "downloads").rglob("*") if path.is_file()]
    [(path, data)] = [(path, data) for path in files if b"a small base" in (data := path.read_bytes())]
    path.unlink()
    path.write_bytes(data.replace(b"a small base", b"a smart base"))


@dataclass(frozen=True)
class Case:
    """An image, whether it is good, and the line that says so."""

    line: str
    error: str | None
    """What it fails with; empty, where several checks compete to notice it."""
    job: Job | None = NIGHTLY
    """Who signs it."""
    spoil: Callable[[SignedImage], str | None] = leave
    options: tuple[str, ...] = ()


CASES = {
    "good": Case(rf"signature +ok +identity {re.escape(NIGHTLY.identity)}$", None, options=("--rebuild",)),
    "unsigned": Case(
        "signature +failed +no trusted provenance and no SBOM and no signature$",
        "no-trusted-signature",
        job=None,
    ),
    "another workflow of the same repository": Case(
        r"statement +not counted +signature sha256:\w+: it is signed by another workflow of "
        r"https://git.example/factory, .*/mods.yml@refs/heads/main$",
        "no-trusted-signature",
        job=Job(workflow=".github/workflows/mods.yml"),
    ),
    "one layer swapped": Case(
        "record +failed +layer model tiny is sha256:.*, locks/layers.toml says sha256:",
        "record-disagrees",
        spoil=swap_a_layer,
    ),
    "an edited record": Case("record +failed +layer model tiny is sha256:", "record-disagrees", spoil=edit_the_record),
    "a poisoned cache": Case("rebuild +failed +tiny@1.0/cpu: ", "", spoil=poison_the_cache, options=("--rebuild",)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_image_is_explained_line_by_line_and_fails_unless_it_is_good(
    signed_image: SignedImage,
    sigstore: LocalSigstore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: Case,
) -> None:
    if case.job:
        signed_image.attach(JobSigner(sigstore, case.job))
    digest = case.spoil(signed_image) or signed_image.digest
    inv = Inv(signed_image.factory, monkeypatch, capsys)
    signed_image.factory.configure(monkeypatch)
    done = inv("verify", "--image", f"{signed_image.address}@{digest}", *case.options)
    assert re.search(case.line, done.stderr, re.MULTILINE), done.stderr
    if case.error is not None:
        check_failure(done, case.error)
        assert done.returncode != 0
        assert done.stdout == ""
    else:
        assert (done.returncode, done.stdout.split()) == (0, [digest]), done.stderr
    # The key that signed_image signs with is not in the checkout, so its three statements never count.
    lines = re.findall(r"^  statement +(ok|not counted) +\w+ sha256:", done.stderr, re.MULTILINE)
    assert len(lines) == (6 if case.job else 3)


def test_a_mirror_that_serves_older_tags_and_their_catalog_is_not_called_right(publisher: Publisher) -> None:
    repository = publisher.repository

    def check(tag: str, *options: str) -> tuple[int, str]:
        done = publisher.invoke("verify", "--image", f"{repository.reference.name}:{tag}", *options)
        [line] = re.findall(r"^  tag +(.*)", done.stderr, re.MULTILINE)
        return done.returncode, " ".join(line.split())

    publisher.publish_changed(1000)
    before = {tag: repository.require_manifest(tag) for tag in ("tiny", CATALOG)}
    publisher.publish_changed(1100)
    assert check("tiny") == (0, "ok tiny, as the catalog has it and this checkout plans it")
    for tag, manifest in before.items():
        repository.put_manifest(manifest.body, manifest.media_type, tag)
    code, line = check("tiny")
    assert (code, "not checked tiny, as the catalog has it; nobody signs that" in line) == (0, True)
    assert check("tiny", "--strict") == (11, line)
    [fixed] = [image.tag for image in publisher.catalog.images]
    assert check(fixed) == (0, f"ok {fixed}, as the catalog has it and its name says")
