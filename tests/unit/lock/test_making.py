"""Tests making locks: reproducibly, and completely or not at all."""

from pathlib import Path

import pytest

from imagefactory.compile.toolchain import check_all_locks
from imagefactory.errors import NetworkError
from imagefactory.lock import hub
from imagefactory.lock.hub import refuse_unpinned
from imagefactory.lock.making import make_locks
from imagefactory.project.locks.files import LockedWheel, WheelLock
from imagefactory.project.project import Project
from imagefactory.project.targets import select
from imagefactory.store.http import Retry
from tests.fixtures.checkouts import Checkout
from tests.fixtures.failures import raises
from tests.fixtures.locked_checkout import GPU_TARGET
from tests.fixtures.model_hub import ModelHub
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory


@pytest.fixture
def index(simple_index: SimpleIndex, wheel_factory: WheelFactory) -> SimpleIndex:
    """Serve a vLLM that needs two more packages."""
    simple_index.add(
        wheel_factory("vllm", "2.0", requires=["torch==2.0", "small>=1"]),
        wheel_factory("torch", "2.0", tag="cp311-cp311-manylinux_2_28_aarch64"),
        wheel_factory("small", "1.0"),
    )
    return simple_index


def lock(
    checkout: Checkout, target: str = GPU_TARGET, *, upgrade: tuple[str, ...] = (), models: bool = False
) -> list[str]:
    """Make the locks of a target, and list those that changed."""
    project = Project(checkout.root)
    cells = select(project.matrix, [target])
    made = make_locks(project, cells, upgrade=upgrade, models=models, say=lambda _: None)
    return [result.path.name for result in made if result.changed]


def wheel_lock(checkout: Checkout) -> Path:
    return checkout.locks / "2.0" / "gpu-linux-arm64.toml"


def locked_wheels(checkout: Checkout) -> tuple[LockedWheel, ...]:
    return WheelLock.read(wheel_lock(checkout)).wheels


def test_missing_lock_is_made_and_stays_the_same(locked_checkout: Checkout, index: SimpleIndex) -> None:
    assert (lock(locked_checkout), index.log) == ([], []), "matching locks need no request"
    wheel_lock(locked_checkout).unlink()
    assert lock(locked_checkout) == ["gpu-linux-arm64.toml", "kernels.toml"]
    made = wheel_lock(locked_checkout).read_bytes()
    assert lock(locked_checkout) == []
    assert lock(locked_checkout, upgrade=("small",)) == []
    assert wheel_lock(locked_checkout).read_bytes() == made
    assert index.url.encode() not in made
    assert [(wheel.name, wheel.needed_by) for wheel in locked_wheels(locked_checkout)] == [
        ("small", ("vllm",)),
        ("torch", ("vllm",)),
        ("vllm", ("matrix.yaml",)),
    ]


def test_upgrade_changes_only_the_named_packages(
    locked_checkout: Checkout, index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    def upgraded(*names: str) -> dict[str, str]:
        lock(locked_checkout, upgrade=names)
        return {wheel.name: wheel.version for wheel in locked_wheels(locked_checkout)}

    index.add(wheel_factory("other", "1.0"), wheel_factory("small", "1.0", requires=["other"]))
    wheel_lock(locked_checkout).unlink()
    lock(locked_checkout)
    index.add(wheel_factory("small", "1.1", requires=["other"]), wheel_factory("other", "1.1"))
    assert upgraded("small") == {"other": "1.0", "small": "1.1", "torch": "2.0", "vllm": "2.0"}
    assert upgraded("other") == {"other": "1.1", "small": "1.1", "torch": "2.0", "vllm": "2.0"}


def test_new_lock_of_another_server_keeps_what_the_default_vllm_has(
    locked_checkout: Checkout, index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    locked_checkout.edit_matrix("\nmodels:\n", '\nsglang: {"0.5": {release: "0.5"}}\nmodels:\n')
    locked_checkout.edit_matrix("{repo: somebody/big,", '{repo: somebody/big, sglang: ">=0",')
    index.add(
        wheel_factory("sglang", "0.5", requires=["small>=1", "own>=1"]),
        wheel_factory("small", "1.1"),
        wheel_factory("own", "1.1"),
    )
    assert "gpu-linux-arm64.toml" in lock(locked_checkout, "big@sglang-0.5/gpu")
    made = WheelLock.read(locked_checkout.locks / "sglang-0.5" / "gpu-linux-arm64.toml")
    assert {wheel.name: wheel.version for wheel in made.wheels} == {
        "own": "1.1", "sglang": "0.5", "small": "1.0",
    }  # fmt: skip
    assert {"sglang.0.5", "archs.gpu"} <= made.made_from.keys()


def test_upgrade_base_means_every_debian_package(locked_checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Error messages advise `lock --upgrade base`, whatever the base is called."""
    monkeypatch.setattr("imagefactory.lock.making.read_index", lambda **_: pytest.fail("resolved again"))
    lock(locked_checkout)
    with pytest.raises(pytest.fail.Exception, match="resolved again"):
        lock(locked_checkout, upgrade=("base",))


def test_upgrade_of_an_unknown_package_suggests_the_nearest(locked_checkout: Checkout) -> None:
    with raises("unknown-name", match="torch"):
        lock(locked_checkout, upgrade=("torhc",))


@pytest.mark.parametrize("failure", ["index-unreachable", "path-conflict", "download-failed"])
def test_failed_lock_leaves_all_locks_unchanged(
    locked_checkout: Checkout,
    index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
    failure: str,
) -> None:
    match failure:
        case "index-unreachable":
            monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
        case "path-conflict":
            index.add(wheel_factory("small", files={"torch.py": "mine"}))
        case _:
            index.add(wheel_factory("small", files={"small.bin": bytes(range(256)) * 8192}, stored=True))
            index.ranges = False
    before = {path: path.read_bytes() for path in locked_checkout.locks.rglob("*") if path.is_file()}
    with raises(failure) as caught:
        lock(locked_checkout, upgrade=("vllm", "torch"))
    assert "secret" not in str(caught.value)
    assert {path: path.read_bytes() for path in locked_checkout.locks.rglob("*") if path.is_file()} == before


@pytest.fixture
def many_models(locked_checkout: Checkout, model_hub: ModelHub, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    """Add two models, one with a drafter, and a hub that has all of them."""
    monkeypatch.setenv("HF_ENDPOINT", model_hub.url)
    monkeypatch.setattr(hub, "RETRY", Retry(attempts=1))
    drafter = "drafters: [{repo: somebody/drafter, method: eagle3, tokens: 3}]"
    locked_checkout.edit_matrix(
        "  tiny:\n",
        f"""  drafted: {{repo: somebody/drafted, vllm: ">=2", weights: bf16, {drafter}}}
  other: {{repo: somebody/other, vllm: ">=2", weights: bf16}}
  tiny:\n""",
    )
    for name in ("big", "drafted", "drafter", "other"):
        model_hub.move(f"somebody/{name}", config__json=name.encode())
    return locked_checkout


def pins(checkout: Checkout) -> dict[str, str]:
    return {entry.repo: entry.commit for entry in Project(checkout.root).model_lock.revisions}


def test_models_of_a_target_alone_are_pinned_and_stay_so(many_models: Checkout, model_hub: ModelHub) -> None:
    assert "models.toml" in lock(many_models, "drafted@2.0/gpu", models=True)
    first = pins(many_models)
    assert first == {name: model_hub.commits[name] for name in ("somebody/drafted", "somebody/drafter")}
    model_hub.move("somebody/drafted", config__json=b"newer")
    lock(many_models, "other@2.0/gpu", models=True)
    assert pins(many_models) == first | {"somebody/other": model_hub.commits["somebody/other"]}
    asked = len(model_hub.server.log)
    assert lock(many_models, "drafted@2.0/gpu", models=True) == []
    assert lock(many_models, "drafted@2.0/gpu") == []
    assert len(model_hub.server.log) == asked, "what is pinned is not asked for"
    before = pins(many_models)
    model_hub.move("somebody/other", config__json=b"newer")
    lock(many_models, "drafted@2.0/gpu", upgrade=("models",))
    assert pins(many_models) == before | {"somebody/drafted": model_hub.commits["somebody/drafted"]}
    check_all_locks(Project(many_models.root))


def test_model_that_cannot_be_pinned_stops_no_other(
    many_models: Checkout, model_hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock(many_models, "other@2.0/gpu", models=True)
    kept = pins(many_models)
    model_hub.refused = {"somebody/drafter": "GatedRepo", "somebody/other": "RepoNotFound"}
    cells = select(Project(many_models.root).matrix, ["*@2.0/gpu"])

    def failures() -> list[NetworkError]:
        made = make_locks(Project(many_models.root), cells, upgrade=["models"], say=lambda _: None)
        return [failure for result in made for failure in result.failures]

    with raises("hub-unreachable", match="gated: accept its terms") as caught:
        refuse_unpinned(failures())
    assert all(name in str(caught.value) for name in model_hub.refused)
    assert pins(many_models).keys() == {"somebody/big", "somebody/drafted", "somebody/other"}
    assert pins(many_models)["somebody/other"] == kept["somebody/other"], "its pin stays"
    known = pins(many_models)
    monkeypatch.setenv("HF_ENDPOINT", "http://user:secret@127.0.0.1:9")
    with raises("hub-unreachable") as caught:
        refuse_unpinned(failures())
    assert ("secret" in str(caught.value), caught.value.where) == (False, "http://127.0.0.1:9")
    assert pins(many_models) == known
