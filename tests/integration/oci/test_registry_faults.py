"""Pushing through a faulty network: each fault alone."""

import random
from collections.abc import Callable

import pytest

from imagefactory.errors import RegistryError
from imagefactory.oci.registry.image_push import push_image
from imagefactory.oci.registry.repository import Repository
from tests.fixtures.fault_proxy import Fault, FaultProxy, Request
from tests.fixtures.registries import GuardedRegistry
from tests.fixtures.small_images import small_image, what_is_missing

LAYER = random.Random(7).randbytes(700_000)
"""Larger than the buffers of sockets, so that the client sees a reset while it sends."""


def once(what: str, fault: Fault, times: int = 1) -> Callable[[Request], Fault | None]:
    """Inject a fault into the first requests of a kind."""
    left = times

    def choose(request: Request) -> Fault | None:
        nonlocal left
        if request.what == what and left:
            left -= 1
            return fault
        return None

    return choose


@pytest.fixture
def repository(guarded_registry: GuardedRegistry, fault_proxy: FaultProxy) -> Repository:
    """Open a new repository behind the proxy."""
    return guarded_registry.repository(at=fault_proxy.address)


FAULTS = [
    Fault("throttled"),
    Fault("throttled", read=True),
    Fault("unavailable", 500, read=True),
    Fault("unavailable", 502),
    Fault("unavailable", 503, read=True),
    Fault("reset"),
    Fault("unclear"),
    Fault("unclear", status=0),
    Fault("torn"),
    Fault("expired"),
]
REQUESTS = ["HEAD blob", "POST upload", "PUT upload", "PUT manifest"]
ALWAYS = [
    ("HEAD blob", Fault("throttled")),
    ("POST upload", Fault("unavailable", 502)),
    ("PUT upload", Fault("reset")),
    ("PUT upload", Fault("expired")),
    ("PUT manifest", Fault("unavailable", 503, read=True)),
]
"""The others run with --all."""


@pytest.mark.parametrize(
    ("what", "fault"),
    [
        pytest.param(
            what,
            fault,
            marks=() if (what, fault) in ALWAYS else pytest.mark.slow,
            id=f"{what}-{fault.kind}-{fault.status}-{'read' if fault.read else 'unread'}",
        )
        for what in REQUESTS
        for fault in FAULTS
    ],
)
def test_push_survives_any_single_fault(
    repository: Repository, fault_proxy: FaultProxy, what: str, fault: Fault
) -> None:
    fault_proxy.choose = once(what, fault)
    pushed = push_image(repository, small_image([LAYER]), tag="latest")
    assert fault_proxy.account.faults == {fault.kind: 1}
    assert what_is_missing(repository, "latest") == []
    assert repository.resolve("latest") == pushed.digest


def test_tag_stays_when_the_registry_rejects_a_manifest(repository: Repository, fault_proxy: FaultProxy) -> None:
    first = push_image(repository, small_image([LAYER], "first"), tag="latest")
    fault_proxy.choose = once("PUT manifest", Fault("unavailable", 500), times=99)
    with pytest.raises(RegistryError, match="failed to write a manifest") as failure:
        push_image(repository, small_image([LAYER], "second"), tag="latest")
    assert "500" in failure.value.why
    fault_proxy.calm()
    assert repository.resolve("latest") == first.digest
    pushed = push_image(repository, small_image([LAYER], "second"), tag="latest")
    assert fault_proxy.account.requests["PUT upload"] == 0
    assert repository.resolve("latest") == pushed.digest
