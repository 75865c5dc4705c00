"""Somebody swaps a layer, in the registry or in the cache: the image is neither signed nor tagged, or not pushed."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from imagefactory.ci.night import plan_night
from imagefactory.errors import FactoryError
from imagefactory.oci.image import Blob, Image
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.image_push import Pushable, push_image
from imagefactory.plan.plan import make_image
from imagefactory.publish.handovers import handover_folder, write_handover
from imagefactory.publish.records import SMOKE_TYPE, attach_record
from imagefactory.publish.staging import Staged
from imagefactory.publish.tags import staging_tag
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, digest_of
from tests.fixtures.failures import is_failure, raises, refused
from tests.fixtures.platforms import MACHINE
from tests.fixtures.publishing import Publisher, promote_cells, smoke_record
from tests.fixtures.small_factory import CELL
from tests.unit.assemble.test_changed_cache import poison

TARGET = f"tiny@1.0/cpu/{MACHINE}"
EVIL = b"a layer of somebody else"


def swapped_image(staged: Staged) -> Image:
    """Return the image with another last layer."""
    evil = Blob(diff_id=digest_of(EVIL), digest=digest_of(EVIL), size=len(EVIL), unpacked=len(EVIL))
    return make_image(staged.plan, [*staged.image.layers[:-1], evil])


def swap_a_layer(publisher: Publisher, staged: Staged) -> Digest:
    """Put an image with another last layer under the staging tag, with a smoke record of its own."""
    image = swapped_image(staged)
    file = publisher.factory.folder / "evil"
    file.write_bytes(EVIL)
    store = publisher.project.store
    pushable = Pushable.of_image(image, lambda digest: file if digest == digest_of(EVIL) else store.blob(digest))
    push_image(publisher.repository, pushable, tag=staging_tag(staged.plan.key))
    attach_record(publisher.repository, smoke_record(image.digest, staged.plan.key))
    return image.digest


def forget_the_record(publisher: Publisher) -> None:
    """Make the checkout one of another job: what the push recorded is not in it."""
    publisher.project.known_layers.unlink()


@pytest.mark.parametrize(("recorded", "error"), [(True, "swapped-image"), (False, "no-record")])
def test_an_image_with_a_swapped_layer_is_neither_signed_nor_tagged(
    publisher: Publisher, *, recorded: bool, error: str
) -> None:
    swapped = swap_a_layer(publisher, publisher.push_tested())
    if not recorded:
        forget_the_record(publisher)
    done = publisher.invoke("promote", "--target", TARGET)
    assert refused(done, error), done.stderr
    assert recorded or "./inv publish" in done.stderr
    assert publisher.tags() == {}
    attached = {item.artifact_type for item in referrers.find(publisher.repository, swapped)}
    assert attached == {SMOKE_TYPE}, "only what the attacker attached"


def pushed_by_the_image_job(publisher: Publisher) -> Staged:
    """Push as the job `image` does, and go on in the checkout of another job, which has its hand-over."""
    staged = publisher.push_tested()
    write_handover(publisher.project, staged.plan, staged.image)
    forget_the_record(publisher)
    return staged


def handover(publisher: Publisher) -> Path:
    [file] = handover_folder(publisher.project).glob("*.json")
    return file


def promote(publisher: Publisher) -> list[FactoryError]:
    """Promote as the nightly does, and return what is refused."""
    try:
        return promote_cells(publisher.project, publisher.repository, CELL).refused
    except FactoryError as error:
        return [error]


def test_an_image_without_a_record_is_promoted_as_the_image_job_handed_it_on(publisher: Publisher) -> None:
    done = publisher.invoke("push", "--target", TARGET)
    assert done.returncode == 0, done.stderr
    staged = publisher.push_tested()
    forget_the_record(publisher)
    done = publisher.invoke("promote", "--target", TARGET)
    assert done.returncode == 0, done.stderr
    assert publisher.tags()["latest"] == staged.digest


def test_a_hand_over_refuses_what_was_swapped_after_the_push(publisher: Publisher) -> None:
    swap_a_layer(publisher, pushed_by_the_image_job(publisher))
    for command in ("promote", "ci.smoke"):
        done = publisher.invoke(command, "--target", TARGET)
        assert refused(done, "swapped-image"), done.stderr
    assert publisher.tags() == {}


def test_a_hand_over_does_not_overrule_the_record(publisher: Publisher) -> None:
    staged = pushed_by_the_image_job(publisher)
    publisher.push()  # records the layers again
    swap_a_layer(publisher, staged)
    write_handover(publisher.project, staged.plan, swapped_image(staged))
    [refusal] = promote(publisher)
    assert is_failure(refusal, "bad-handover")
    assert "contradicts the record" in refusal.what
    assert publisher.tags() == {}


def test_two_hand_overs_that_disagree_are_refused(publisher: Publisher) -> None:
    staged = pushed_by_the_image_job(publisher)
    second = handover(publisher).parent / "another-artifact" / "copy.json"
    second.parent.mkdir()
    shutil.copy(handover(publisher), second)
    assert promote(publisher) == []
    write_handover(publisher.project, staged.plan, swapped_image(staged))
    [refusal] = promote(publisher)
    assert is_failure(refusal, "bad-handover")
    assert "Two jobs" in refusal.what


def test_a_damaged_hand_over_is_refused(publisher: Publisher) -> None:
    pushed_by_the_image_job(publisher)
    file = handover(publisher)
    text = file.read_text("utf-8")
    for old, new in (
        ("{", "nonsense"),
        ("tiny", "other"),
        ('"format": 1', '"format": 2'),
        ('"key": "', '"key": "0'),
        ('"digest": "sha256:', '"digest": "sha256:0'),
        ('"size": ', '"size": 1'),
    ):
        assert old in text
        file.write_text(text.replace(old, new, 1), "utf-8")
        [refusal] = promote(publisher)
        assert is_failure(refusal, "bad-handover"), new
    assert publisher.tags() == {}
    file.write_text(text, "utf-8")
    assert promote(publisher) == []


def test_a_night_builds_again_what_nobody_vouches_for(publisher: Publisher) -> None:
    staged = publisher.push_tested()
    forget_the_record(publisher)

    def needs() -> tuple[Sequence[str], str]:
        [work] = plan_night(publisher.project, publisher.repository, [CELL]).works
        return work.needs, work.reason

    assert needs() == (("image", "smoke", "promote"), "never published; pushed, but not on record")
    publisher.push()
    assert needs()[0] == ("promote",)
    swap_a_layer(publisher, staged)
    assert needs() == (("image", "smoke", "promote"), "never published; another image is in its place")


def test_changed_layer_is_not_pushed(publisher: Publisher) -> None:
    [built] = publisher.factory.build()
    blobs = [Store(publisher.factory.cache).blob(layer.digest) for layer in built.image.layers]
    contents = [blob.read_bytes() for blob in blobs]
    for blob in blobs:
        poison(blob)
    with raises("wrong-digest") as caught:
        publisher.push()
    assert caught.value.where in map(str, blobs)
    assert not any(publisher.repository.has_blob(layer.digest) for layer in built.image.layers)
    assert publisher.repository.resolve(built.image.digest) is None
    for blob, content in zip(blobs, contents, strict=True):
        blob.write_bytes(content)
    [staged] = publisher.push()
    assert publisher.repository.resolve(built.image.digest) == staged.image.digest
