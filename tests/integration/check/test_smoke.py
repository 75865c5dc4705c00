"""Smoke runs from the command line: a small image without an engine, the tiny model's image with one."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path
from uuid import uuid4

import pytest

from imagefactory.check.smoke.record import SmokeRecord
from imagefactory.check.smoke.subject import Subject, subject_of_target
from imagefactory.oci.layout import Layout
from imagefactory.oci.registry.image_push import Pushable, push_image
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.engines import need
from tests.fixtures.failures import refused
from tests.fixtures.small_factory import SmallFactory
from tests.fixtures.smoke import with_config

NOWHERE = "unix:///nowhere/docker.sock"


@pytest.fixture
def factory(small_factory: SmallFactory) -> SmallFactory:
    (small_factory.root / "tests").symlink_to(REPOSITORY / "tests")
    small_factory.build()
    return small_factory


def smoke(factory: SmallFactory, *arguments: str) -> subprocess.CompletedProcess[str]:
    # In a process of its own: a Docker client that reaches nobody leaves its socket to the collector.
    return factory.run("smoke", *arguments, env={"DOCKER_HOST": NOWHERE})


def record_at(done: subprocess.CompletedProcess[str]) -> tuple[SmokeRecord, Path]:
    path = Path(done.stdout.splitlines()[-1])
    return SmokeRecord.read(path), path.parent


def test_results_are_recorded_level_by_level(factory: SmallFactory) -> None:
    done = smoke(factory, "--target", "tiny", "--level", "static")
    assert refused(done, "smoke-failed"), done.stderr
    assert "Traceback" not in done.stderr
    record, _ = record_at(done)
    [built] = factory.build()
    assert (record.digest, record.plan_key) == (built.image.digest, built.plan.key)
    static = record.levels["static"]
    assert static.outcome == "failed"
    tests = {test.name: test for test in static.tests}
    # The small image has no programs, but is otherwise valid.
    broken = tests["programs to start exist"]
    assert broken.outcome == "failed"
    assert broken.means == 'The container ends at once: "no such file or directory".'
    assert "/usr/bin/python3 leads nowhere" in broken.message
    assert "/usr/bin/python3 leads nowhere" in static.why
    assert tests["every blob matches its digest"].outcome == "passed"
    assert tests["configuration and labels match the plan"].outcome == "passed"
    # Without an engine, other levels cannot run; the record keeps the first.
    done = smoke(factory, "--target", "tiny", "--level", "container", "--level", "serve")
    assert refused(done, "smoke-failed"), done.stderr
    record, _ = record_at(done)
    assert record.summary == "static: failed, container: not-run, serve: not-run"
    assert "The Docker daemon does not answer" in record.levels["container"].why
    assert [text.split(":")[0] for text in record.missing(["container"])] == ["container", "static"]


@pytest.fixture(scope="module")
def tiny(tiny_checkout: Path) -> Subject:
    return subject_of_target(Project(tiny_checkout), "tiny")


@pytest.fixture
def other_checkout(tmp_path: Path) -> Path:
    """A checkout that has not built the image."""
    root = tmp_path / "checkout"
    root.mkdir()
    for name in ("imagefactory", "images", "locks", "matrix.yaml", "mods", "docs", "tests"):
        (root / name).symlink_to(REPOSITORY / name)
    (root / "tasks.py").write_bytes((REPOSITORY / "tasks.py").read_bytes())
    return root


@pytest.mark.engine
def test_the_files_of_a_pushed_image_are_read_from_the_registry_and_none_through_the_daemon(
    factory: SmallFactory, registry: str
) -> None:
    [built] = factory.build()
    reference = f"{registry}/smoke/{uuid4().hex[:12]}@{built.image.digest}"
    with Repository.open(reference) as repository:
        push_image(repository, Pushable.of_image(built.image, built.layout.blob))
    shutil.rmtree(built.layout.folder)
    nothing = {"FACTORY_CACHE": str(factory.folder / "empty")}
    # Each file that is copied out of a container is an event. The daemon remembers no more than 256 of all events.
    command = ["docker", "events", "--since", f"{time.time():.9f}", "--format", "{{json .}}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        done = factory.run("smoke", "--image", reference, "--level", "static", env=nothing)
        watching.terminate()
        events = [json.loads(line) for line in watching.communicate()[0].splitlines()]
    ids = {reference, built.image.digest, built.image.config_digest}
    ours = [event["Action"] for event in events if ids & {event.get("id"), event["Actor"]["Attributes"].get("image")}]
    assert ours == []
    record, _ = record_at(done)
    tests = {test.name: test.outcome for test in record.levels["static"].tests}
    assert (record.digest, record.image) == (built.image.digest, reference)
    assert tests["every blob matches its digest"] == tests["packages are complete"] == "passed"


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.network
def test_a_pulled_image_passes_every_level(tiny: Subject, registry: str, other_checkout: Path, tmp_path: Path) -> None:
    need("skopeo")
    assert tiny.layout is not None
    repository = f"{registry}/smoke/tiny"
    copy = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false"]
    subprocess.run([*copy, f"oci:{tiny.layout}", f"docker://{repository}:latest"], check=True)
    reference = f"{repository}@{tiny.digest}"
    # With an empty cache, the machine has nothing of the image.
    done = Checkout(other_checkout).run("smoke", "--image", reference, env={"FACTORY_CACHE": str(tmp_path / "cache")})
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        record, folder = record_at(done)
        assert leftovers(folder) == []
        assert (record.digest, record.image, record.plan_key) == (tiny.digest, reference, tiny.plan_key)
        assert record.summary == "static: passed, container: passed, serve: passed"
        assert record.missing(["static", "container", "serve"]) == []
        tests = [test for result in record.levels.values() for test in result.tests]
        figures = {name for test in tests for name in test.measured}
        assert {"import_seconds", "start_seconds", "stop_seconds"} <= figures
    finally:
        subprocess.run(["docker", "rmi", reference], capture_output=True, check=False)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.network
def test_a_broken_entrypoint_fails_with_its_reason_on_record(
    tiny: Subject, tmp_path: Path, other_checkout: Path
) -> None:
    assert tiny.layout is not None
    entrypoint = {"Entrypoint": ["/usr/bin/python3", "/nowhere"]}
    broken = with_config(Layout(tiny.layout), tmp_path / "broken", lambda config: config["config"].update(entrypoint))
    done = Checkout(other_checkout).run("smoke", "--image", str(broken.folder), "--level", "static,serve")
    assert refused(done, "smoke-failed"), done.stdout + done.stderr
    record, folder = record_at(done)
    assert leftovers(folder) == []
    assert record.digest == broken.manifest_digest() != tiny.digest
    assert record.summary == "static: failed, serve: failed"
    assert all("/nowhere" in result.why for result in record.levels.values())
    [health] = [test for test in record.levels["serve"].tests if test.name == "it becomes healthy"]
    assert health.message.startswith("the server ended with code 2: ")
    log = f"build/smoke/{record.digest.removeprefix('sha256:')}/server-serve.log"
    assert health.message.endswith(f"(the whole log: {log})")
    assert (other_checkout / log).is_file()
    assert len(record.missing(["static", "container", "serve"])) == 3


def leftovers(folder: Path) -> list[str]:
    """List the containers and volumes of a run that are still in the daemon."""
    [run] = re.findall(r"^smoke run (\w+)$", (folder / "log.txt").read_text(), flags=re.MULTILINE)
    found = []
    for words in (("ps", "--all"), ("volume", "ls")):
        command = ["docker", *words, "--quiet", "--filter", f"label=imagefactory.check.smoke={run}"]
        found += subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return found
