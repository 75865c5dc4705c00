"""Pinning models of this repository's own matrix, with a hub on the loopback."""

from pathlib import Path

import pytest

from imagefactory.ci.pull_request import git
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import locked_plans, make_plan
from imagefactory.project.project import Project, locked_cells
from imagefactory.project.targets import select_one
from tests.fixtures.checkouts import REPOSITORY, Checkout, add_pages
from tests.fixtures.fake_github import IDENTITY, commit_all
from tests.fixtures.model_hub import ModelHub

MODEL = "laguna-s-2.1-nvfp4"


@pytest.fixture
def hub(model_hub: ModelHub) -> ModelHub:
    """Serve every repository of the matrix."""
    for model in Project(REPOSITORY).matrix.models.values():
        for repo in model.repositories:
            model_hub.move(repo, config__json=repo.encode())
    return model_hub


def records(root: Path) -> dict[str, str]:
    return {key: layer.name for key, layer in KnownLayers(Project(root).known_layers).layers.items()}


def test_pinning_one_model_touches_no_other(factory_checkout: Checkout, hub: ModelHub, tmp_path: Path) -> None:
    """`lock --models --target X` once pinned 40 repositories, and dropped the records of 156 layers."""
    root, before = factory_checkout.root, records(factory_checkout.root)
    model, drafter = Project(root).matrix.models[MODEL].repositories
    cells = [cell for cell in locked_cells(Project(root)) if cell.model == MODEL]
    unpinned = {cell: make_plan(Project(root), cell) for cell in cells}
    hub.refused[drafter] = "GatedRepo"
    environment = {"HF_ENDPOINT": hub.url, "FACTORY_CACHE": str(tmp_path / "cache")}
    done = factory_checkout.invoke("lock", "--models", "--target", MODEL, env=environment)
    assert (done.returncode, "error[hub-unreachable]" in done.stderr, drafter in done.stderr) == (6, True, True)
    now = Project(root)
    assert {entry.repo: entry.commit for entry in now.model_lock.revisions} == {model: hub.commits[model]}
    gone, new = before.items() - records(root).items(), records(root).items() - before.items()
    assert {name for _, name in gone | new} == {f"model {MODEL}"}
    for cell, old in unpinned.items():
        plan = make_plan(now, cell)
        assert [layer.key for layer in plan.layers[:-1]] == [layer.key for layer in old.layers[:-1]]
        assert KnownLayers(now.known_layers).image(plan), f"{cell} is not on record"
    changed = [path for path in (root / "locks").rglob("*.toml") if _changed(path, root)]
    assert sorted(path.name for path in changed) == ["layers.toml", "models.toml"]


@pytest.mark.slow
def test_proposal_of_the_week_has_all_that_the_night_needs(
    factory_checkout: Checkout, hub: ModelHub, tmp_path: Path
) -> None:
    root = factory_checkout.root
    add_pages(root)
    commit_all(root)
    matrix = Project(root).matrix
    gone, gated = matrix.models["gpt-oss-120b"].repositories[0], matrix.models[MODEL].repositories[0]
    del hub.repositories[gone]
    hub.refused[gated] = "GatedRepo"
    report = tmp_path / "proposal.md"
    environment = {**IDENTITY, "HF_ENDPOINT": hub.url, "FACTORY_CACHE": str(tmp_path / "cache")}
    done = factory_checkout.invoke("news.models", "--branch=models", f"--report={report}", env=environment)
    assert done.returncode == 0, done.stderr
    text = report.read_text("utf-8")
    assert all(f"- {repo} is not pinned" in text for repo in (gone, gated))
    git(root, "switch", "--quiet", "models")
    changed = git(root, "diff", "--name-only", "HEAD~1").split()
    assert {"README.md", "locks/layers.toml", "locks/models.toml"} <= {*changed}
    assert all(path.startswith(("docs/pictures/", "locks/", "README.md")) for path in changed), changed
    now = Project(root)
    assert len(now.model_lock.revisions) == len(hub.commits) - 2
    known = KnownLayers(now.known_layers)
    lacking = [plan.target for plan in locked_plans(now) if known.image(plan) is None]
    before = KnownLayers(REPOSITORY / "locks/layers.toml")
    assert lacking == [plan.target for plan in locked_plans(Project(REPOSITORY)) if before.image(plan) is None]
    image = known.image(make_plan(now, select_one(now.matrix, "")))
    assert image, "the first model is on record"
    assert image.digest in (root / "README.md").read_text("utf-8")


def _changed(path: Path, root: Path) -> bool:
    return path.read_bytes() != (REPOSITORY / path.relative_to(root)).read_bytes()
