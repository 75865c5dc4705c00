"""Records of layers that a pull request changes: rebuilt from the lock, without this machine's cache, and compared."""

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from imagefactory.ci.pull_request import changed_records, check_records
from imagefactory.project.locks.kernels import SlimLock
from imagefactory.publish.tags import staging_tag
from tests.fixtures.failures import raises, refused
from tests.fixtures.fake_github import commit_all
from tests.fixtures.night_factory import ModdedFactory
from tests.fixtures.publishing import Publisher
from tests.fixtures.small_factory import RecordingWatcher, SmallFactory

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a factory with a mod, and commit the records."""
    factory = ModdedFactory(tmp_path_factory.mktemp("recorded") / "small")
    with pytest.MonkeyPatch.context() as patch:
        factory.configure(patch)
        factory.build()
    commit_all(factory.root)
    return factory.folder


@pytest.fixture
def recorded(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallFactory:
    """Copy the factory whose records are committed."""
    shutil.copytree(template, tmp_path / "small", symlinks=True)
    factory = SmallFactory(tmp_path / "small")
    factory.configure(monkeypatch)
    return factory


def edit(path: Path, change: Edit) -> None:
    data = tomllib.loads(path.read_text("utf-8"))
    change(data)
    path.write_text(tomli_w.dumps(data), "utf-8")


def check(factory: SmallFactory, base: str = "HEAD") -> int:
    """Check what changed since a commit; return how many layers that was."""
    changed = changed_records(factory.project, base)
    check_records(factory.project, changed, RecordingWatcher())
    return len(changed)


def refusal(factory: SmallFactory) -> str:
    with raises("record-refuted") as refused:
        check(factory)
    return refused.value.why


def point_elsewhere(data: dict[str, Any]) -> None:
    """Give the model's layer the blob of another one."""
    [model] = [layer for layer in data["layers"] if layer["name"] == "model tiny"]
    [other] = [layer for layer in data["layers"] if layer["name"].startswith("serve ")]
    model |= {name: other[name] for name in ("diff_id", "digest", "size", "unpacked")}


def test_unchanged_records_are_not_rebuilt_and_new_ones_that_a_build_gave_hold(
    recorded: SmallFactory,
) -> None:
    aside = recorded.links.rename(recorded.links.with_name("aside"))
    assert check(recorded) == 0
    aside.rename(recorded.links)
    right = recorded.project.known_layers.read_bytes()
    edit(recorded.project.known_layers, lambda data: data.update(layers=[]))
    commit_all(recorded.root)
    recorded.project.known_layers.write_bytes(right)
    assert check(recorded) == len(tomllib.loads(right.decode())["layers"])


def test_a_record_of_another_blob_is_refused_even_if_the_cache_agrees(recorded: SmallFactory) -> None:
    record = recorded.project.known_layers
    edit(record, point_elsewhere)
    [model] = [layer for layer in tomllib.loads(record.read_text())["layers"] if layer["name"] == "model tiny"]
    cached = {name: model[name] for name in ("diff_id", "digest", "size", "unpacked")}
    recorded.project.store.layer(model["key"]).write_text(json.dumps(cached))
    why = refusal(recorded)
    assert why.startswith("model tiny")
    assert f"recorded {model['digest']}" in why


def test_records_that_nothing_gives_are_refused(recorded: SmallFactory) -> None:
    edit(recorded.project.known_layers, lambda data: data["layers"][0].update(key="0" * 64))
    assert "no locked target has it" in refusal(recorded)


def test_another_record_of_slimmed_libraries_is_refused(small_factory: SmallFactory) -> None:
    small_factory.edit_matrix("{cpu: {", '{cpu: {capability: "12.1", slim: yes, ')
    small_factory.build()
    commit_all(small_factory.root)
    assert check(small_factory) == 0
    lock = small_factory.project.slim_lock
    [wheel] = lock.wheels
    lie = wheel.untouched[0].model_copy(update={"why": "no reason"})
    changed = lock.model_copy(update={"wheels": (wheel.model_copy(update={"untouched": (lie,)}),)})
    changed.write(SlimLock.path(small_factory.project.locks))
    assert f"{wheel.file}: slim.toml" in refusal(small_factory)


def test_a_record_of_another_blob_would_be_pushed_and_the_command_refuses_it(publisher: Publisher) -> None:
    [staged] = publisher.push()
    commit_all(publisher.factory.root)
    edit(publisher.project.known_layers, point_elsewhere)
    shutil.rmtree(publisher.factory.cache)
    [swapped] = publisher.push()
    # The registry has the blob, so nothing is built and nothing is compared: this is why records are checked before.
    assert swapped.digest != staged.digest
    assert publisher.repository.resolve(staging_tag(staged.plan.key)) == swapped.digest
    done = publisher.invoke("ci.changes", "--rebuild", "--base", "HEAD")
    assert refused(done, "record-refuted"), done.stderr
    assert "model tiny" in done.stderr
    publisher.factory.root.joinpath("locks/layers.toml").unlink()
    done = publisher.invoke("ci.changes", "--rebuild", "--base", "HEAD")
    assert done.returncode == 0, done.stderr
    assert "0 layers" in done.stdout
