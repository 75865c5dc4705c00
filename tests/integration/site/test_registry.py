"""A site of what was published to a real registry: evidence, history, what cannot be read, what does not answer."""

from __future__ import annotations

import json

from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload, upload_artifact
from imagefactory.publish.dossier import SMOKE_TYPE
from imagefactory.publish.stored_catalog import CATALOG_TYPE
from imagefactory.publish.tags import CATALOG
from imagefactory.site.rendering import render
from imagefactory.site.site_contents import gather
from imagefactory.site.stock import ask_registry, take_stock
from tests.fixtures.inv import check_failure
from tests.fixtures.publishing import Publisher
from tests.fixtures.small_factory import CELL


def files_of(publisher: Publisher) -> dict[str, bytes]:
    """Make the site of what a publisher has published."""
    records = ask_registry(publisher.repository)
    return render(gather(take_stock(publisher.project, records)))


def test_published_images_are_shown_with_their_evidence_and_rollbacks_with_what_waits(publisher: Publisher) -> None:
    old, new = publisher.publish_changed(100, 200)
    files = files_of(publisher)
    image = json.loads(files[f"images/{CELL.slug}.json"])
    assert (image["published_digest"], image["state"], image["tested"]) == (new, "current", "passed")
    assert [line["digest"] for line in image["history"]] == [new, old]
    assert image["statements"] == ["SBOM", "provenance", "signature"]
    assert image["smoke_on"] == "2026-11-01"
    assert image["problems"] == []
    assert files_of(publisher) == files
    publisher.rollback()
    files = files_of(publisher)
    image = json.loads(files[f"images/{CELL.slug}.json"])
    assert (image["published_digest"], image["digest"], image["state"]) == (old, new, "update waiting")
    assert image["docker_run"].endswith(old)
    status = json.loads(files["status.json"])
    assert status["waiting"] == [CELL.slug]
    assert [line.partition(": ")[0] for line in status["held"]] == [new]
    assert "rolled back to" in files["status.html"].decode()


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(publisher: Publisher) -> None:
    [digest] = publisher.publish()
    subject = publisher.repository.require_manifest(digest).descriptor()
    referrers.attach(publisher.repository, subject, SMOKE_TYPE, [Payload(SMOKE_TYPE, b'{"format": "<b>"}')])
    files = files_of(publisher)
    image = json.loads(files[f"images/{CELL.slug}.json"])
    assert [problem.partition(":")[0] for problem in image["problems"]] == ["smoke record"]
    assert image["state"] == "current"
    assert [(row["outcome"], row["why"]) for row in image["smoke"]] == [("passed", "")] * 3  # the true record's
    assert "Could not be read: smoke record" in files[f"images/{CELL.slug}.html"].decode()
    assert len(json.loads(files["status.json"])["problems"]) >= 1


def test_broken_catalog_ends_the_command_and_nothing_is_written(publisher: Publisher) -> None:
    broken = Payload(CATALOG_TYPE, b'{"images": 1}')
    body = upload_artifact(publisher.repository, CATALOG_TYPE, [broken], annotations={})
    publisher.repository.put_manifest(body, MANIFEST_TYPE, CATALOG)
    check_failure(publisher.invoke("site"), "bad-catalog")
    assert not (publisher.factory.root / "build" / "site").exists()
