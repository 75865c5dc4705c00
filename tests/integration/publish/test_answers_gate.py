"""Answers in a real registry: what is attached, what is compared, and who decides that they may change."""

import json
import math
import shutil
from datetime import UTC, datetime
from typing import Any

import pytest

from imagefactory.check.answers.result import PANEL, AnswersResult
from imagefactory.check.smoke.containers import ContainerError
from imagefactory.ci.night import plan_night
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import Payload
from imagefactory.publish import answers
from imagefactory.publish.dossier import ANSWERS_TYPE, Dossier
from imagefactory.publish.history import history
from imagefactory.publish.write import Promotion
from imagefactory.store.digests import Digest
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import is_failure, refused
from tests.fixtures.publishing import REQUIRED, Publisher, passing
from tests.fixtures.small_factory import CELL
from tests.integration.site.test_registry import files_of
from tests.unit.check.answers.test_comparison import PLACES, measured

OTHER = [{6: math.log(0.25), 7: math.log(0.5)}, PLACES[1]]
"""Another first choice at one of two places: a mask or a scale that is wrong looks so."""
Places = list[dict[int, float]]


class Servers:
    """Stands in for starts of images: says what each makes of the panel, and counts the starts."""

    def __init__(self, publisher: Publisher) -> None:
        self.publisher = publisher
        self.started: list[str] = []
        (publisher.factory.root / PANEL).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / PANEL, publisher.factory.root / PANEL)

    def publish(self, says: Places = PLACES, failure: Exception | None = None, **options: Any) -> Promotion:
        def answer(_: object, digest: Digest) -> AnswersResult:
            if failure:
                raise failure
            self.started.append(digest)
            return measured(says, {"digest": digest})

        self.started = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(answers, "measure", answer)
            return self.publisher.publish_with(passing, CELL, **({"answers": True} | options))

    def publish_changed(self, number: int, says: Places = PLACES, **options: Any) -> Digest:
        self.publisher.change(number)
        [promoted] = self.publish(says, **options).promoted
        return promoted.image.digest

    def history(self) -> list[str]:
        return [line.answers for line in history(self.publisher.catalog, ["tiny"], CELL.platform)]


@pytest.fixture
def servers(publisher: Publisher) -> Servers:
    return Servers(publisher)


def test_an_image_is_compared_with_the_one_that_its_tag_names(servers: Servers) -> None:
    publisher = servers.publisher
    first = servers.publish_changed(1000)
    assert servers.started == [first]
    second = servers.publish_changed(1100)
    assert servers.started == [second, second]  # what the first says is attached to it
    servers.publish()
    assert servers.started == []
    where = f"measured on linux/amd64, {datetime.now(UTC):%Y-%m-%d}"
    same = f"same answers as {first[:19]}, {where}"
    assert servers.history() == [f"answers {where}; there was nothing to compare with", same, same]
    third = servers.publish_changed(1200, answers=False)
    assert servers.started == []
    assert servers.history()[-1] == "answers not measured"
    fourth = servers.publish_changed(1300)
    assert servers.started == [fourth, third, fourth]  # nothing is attached to the third
    found = publisher.invoke("verify", "--image", f"{publisher.repository.reference.name}@{fourth}")
    assert f"answers       ok          same answers as {third[:19]}, {where}" in found.stderr
    files, told = files_of(publisher), f"same answers as {third[:19]}, {where}"
    assert json.loads(files[f"images/{CELL.slug}.json"])["answers"] == told
    pages = (f"images/{CELL.slug}.html", "models/tiny.html", "starts-data.js")
    assert [name for name in pages if told[1:] not in files[name].decode()] == []


def test_an_image_whose_answers_changed_gets_no_tag_until_somebody_gives_a_reason(servers: Servers) -> None:
    publisher = servers.publisher
    first = servers.publish_changed(1000)
    publisher.change(1100)
    [refusal] = servers.publish(OTHER).refused
    assert is_failure(refusal, "answers-changed")
    assert f"compared with {first[:19]}" in refusal.why
    assert "KL 8.7e-02, 50.00% of first choices agree; between two starts of it: KL 0.0e+00" in refusal.why
    assert '--answers-changed "REASON"' in refusal.fix
    assert publisher.tags()["tiny"] == first

    again = servers.publish(failure=ContainerError("the server ended"), retest=True)
    assert is_failure(again.refused[0], "answers-changed")  # it is known already
    night = plan_night(publisher.project, publisher.repository, [CELL])
    [held] = night.held
    assert (held.what, held.why) == (refusal.what, refusal.why)
    assert plan_night(publisher.project, publisher.repository, [CELL], retry=True).works[0].needs == ("promote",)

    assert refused(publisher.invoke("promote", "--target", "tiny"), "answers-changed")
    unreadable = publisher.invoke("promote", "--target", "tiny", "--answers-changed", "schärfer")
    assert refused(unreadable, "bad-option")
    done = publisher.invoke("promote", "--target", "tiny", "--answers-changed", "the mask was wrong before")
    assert done.returncode == 0, done.stderr
    changed = servers.history()[-1]
    assert changed.startswith("answers changed: the mask was wrong before (KL 8.7e-02 is above 1.0e-08); compared with")
    assert "the mask was wrong before" in publisher.invoke("history", "--target", "tiny").stdout.replace("\n", " ")
    # It is decided for this image, and not for the next one.
    assert servers.publish(OTHER).refused == []
    publisher.change(1200)
    assert is_failure(servers.publish(PLACES).refused[0], "answers-changed")


def test_an_image_that_cannot_be_measured_is_held_if_the_one_before_could_be(servers: Servers) -> None:
    servers.publish_changed(1000)
    servers.publisher.change(1100)
    [refusal] = servers.publish(failure=ContainerError("status 400: out of range float values")).refused
    assert is_failure(refusal, "answers-changed")
    assert "the image before could be measured, this one cannot: status 400" in refusal.why
    line = ("promote", "--target", "tiny", "--answers-changed", "the panel is too long for it")
    assert servers.publisher.invoke(*line).returncode == 0


def test_garbage_and_records_from_the_future_decide_nothing(servers: Servers) -> None:
    publisher = servers.publisher
    servers.publish_changed(1000)
    publisher.change(1100)
    assert servers.publish(OTHER).refused
    records = [json.loads(path.read_text()) for path in publisher.factory.root.rglob(answers.RECORD)]
    [held] = [record for record in records if record["verdict"] == "changed"]
    forged = held | {"verdict": "same", "why": "", "started": "2036-01-01T00:00:00Z"}
    for content in (b"xx", json.dumps(forged).encode()):
        attachment = referrers.Attachment(ANSWERS_TYPE, [Payload(ANSWERS_TYPE, content)], {})
        Dossier(publisher.repository, held["digest"]).attach(attachment)
    assert refused(publisher.invoke("promote", "--target", "tiny"), "answers-changed")


def test_answers_that_are_no_numbers_are_changed(servers: Servers) -> None:
    servers.publish_changed(1000)
    servers.publisher.change(1100)
    [refusal] = servers.publish([dict.fromkeys(place, math.nan) for place in PLACES]).refused
    assert is_failure(refusal, "answers-changed")
    assert "NaN" in refusal.why


def test_what_cannot_be_told_holds_an_image_only_where_the_gpu_level_is_required(servers: Servers) -> None:
    publisher = servers.publisher
    servers.publish_changed(1000, answers=False)
    publisher.change(1100)
    broken = ContainerError("the server ended with code 1: no memory")
    assert servers.publish(failure=broken).refused == []  # the image before cannot be measured, either
    assert servers.history()[-1].startswith("cannot tell whether answers changed: the server ended with code 1")
    levels = ", ".join((*REQUIRED, "gpu"))
    publisher.factory.edit_matrix("base: bookworm", f"base: bookworm, smoke: [{levels}]")
    publisher.change(1200)
    [refusal] = servers.publish(failure=broken, answers=False).refused
    assert is_failure(refusal, "answers-changed")
    assert "may give other answers" in refusal.what
    [promoted] = servers.publish(answers=False, retest=True).promoted  # the level gpu ran
    attached = referrers.find(publisher.repository, promoted.image.digest, ANSWERS_TYPE)
    assert len(attached) == 2
