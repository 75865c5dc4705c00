"""Pushing through a faulty network: each fault alone, and many pushes with random faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from imagefactory.errors import FactoryError, RegistryError
from imagefactory.oci.registry.image_push import Pushable, push_image
from imagefactory.oci.registry.repository import Repository
from imagefactory.store.digests import Digest, digest_of
from tests.fixtures.fault_proxy import Fault, FaultProxy, Kind, Request
from tests.fixtures.registries import GuardedRegistry
from tests.fixtures.small_images import small_image, what_is_missing

PUSHES = 80
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


def upload(repository: Repository) -> str:
    return repository.upload(digest_of(LAYER), len(LAYER), small_image([LAYER]).parts[0].open)


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
    Fault("slow"),
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
    assert fault_proxy.account.needless == []


@pytest.mark.parametrize("status", [0, 502])
def test_upload_is_not_repeated_when_its_commit_succeeded_despite_an_error(
    repository: Repository, fault_proxy: FaultProxy, status: int
) -> None:
    fault_proxy.choose = once("PUT upload", Fault("unclear", status))
    assert upload(repository) == "uploaded"
    assert fault_proxy.account.requests["PUT upload"] == 1
    assert fault_proxy.account.received == len(LAYER)


def test_upload_restarts_after_a_broken_connection(repository: Repository, fault_proxy: FaultProxy) -> None:
    fault_proxy.choose = once("PUT upload", Fault("reset"), times=3)
    assert upload(repository) == "uploaded"
    assert fault_proxy.account.requests["PUT upload"] == 4
    assert repository.blob(digest_of(LAYER)) == LAYER


def test_token_is_replaced_when_it_expires_during_an_upload(
    guarded_registry: GuardedRegistry, repository: Repository, fault_proxy: FaultProxy
) -> None:
    fault_proxy.choose = once("PUT upload", Fault("expired"))
    before = len(guarded_registry.tokens.requests)
    assert upload(repository) == "uploaded"
    assert len(guarded_registry.tokens.requests) - before == 2


def test_tag_stays_when_the_registry_rejects_a_manifest(
    repository: Repository, fault_proxy: FaultProxy
) -> None:
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


def test_push_gives_up_when_the_registry_stays_busy(repository: Repository, fault_proxy: FaultProxy) -> None:
    fault_proxy.choose = once("PUT upload", Fault("throttled"), times=99)
    with pytest.raises(RegistryError) as failure:
        push_image(repository, small_image([LAYER]), tag="latest")
    assert failure.value.name in {"registry-failed", "registry-unreachable"}
    assert repository.manifest("latest") is None


@pytest.mark.parametrize("fault", [Fault("torn"), Fault("expired")])
def test_download_continues_after_a_fault(
    repository: Repository, fault_proxy: FaultProxy, fault: Fault
) -> None:
    push_image(repository, small_image([LAYER]))
    fault_proxy.choose = once("GET blob", fault)
    assert repository.blob(digest_of(LAYER)) == LAYER
    assert fault_proxy.account.requests["GET blob"] == 2


# --- random faults -------------------------------------------------------------------------------


class Trouble:
    """Chooses faults at random; the same seed gives the same faults for the same requests."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.rate = 0.0

    def __call__(self, request: Request) -> Fault | None:
        if self._chance.random() >= self.rate:
            return None
        # Some faults can only happen to some requests.
        kinds: list[Kind] = ["throttled", "unavailable", "unavailable", "reset", "slow", "expired"]
        if request.method == "PUT":
            kinds += ["unclear", "unclear"]
        if request.method == "GET":
            kinds += ["torn"]
        status = self._chance.choice([500, 502, 503])
        kind = self._chance.choice(kinds)
        if kind == "unclear":
            status = self._chance.choice([0, 500, 502])
        return Fault(kind, status, self._chance.uniform(0.0, 0.05), read=self._chance.random() < 0.5)


def images(chance: random.Random) -> list[Pushable]:
    """Make images that share some layers, as models on the same vLLM do."""
    layers = [chance.randbytes(chance.choice([200, 5_000, 60_000, 150_000])) for _ in range(120)]
    return [
        small_image(chance.sample(layers, chance.randint(1, 5)), name=str(number)) for number in range(PUSHES)
    ]


@pytest.mark.slow
def test_every_push_under_random_faults_completes_or_fails_clearly(
    guarded_registry: GuardedRegistry, fault_proxy: FaultProxy, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(20_260_801)
    trouble = Trouble(random.Random(chance.random()))
    fault_proxy.choose = trouble
    names = [f"faults/{chance.getrandbits(48):x}" for _ in range(4)]
    behind = {name: guarded_registry.repository(name, at=fault_proxy.address) for name in names}
    direct = {name: guarded_registry.repository(name) for name in names}
    expected: dict[str, Digest | None] = dict.fromkeys(names)
    complete, failed = 0, Counter[str]()
    made = images(chance)
    sizes = {part.digest: part.size for image in made for part in image.parts}
    for number, image in enumerate(made):
        name = names[number % len(names)]
        # For one push in ten, the network hardly works.
        trouble.rate = 0.85 if number % 10 == 9 else chance.choice([0.0, 0.1, 0.3])
        try:
            pushed = push_image(behind[name], image, tag="latest")
        except FactoryError as error:
            failed[type(error).__name__] += 1
            # The registry may have accepted the manifest although its answer was an error.
            assert direct[name].resolve("latest") in (expected[name], digest_of(image.manifest))
        else:
            complete += 1
            assert pushed.digest == digest_of(image.manifest)
            assert direct[name].resolve("latest") == pushed.digest
        expected[name] = direct[name].resolve("latest")
        if expected[name] is not None:
            assert what_is_missing(direct[name], "latest") == []
    account = fault_proxy.account
    assert complete + sum(failed.values()) == PUSHES
    assert complete >= PUSHES * 0.85
    assert set(failed) <= {"RegistryError", "RegistryUnreachableError"}
    assert account.needless == []
    assert max(account.committed.values()) == 1
    assert set(account.faults) == {"throttled", "unavailable", "reset", "slow", "expired", "unclear"}
    for key, value in {
        "complete": complete,
        "failed": dict(failed),
        "faults": dict(account.faults),
        "requests": dict(account.requests),
        "uploads committed": sum(account.committed.values()),
        "uploads sent again although the registry had them": len(account.needless),
        "bytes committed": sum(sizes[Digest(digest)] for _, digest in account.committed),
        "bytes received": account.received,
    }.items():
        record_property(key, value)
        print(f"{key}: {value}")  # noqa: T201 - pytest shows it with -s and in reports
