"""A layer that was changed in the cache does not reach a registry."""

from imagefactory.store.cache import Store
from tests.fixtures.failures import raises
from tests.fixtures.publishing import Publisher
from tests.unit.assemble.test_changed_cache import poison


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
