"""Where an image stands: decided from its plan, its attachments and the catalog, without a request."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from imagefactory.check.answers.record import AnswersRecord
from imagefactory.oci.image import MANIFEST_TYPE
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.make import make_plan
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.standing import Gate, Standing, standing
from imagefactory.publish.stored_catalog import Snapshot
from imagefactory.publish.vulnerabilities import Vulnerability, VulnerabilityRecord
from imagefactory.store.digests import digest_of
from tests.fixtures.failures import raises
from tests.fixtures.publishing import smoke_record
from tests.fixtures.small_factory import CELL, SmallFactory

IMAGE = digest_of(b"an image")
DAY = datetime(2026, 11, 1, tzinfo=UTC)


class Judge:
    """Judges an image of the tiny model with a registry that must not be asked."""

    def __init__(self, factory: SmallFactory) -> None:
        self.factory = factory
        self.repository = Repository.open("127.0.0.1:9/a/b")

    @property
    def key(self) -> Any:
        return make_plan(self.factory.project, CELL).key

    def stands(self, catalog: Catalog | None = None, attached: dict[str, Any] | None = None, **asked: Any) -> Standing:
        project = self.factory.project
        gate = Gate(project, self.repository, first=True, **asked)
        vars(gate)["snapshot"] = Snapshot(catalog or Catalog(), None)
        dossier = Dossier.begin(self.repository, IMAGE, Descriptor(MANIFEST_TYPE, IMAGE, 1), is_empty=True)
        vars(dossier).update(attached or {"smoke_records": (smoke_record(IMAGE, self.key),)})
        return standing(gate, make_plan(project, CELL), dossier)

    def answers(self, verdict: Any, **more: Any) -> dict[str, Any]:
        record = AnswersRecord(
            digest=IMAGE, plan_key=self.key, target="tiny", panel=1, started=DAY, verdict=verdict, why="KL", **more
        )
        return {"smoke_records": (smoke_record(IMAGE, self.key),), "answers_records": (record,)}


@pytest.fixture
def judge(small_factory: SmallFactory) -> Judge:
    return Judge(small_factory)


def test_an_image_that_passed_its_tests_is_promotable_and_one_that_nobody_tested_needs_tests(judge: Judge) -> None:
    assert judge.stands().refusals == ()
    untested = judge.stands(attached={"smoke_records": ()})
    assert (untested.needs, untested.lasting) == (("tests",), None)
    other = judge.stands(attached={"smoke_records": (smoke_record(digest_of(b"another"), judge.key),)})
    assert other.needs == ("tests",), "a record counts for the image that it names"
    with raises("not-promotable", match="no record for this digest"):
        untested.require_promotable()


def test_a_failure_lasts_until_somebody_asks_for_another_test(judge: Judge) -> None:
    failed = {"smoke_records": (smoke_record(IMAGE, judge.key, failing=["serve"]),)}
    lasting = judge.stands(attached=failed).lasting
    assert lasting is not None
    assert "serve: failed" in lasting.why
    retried = judge.stands(attached=failed, retry=True)
    assert (retried.needs, retried.lasting) == (("tests",), None)


def test_changed_answers_last_until_somebody_gives_a_reason_or_measures_again(judge: Judge) -> None:
    changed = judge.answers("changed")
    lasting = judge.stands(attached=changed).lasting
    assert lasting is not None
    assert "gives other answers" in lasting.what
    assert judge.stands(attached=changed, retry=True).needs == ("answers",)
    accepted = judge.stands(attached=changed, answers_changed="a mask was wrong")
    assert accepted.refusals == ()
    assert accepted.answers is not None
    assert accepted.answers.accepted == "a mask was wrong"
    assert judge.stands(attached=judge.answers("changed", accepted="it was wrong")).refusals == ()
    assert judge.stands(attached=judge.answers("cannot tell")).refusals == (), "no GPU is required here"


def test_a_scan_decides_only_if_the_matrix_asks_for_it_and_the_next_scan_may_decide_otherwise(judge: Judge) -> None:
    judge.factory.edit_matrix("models:", "vulnerabilities: {severity: critical}\nmodels:")
    assert judge.stands().needs == ("scan",)
    bad = Vulnerability(id="CVE-1", severity="critical", package="wheel torch", version="1", fixed_in=("2",))
    scan = VulnerabilityRecord(digest=IMAGE, scanned=DAY, scanner="grype", database="2026-11-01", found=(bad,))
    tested = {"smoke_records": (smoke_record(IMAGE, judge.key),)}
    refused = judge.stands(attached={**tested, "scan": scan})
    assert (refused.needs, refused.lasting) == (("scan",), None)
    with raises("vulnerable", match="does not allow"):
        refused.require_promotable()
    assert judge.stands(attached={**tested, "scan": scan.model_copy(update={"found": ()})}).refusals == ()


def test_what_a_prune_is_deleting_gets_no_tag(judge: Judge) -> None:
    with raises("being-pruned"):
        judge.stands(replace(Catalog(), deleting=(IMAGE,))).require_promotable()
