"""Provenance: the same for the same commit, apart from the builder and the run."""

from pathlib import Path

from imagefactory.plan.make import make_plan
from imagefactory.publish.attest.provenance import (
    CheckoutState,
    Run,
    input_hashes,
    make_provenance,
    read_run,
    read_source,
)
from imagefactory.publish.attest.sbom import make_sbom
from imagefactory.store.digests import canonical_json, sha256_of
from tests.fixtures.fake_github import commit_all, git
from tests.fixtures.platforms import MACHINE
from tests.fixtures.small_factory import CELL, SmallFactory

GITHUB = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_SERVER_URL": "https://github.example",
    "GITHUB_WORKFLOW_REF": "owner/factory/.github/workflows/nightly.yml@refs/heads/main",
    "GITHUB_REPOSITORY": "owner/factory",
    "GITHUB_RUN_ID": "17",
    "GITHUB_RUN_ATTEMPT": "2",
}


def test_provenance_names_the_plan_the_locks_the_commit_and_the_sbom(small_factory: SmallFactory) -> None:
    project = small_factory.project
    plan = make_plan(project, CELL)
    made = make_provenance(project, plan, source=CheckoutState("a" * 40), run=Run("builder", "run 1"))
    definition, details = made["buildDefinition"], made["runDetails"]
    assert definition["externalParameters"] == {"target": str(CELL), "platform": CELL.platform}
    assert definition["internalParameters"]["plan"] == plan.key
    source, *inputs = definition["resolvedDependencies"]
    assert source == {"uri": "git+https://git.example/factory", "digest": {"gitCommit": "a" * 40}}
    named = {item["name"]: item["digest"]["sha256"] for item in inputs}
    lock, base = f"locks/1.0/cpu-linux-{MACHINE}.toml", f"locks/bookworm/linux-{MACHINE}.toml"
    assert named.keys() == {"matrix.yaml", lock, base, "locks/licences.toml"}
    assert named[lock] == sha256_of((small_factory.root / lock).read_bytes())
    assert details["builder"] == {"id": "builder"}
    assert details["metadata"] == {"invocationId": "run 1"}
    assert details["byproducts"][0]["digest"] == {"sha256": sha256_of(make_sbom(project, plan))}
    small_factory.edit_matrix("\ndefaults:", "\n# more\ndefaults:")
    after = input_hashes(small_factory.project, plan)
    assert [name for name in named if named[name] != after[name]] == ["matrix.yaml"]


def test_a_graft_names_the_published_wheel_and_what_was_compiled(small_factory: SmallFactory) -> None:
    wheel = small_factory.graft()
    assert wheel.graft is not None
    [file] = wheel.graft.replaced
    project = small_factory.project
    plan = make_plan(project, CELL)
    made = make_provenance(project, plan, source=CheckoutState(None), run=Run("builder"))
    *_, published, compiled = made["buildDefinition"]["resolvedDependencies"]
    assert published == {"name": wheel.graft.file, "digest": {"sha256": wheel.graft.sha256}}
    assert compiled["name"] == f"{wheel.file}/{file.path}"
    assert compiled["digest"] == {"sha256": file.sha256}
    assert compiled["annotations"] == {"compiledAs": wheel.compiled, "replacesSha256": file.published}
    assert plan.config.labels["imagefactory.grafted"] == file.path


def test_two_runs_differ_only_in_the_run(small_factory: SmallFactory) -> None:
    project = small_factory.project
    plan = make_plan(project, CELL)
    source = CheckoutState("a" * 40)
    one, two, again = (
        make_provenance(project, plan, source=source, run=read_run("https://git.example", env))
        for env in ({}, GITHUB, {})
    )
    assert canonical_json(one["buildDefinition"]) == canonical_json(two["buildDefinition"])
    assert one["runDetails"]["byproducts"] == two["runDetails"]["byproducts"]
    assert one["runDetails"]["builder"] != two["runDetails"]["builder"]
    assert canonical_json(one) == canonical_json(again)
    assert read_run("https://git.example/factory", {}).invocation is None
    assert read_run("https://git.example/factory", GITHUB) == Run(
        "https://github.example/owner/factory/.github/workflows/nightly.yml@refs/heads/main",
        "https://github.example/owner/factory/actions/runs/17/attempts/2",
    )


def test_a_modified_checkout_is_recognised(tmp_path: Path) -> None:
    assert read_source(tmp_path) == CheckoutState(None)
    git(tmp_path, "init", "--quiet")
    assert read_source(tmp_path) == CheckoutState(None)
    (tmp_path / "file").write_text("one\n")
    commit = commit_all(tmp_path)
    (tmp_path / "build").write_text("not tracked\n")
    assert read_source(tmp_path) == CheckoutState(commit)
    (tmp_path / "file").write_text("two\n")
    assert read_source(tmp_path) == CheckoutState(commit, modified=True)
