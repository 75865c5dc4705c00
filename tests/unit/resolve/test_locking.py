"""Making and checking locks: determined, whole or not at all, and drift is named."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefactory.compile.toolchain_locks import check_all_locks
from imagefactory.errors import FactoryError
from imagefactory.errors.locks import (
    CompileNeededError,
    IndexUnreachableError,
    LockDriftError,
    LockEditedError,
    PathConflictError,
    WheelMissingError,
)
from imagefactory.errors.matrix import UnknownNameError
from imagefactory.errors.store import DownloadError
from imagefactory.locks.files import WheelLock
from imagefactory.locks.project import Project, locked_cells
from imagefactory.matrix.targets import select
from imagefactory.resolve.making import LockResult, make_locks
from tests.fixtures.checkouts import Checkout
from tests.fixtures.servers import Answer, SimpleIndex, serving
from tests.fixtures.wheels import COMPILER, WheelFactory

TARGET = "gemma4-31b@0.32.0/gb10"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def index(
    simple_index: SimpleIndex, wheel_factory: WheelFactory, monkeypatch: pytest.MonkeyPatch
) -> SimpleIndex:
    """Serve a vLLM that needs two more packages, and the compiler that the arch asks for."""
    simple_index.add(
        wheel_factory("vllm", "0.32.0", requires=["torch==2.0", "small>=1"]),
        wheel_factory("torch", "2.0", tag="cp311-cp311-manylinux_2_28_aarch64"),
        wheel_factory("small", "1.0"),
        *(wheel_factory(name, "13.0") for name in COMPILER),
    )
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url)
    return simple_index


def lock(
    checkout: Checkout, *targets: str, upgrade: tuple[str, ...] = (), models: bool = False
) -> list[LockResult]:
    project = Project(checkout.root)
    cells = select(project.matrix, targets or [TARGET])
    return list(make_locks(project, cells, upgrade=upgrade, models=models, say=lambda _: None))


def wheel_lock(checkout: Checkout) -> Path:
    return checkout.locks / "0.32.0" / "gb10-linux-arm64.toml"


def forget_wheels(checkout: Checkout) -> None:
    wheel_lock(checkout).unlink()


def changed(results: list[LockResult]) -> list[str]:
    return [result.path.name for result in results if result.changed]


def test_locks_that_answer_the_matrix_stay_as_they_are_without_asking_anybody(
    factory_checkout: Checkout, index: SimpleIndex
) -> None:
    assert changed(lock(factory_checkout)) == []
    assert index.log == []


def test_a_missing_lock_is_made_and_making_it_again_changes_nothing(
    factory_checkout: Checkout, index: SimpleIndex
) -> None:
    forget_wheels(factory_checkout)
    assert changed(lock(factory_checkout)) == ["gb10-linux-arm64.toml", "kernels.toml"]
    made = wheel_lock(factory_checkout).read_bytes()
    assert changed(lock(factory_checkout)) == []
    assert changed(lock(factory_checkout, upgrade=("small",))) == []
    assert wheel_lock(factory_checkout).read_bytes() == made
    assert index.url.encode() not in made


def test_a_lock_says_who_needs_what(factory_checkout: Checkout, index: SimpleIndex) -> None:
    del index
    forget_wheels(factory_checkout)
    lock(factory_checkout)
    wheels = WheelLock.read(wheel_lock(factory_checkout)).wheels
    assert [(wheel.name, wheel.needed_by) for wheel in wheels] == [
        *((name, ("matrix.yaml",)) for name in COMPILER),
        ("small", ("vllm",)),
        ("torch", ("vllm",)),
        ("vllm", ("matrix.yaml",)),
    ]


def test_only_what_is_named_is_upgraded(
    factory_checkout: Checkout, index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    def versions() -> dict[str, str]:
        wheels = WheelLock.read(wheel_lock(factory_checkout)).wheels
        return {wheel.name: wheel.version for wheel in wheels if not wheel.name.startswith("nvidia")}

    index.add(wheel_factory("other", "1.0"), wheel_factory("small", "1.0", requires=["other"]))
    forget_wheels(factory_checkout)
    lock(factory_checkout)
    index.add(wheel_factory("small", "1.1", requires=["other"]), wheel_factory("other", "1.1"))
    lock(factory_checkout, upgrade=("small",))
    assert versions() == {"other": "1.0", "small": "1.1", "torch": "2.0", "vllm": "0.32.0"}
    lock(factory_checkout, upgrade=("other",))
    assert versions() == {"other": "1.1", "small": "1.1", "torch": "2.0", "vllm": "0.32.0"}


def test_upgrading_what_is_not_locked_names_the_nearest(factory_checkout: Checkout) -> None:
    with pytest.raises(UnknownNameError, match="torch"):
        lock(factory_checkout, upgrade=("torhc",))


def test_what_has_to_be_compiled_cannot_be_locked(factory_checkout: Checkout) -> None:
    with pytest.raises(CompileNeededError, match=r"0\.32\.0"):
        lock(factory_checkout, "gemma4-31b@0.19.1")


@pytest.fixture(params=["unreachable", "missing", "conflicting", "breaking off", "nonsense"])
def broken(
    request: pytest.FixtureRequest,
    index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[type[FactoryError]]:
    """Spoil the index in one way, and say which failure that is."""
    match request.param:
        case "unreachable":
            monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
            yield IndexUnreachableError
        case "missing":
            index.files = {name: path for name, path in index.files.items() if not name.startswith("torch")}
            yield WheelMissingError
        case "conflicting":
            index.add(wheel_factory("small", files={"torch.py": "mine"}))
            yield PathConflictError
        case "breaking off":
            big = wheel_factory("small", files={"small.bin": bytes(range(256)) * 8192}, stored=True)
            index.add(big)
            index.ranges = False
            yield DownloadError
        case _:
            with serving(lambda *_: Answer(b"{", headers={"Content-Type": "application/json"})) as server:
                monkeypatch.setenv("PIP_INDEX_URL", server.url)
                yield IndexUnreachableError


def test_a_failed_lock_leaves_the_old_one_as_it_was(
    factory_checkout: Checkout, broken: type[FactoryError]
) -> None:
    before = {path: path.read_bytes() for path in factory_checkout.locks.rglob("*") if path.is_file()}
    with pytest.raises(FactoryError) as failure:
        lock(factory_checkout, upgrade=("vllm", "torch"))
    assert type(failure.value) is broken, str(failure.value)
    assert "secret" not in str(failure.value)
    assert {path: path.read_bytes() for path in factory_checkout.locks.rglob("*") if path.is_file()} == before


# --- check ------------------------------------------------------------------------------------------------


def drift(checkout: Checkout) -> LockDriftError:
    with pytest.raises(LockDriftError) as failure:
        check_all_locks(Project(checkout.root))
    return failure.value


def test_the_committed_locks_agree_with_the_matrix(factory_checkout: Checkout) -> None:
    assert len(check_all_locks(Project(factory_checkout.root))) > 3
    assert locked_cells(Project(factory_checkout.root))


def test_another_vllm_range_of_a_model_is_drift_that_names_it(factory_checkout: Checkout) -> None:
    factory_checkout.edit_matrix('    vllm: ">=0.10.1"', '    vllm: ">=0.11"')
    error = drift(factory_checkout)
    assert "models.gpt-oss-120b changed" in error.why
    assert error.where == "locks/models.toml"


def test_serving_settings_are_no_drift(factory_checkout: Checkout) -> None:
    factory_checkout.edit_matrix("      dtype: float32", "      dtype: bfloat16")
    check_all_locks(Project(factory_checkout.root))


@pytest.mark.parametrize(
    ("old", "new", "part", "kind"),
    [
        ('  "0.28.0": {release: "0.28.0"}', '  "0.28.0": {release: "0.28.1"}', "vllm.0.28.0", "0.28.0/gb10"),
        ("    without: [torchvision, ", "    without: [", "archs.cpu", "cpu-linux"),
        ('    glibc: "2.36"', '    glibc: "2.37"', "bases.bookworm", "gb10-linux"),
        ("    debian: bookworm\n", "    debian: trixie\n", "bases.bookworm", "bookworm/linux"),
        (
            "    reason: the image runs CUDA 13, and",
            "    reason: image runs CUDA 13, and",
            "conflicts",
            "gb10",
        ),
    ],
)
def test_drift_names_the_part_of_the_matrix_and_the_lock(
    factory_checkout: Checkout, old: str, new: str, part: str, kind: str
) -> None:
    factory_checkout.edit_matrix(old, new)
    error = drift(factory_checkout)
    assert f"{part} changed in matrix.yaml" in error.why
    assert kind in error.where


def test_a_lock_that_nothing_needs_any_more_is_drift(factory_checkout: Checkout) -> None:
    wheel_lock(factory_checkout).rename(wheel_lock(factory_checkout).with_name("b300-linux-arm64.toml"))
    assert "no longer builds" in drift(factory_checkout).why


def test_a_base_lock_that_is_missing_is_drift(factory_checkout: Checkout) -> None:
    (factory_checkout.locks / "bookworm" / "linux-arm64.toml").unlink()
    assert re.search(r"linux-arm64\.toml: is missing", drift(factory_checkout).why)


def test_the_copy_of_another_platforms_lock_is_drift(factory_checkout: Checkout) -> None:
    base = factory_checkout.locks / "bookworm"
    (base / "linux-arm64.toml").write_bytes((base / "linux-amd64.toml").read_bytes())
    assert "is a copy of locks/bookworm/linux-amd64.toml" in drift(factory_checkout).why


def test_a_lock_edited_by_hand_is_told_from_drift(factory_checkout: Checkout) -> None:
    path = wheel_lock(factory_checkout)
    path.write_text(path.read_text().replace('python = "3.11"', 'python = "3.12"'))
    with pytest.raises(LockEditedError):
        check_all_locks(Project(factory_checkout.root))


# --- models -----------------------------------------------------------------------------------------------


def test_model_revisions_are_pinned_when_the_hub_is_asked_and_kept_afterwards(
    factory_checkout: Checkout, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(lambda *_: Answer(b'{"sha": "%s"}' % COMMIT.encode())) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        lock(factory_checkout, models=True)
        asked = len(hub.log)
    project = Project(factory_checkout.root)
    assert project.model_lock.commit_of("google/gemma-4-31B-it") == COMMIT
    assert asked == len(project.model_lock.revisions)
    assert changed(lock(factory_checkout)) == []
    check_all_locks(Project(factory_checkout.root))
