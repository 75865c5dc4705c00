"""Somebody swaps a layer, in the registry or in the cache: the image is neither signed nor tagged, or not pushed."""

import pytest

from imagefactory.ci.night import plan_night
from imagefactory.oci.image import Blob, Image
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.image_push import Pushable, push_image
from imagefactory.plan.plan import make_image
from imagefactory.publish.dossier import SMOKE_TYPE
from imagefactory.publish.staging import Staged
from imagefactory.publish.tags import staging_tag
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, digest_of
from tests.fixtures.failures import raises, refused
from tests.fixtures.platforms import MACHINE
from tests.fixtures.publishing import Publisher, attach_record, smoke_record
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
    assert recorded or "./inv build" in done.stderr
    assert publisher.tags() == {}
    attached = {item.artifact_type for item in referrers.find(publisher.repository, swapped)}
    assert attached == {SMOKE_TYPE}, "only what the attacker attached"


def test_a_night_builds_again_what_was_swapped_and_nothing_that_is_not_on_record(publisher: Publisher) -> None:
    staged = publisher.push_tested()
    [work] = plan_night(publisher.project, publisher.repository, [CELL]).works
    assert work.needs == ("promote",)
    swap_a_layer(publisher, staged)
    [work] = plan_night(publisher.project, publisher.repository, [CELL]).works
    expected = (("image", "smoke", "promote"), "never published; another image is in its place")
    assert (work.needs, work.reason) == expected
    forget_the_record(publisher)
    night = plan_night(publisher.project, publisher.repository, [CELL])
    assert night.works == ()
    [broken] = night.broken
    assert "does not record every layer" in broken.what


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
