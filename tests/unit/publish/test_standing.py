"""Where an image stands: decided from its plan, its attachments and the catalog, without a request."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from imagefactory.check.answers.record import AnswersRecord
from imagefactory.check.smoke.record import SmokeRecord
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.publish.catalog import Catalog
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.standing import Facts, Standing, Terms, standing
from imagefactory.publish.tag_owners import tags_of
from imagefactory.publish.vulnerabilities import Vulnerability, VulnerabilityRecord
from imagefactory.store.digests import Digest, digest_of
from tests.fixtures.failures import raises
from tests.fixtures.publishing import smoke_record
from tests.fixtures.small_factory import CELL, SmallFactory

IMAGE = digest_of(b"an image")
REFERENCE = Reference.parse("127.0.0.1:9/a/b")
DAY = datetime(2026, 11, 1, tzinfo=UTC)


class Judge:
    """Judges an image of the tiny model by facts."""

    def __init__(self, factory: SmallFactory) -> None:
        self.factory = factory

    @property
    def plan(self) -> Plan:
        return make_plan(self.factory.project, CELL)

    def record(self, digest: Digest = IMAGE, **how: Any) -> SmokeRecord:
        return smoke_record(digest, self.plan.key, **how)

    def stands(self, catalog: Catalog | None = None, facts: dict[str, Any] | None = None, **asked: Any) -> Standing:
        project, plan = self.factory.project, self.plan
        catalog = catalog or Catalog()
        tags = tags_of(project.matrix, catalog, CELL, plan.key, DAY.date())
        known = Facts(REFERENCE, catalog, tags, {tags.fixed: None}, IMAGE, self.record())
        return standing(Terms(project, **asked), plan, replace(known, **facts or {}))

    def answers(self, verdict: Any, **more: Any) -> dict[str, Any]:
        record = AnswersRecord(
            digest=IMAGE, plan_key=self.plan.key, target="tiny", panel=1, started=DAY, verdict=verdict, why="KL", **more
        )
        return {"answers": record}


@pytest.fixture
def judge(small_factory: SmallFactory) -> Judge:
    return Judge(small_factory)


def test_an_image_that_passed_its_tests_is_promotable_and_one_that_nobody_tested_needs_tests(judge: Judge) -> None:
    assert judge.stands().refusals == ()
    untested = judge.stands(facts={"smoke": None})
    assert (untested.needs, untested.lasting) == (("tests",), None)
    with raises("not-promotable", match="no record for this digest"):
        untested.require_promotable()


def test_a_record_counts_for_the_image_and_the_plan_that_it_names(judge: Judge) -> None:
    dossier, key = Dossier(Repository.open(REFERENCE), IMAGE), judge.plan.key
    vars(dossier)["smoke_records"] = (judge.record(digest_of(b"another")), smoke_record(IMAGE, "0" * 64))
    assert dossier.smoke(key) is None
    vars(dossier)["smoke_records"] += (judge.record(),)
    assert dossier.smoke(key) == judge.record()


def test_a_failure_lasts_until_somebody_asks_for_another_test(judge: Judge) -> None:
    failed = {"smoke": judge.record(failing=["serve"])}
    lasting = judge.stands(facts=failed).lasting
    assert lasting is not None
    assert "serve: failed" in lasting.why
    retried = judge.stands(facts=failed, retry=True)
    assert (retried.needs, retried.lasting) == (("tests",), None)


def test_changed_answers_last_until_somebody_gives_a_reason_or_measures_again(judge: Judge) -> None:
    changed = judge.answers("changed")
    lasting = judge.stands(facts=changed).lasting
    assert lasting is not None
    assert "gives other answers" in lasting.what
    assert judge.stands(facts=changed, retry=True).needs == ("answers",)
    accepted = judge.stands(facts=changed, answers_changed="a mask was wrong")
    assert accepted.refusals == ()
    assert accepted.answers is not None
    assert accepted.answers.accepted == "a mask was wrong"
    assert judge.stands(facts=judge.answers("changed", accepted="it was wrong")).refusals == ()
    assert judge.stands(facts=judge.answers("cannot tell")).refusals == (), "no GPU is required here"


def test_a_scan_decides_only_if_the_matrix_asks_for_it_and_the_next_scan_may_decide_otherwise(judge: Judge) -> None:
    judge.factory.edit_matrix("models:", "vulnerabilities: {severity: critical}\nmodels:")
    assert judge.stands().needs == ("scan",)
    bad = Vulnerability(id="CVE-1", severity="critical", package="wheel torch", version="1", fixed_in=("2",))
    scan = VulnerabilityRecord(digest=IMAGE, scanned=DAY, scanner="grype", database="2026-11-01", found=(bad,))
    refused = judge.stands(facts={"scan": scan})
    assert (refused.needs, refused.lasting) == (("scan",), None)
    with raises("vulnerable", match="does not allow"):
        refused.require_promotable()
    assert judge.stands(facts={"scan": scan.model_copy(update={"found": ()})}).refusals == ()


def test_what_a_prune_is_deleting_gets_no_tag(judge: Judge) -> None:
    with raises("being-pruned"):
        judge.stands(replace(Catalog(), deleting=(IMAGE,))).require_promotable()
