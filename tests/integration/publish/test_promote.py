"""Promotion in a real registry: what gets tags, and who wins. test_state_machines.py has crashes and faults."""

from datetime import timedelta
from typing import Any

import pytest

from imagefactory.ci.night import plan_night
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload
from imagefactory.publish.dossier import ANSWERS_TYPE, SMOKE_TYPE, Dossier
from imagefactory.publish.standing import Standing, standing
from imagefactory.publish.tags import fixed_tag, staging_tag
from imagefactory.publish.vulnerabilities import VULNERABILITIES_TYPE
from tests.fixtures.failures import is_failure, raises
from tests.fixtures.publishing import START, Publisher
from tests.fixtures.small_factory import CELL, SECOND


def test_promotion_gives_an_image_its_tags(publisher: Publisher) -> None:
    [staged] = publisher.push()
    assert publisher.repository.tags() == [staging_tag(staged.plan.key)]
    publisher.vouch(staged)
    outcome = publisher.promote()
    digest = staged.digest
    assert outcome.refused == []
    assert publisher.tags() == {
        "tiny-v1.0": digest,
        "tiny": digest,
        "latest": digest,
        fixed_tag(CELL, staged.plan.key): digest,
    }
    [image] = publisher.catalog.images
    assert (image.digest, image.plan_key, image.tag) == (
        digest,
        staged.plan.key,
        fixed_tag(CELL, staged.plan.key),
    )


def test_a_layer_in_the_registry_is_not_built_again(publisher: Publisher) -> None:
    [first] = publisher.push()
    # An empty machine, and nothing to download from.
    publisher.factory.cache = publisher.factory.folder / "another-cache"
    publisher.factory.links.rename(publisher.factory.folder / "gone")
    publisher.factory.mirror.rename(publisher.factory.folder / "gone-too")
    publisher.factory.watch.told.clear()
    publisher.change(2048)
    [second] = publisher.push()
    assert second.digest != first.digest
    assert second.pushed.count("uploaded") == 2  # the model's layer and the configuration
    assert second.pushed.uploaded < 100_000


def test_an_image_that_did_not_pass_its_tests_or_the_audit_gets_no_tag(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(missing: str) -> None:
        refusal = publisher.refusal()
        assert is_failure(refusal, "not-promotable")
        assert missing in refusal.why
        assert publisher.tags() == {}

    [staged] = publisher.push()
    refused("smoke: no record")
    refused("signed: no trusted signature")
    publisher.vouch(staged, levels=["static", "container"])
    refused("serve: no result")
    publisher.vouch(staged, failing=["container"], started=START + timedelta(hours=1))
    refused("container: failed (test_it: the entrypoint is broken)")
    publisher.vouch(staged, started=START + timedelta(hours=2))
    monkeypatch.setattr("imagefactory.publish.standing.audit_verdict", lambda *_: ["vllm/_C.abi3.so: no code for 12.1"])
    refused("audit: vllm/_C.abi3.so: no code for 12.1.")


def test_an_attachment_that_is_no_record_is_named_and_stops_nothing(publisher: Publisher) -> None:
    [old] = publisher.publish()
    staged = publisher.push_tested(1100)
    types = {SMOKE_TYPE: "smoke", ANSWERS_TYPE: "answers", VULNERABILITIES_TYPE: "scan"}
    for image in (old, staged.digest):
        for kind in types:
            Dossier(publisher.repository, image).attach(referrers.Attachment(kind, [Payload(kind, b"xx")], {}))
    publisher.factory.edit_matrix("\ndefaults:", "\nvulnerabilities: {ids: [CVE-1]}\ndefaults:")
    [work] = plan_night(publisher.project, publisher.repository, [CELL]).works
    assert work.needs == ("promote",)
    publisher.factory.edit_matrix("\nvulnerabilities: {ids: [CVE-1]}", "")
    done = publisher.invoke("promote", "--target", "tiny")
    assert done.returncode == 0, done.stderr
    for shown in (work.reason, done.stderr):
        assert all(f"{types[kind]} record: sha256:" in shown for kind in (SMOKE_TYPE, ANSWERS_TYPE))
    told = publisher.invoke("history", "--target", "tiny")
    assert (told.returncode, "scan record: sha256:" in told.stderr) == (0, True)
    told = publisher.invoke("upgrade", "--from", old)
    assert (told.returncode, told.stdout.count("scan record: sha256:")) == (0, 2)
    assert publisher.tags()["tiny"] == staged.digest


def test_a_tag_that_never_moves_is_never_overwritten(publisher: Publisher) -> None:
    staged = publisher.push_tested()
    [other] = publisher.push(SECOND)
    fixed = fixed_tag(CELL, staged.plan.key)
    publisher.repository.put_manifest(other.image.manifest, MANIFEST_TYPE, fixed)
    refusal = publisher.refusal()
    assert is_failure(refusal, "tag-taken")
    assert publisher.tags() == {fixed: other.digest}


def test_a_refused_image_does_not_keep_others_from_their_tags(publisher: Publisher) -> None:
    tiny, other = publisher.push(CELL, SECOND)
    publisher.vouch(other)
    outcome = publisher.promote(CELL, SECOND)
    assert [one.image.digest for one in outcome.promoted] == [other.digest]
    assert len(outcome.refused) == 1
    assert set(publisher.tags()) == {"other", "other-v1.0", fixed_tag(SECOND, other.plan.key)}
    assert tiny.digest not in publisher.tags().values()


def test_a_rollback_during_a_promotion_is_not_undone_by_it(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = publisher.publish_changed(1024, 2048)

    def pass_then_roll_back(*arguments: Any) -> Standing:
        stands = standing(*arguments)
        publisher.rollback()
        return stands

    monkeypatch.setattr("imagefactory.publish.pipeline.standing", pass_then_roll_back)
    with raises("race-lost", match="won the race"):
        publisher.promote()
    assert publisher.tags()["tiny"] == first
