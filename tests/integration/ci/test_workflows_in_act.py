"""The real workflow, run by act on this machine: the plan job, and the matrix that comes out of it."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from imagefactory.publish.tags import staging_tag
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.fake_github import FakeGitHub, commit_all, git
from tests.fixtures.night_factory import NightFactory
from tests.fixtures.platforms import MACHINE

pytestmark = pytest.mark.slow
ACT = Path(sysconfig.get_path("scripts")) / "act"
RUNNERS = ("ubuntu-24.04", "ubuntu-24.04-arm")
SHIM = '#!/bin/sh\nexec {python} -m invoke --search-root "$(dirname -- "$0")" "$@"\n'
NO_ACTION = """\
name: stands in
description: act cannot fetch an action without a network; what it would set up is here already
runs: {using: composite, steps: [{run: "true", shell: bash}]}
"""


def remote_actions() -> set[str]:
    """List the actions of others that the workflow uses, as act names them."""
    texts = [
        (REPOSITORY / ".github" / name).read_text("utf-8")
        for name in ("workflows/nightly.yml", "actions/set-up/action.yml")
    ]
    return {found for text in texts for found in re.findall(r"uses: (actions/[\w/-]+@[0-9a-f]{40})", text)}


def prepared(night_factory: NightFactory) -> Path:
    """Make the checkout a repository with the real workflows; only the set-up of .venv is left out."""
    root = night_factory.factory.root
    shutil.copytree(REPOSITORY / ".github", root / ".github")
    nightly = root / ".github" / "workflows" / "nightly.yml"
    # act's schema is older than this key of `promote`, which no job here needs.
    nightly.write_text(nightly.read_text("utf-8").replace("      queue: max\n", ""), "utf-8")
    (root / "inv").write_text(SHIM.format(python=sys.executable))
    (root / "inv").chmod(0o755)
    commit_all(root)
    git(root, "remote", "add", "origin", root.as_uri())  # without a branch `records`
    return root


def act(night_factory: NightFactory, github: FakeGitHub) -> str:
    """Run the job `image` of the nightly, with all that it needs; return what act says."""
    root, folder = prepared(night_factory), night_factory.factory.folder
    stand_in = folder / "stand-in"
    stand_in.mkdir()
    (stand_in / "action.yml").write_text(NO_ACTION)
    repositories = {action.partition("@") for action in remote_actions()}
    given = {
        **night_factory.factory.environment(),
        "DOCKER_CONFIG": os.environ["DOCKER_CONFIG"],
        "FACTORY_GITHUB_API": github.url,
    }
    command = [
        *(str(ACT), "workflow_dispatch", "-W", ".github/workflows/nightly.yml", "-j", "image"),
        *(word for runner in RUNNERS for word in ("-P", f"{runner}=-self-hosted")),
        *(word for name, _, ref in repositories for word in ("--local-repository", f"{name}@{ref}={stand_in}")),
        *(word for item in given.items() if item[0] != "PATH" for word in ("--env", "=".join(item))),
        *("--var", f"FACTORY_REGISTRY={os.environ['FACTORY_REGISTRY']}", "-s", "GITHUB_TOKEN=a-token"),
        *("--action-offline-mode", "--no-cache-server", "--defaultbranch", "main"),
    ]
    environment = {**night_factory.factory.environment(), "XDG_CACHE_HOME": str(folder / "act")}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def test_act_runs_the_plan_and_the_images_that_come_out_of_it(
    night_factory: NightFactory, fake_github: FakeGitHub
) -> None:
    night_factory.record()
    said = act(night_factory, fake_github)
    assert "Job succeeded" in said
    [job] = night_factory.plan().matrix("smoke")
    # One lock, one job: both models were assembled and pushed by it, and wait for their tests.
    assert job["targets"] == f"other@1.0/cpu/{MACHINE} tiny@1.0/cpu/{MACHINE}"
    assert f"image 2 models on 1.0 for cpu ({MACHINE})" in said
    for work in night_factory.plan().works:
        assert work.reason == "never published; pushed, but not tested yet"
        assert night_factory.repository.resolve(staging_tag(work.key)) is not None  # type: ignore[arg-type]
    assert night_factory.tags() == {}


def test_act_ends_after_the_plan_when_nothing_changed(night_factory: NightFactory, fake_github: FakeGitHub) -> None:
    night_factory.night()
    said = act(night_factory, fake_github)
    assert "nightly/plan" in said
    assert "nothing changed; 2 images up to date" in said
    assert "inv push" not in said
