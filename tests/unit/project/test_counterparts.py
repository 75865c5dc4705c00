"""A version that no machine without a GPU can serve: it says so, and is no default."""

import pytest

from imagefactory.docs.generated import newer_versions
from imagefactory.project.counterparts import cpu_counterparts, faults_of
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from tests.fixtures.inv import Inv

UNSERVED = (
    "the smoke level `serve` needs the image's GPU, since tiny@2.0/cpu has no lock; without it no tag, and it cannot "
    "become a default"
)


def forget_cpu_locks(inv: Inv) -> None:
    for path in (inv.root / "locks/2.0").glob("cpu-*.toml"):
        path.unlink()


def test_plan_says_that_only_a_gpu_can_serve_a_version(own_inv: Inv) -> None:
    assert "known fault" not in own_inv("plan", "big/gpu").stdout
    forget_cpu_locks(own_inv)
    assert own_inv("plan", "big/gpu").stdout.splitlines()[-1] == f"known fault: {UNSERVED}"


def test_plan_says_why_the_image_for_cpus_has_no_lock(own_inv: Inv) -> None:
    forget_cpu_locks(own_inv)
    rule = "unlocked:\n  - {when: {arch: cpu}, reason: no index has a build for CPUs}\n"
    own_inv.checkout.edit_matrix("\nmodels:\n", f"\n{rule}models:\n")
    told = own_inv("plan", "big/gpu").stdout.splitlines()[-1]
    assert told == f"known fault: {UNSERVED.replace('no lock', 'no lock (no index has a build for CPUs)')}"


def test_a_version_that_only_a_gpu_can_serve_is_refused_as_a_default(
    own_inv: Inv, monkeypatch: pytest.MonkeyPatch
) -> None:
    # They ask for what the checkout does not have: wheels and the environment's packages.
    monkeypatch.setattr("imagefactory.publish.attest.licence_record.check_licences", lambda _: None)
    monkeypatch.setattr("imagefactory.environment.locks.check_environment", lambda _: 0)
    assert own_inv("lock", "--check").returncode == 0
    forget_cpu_locks(own_inv)
    refusal = own_inv.fails("untried-default", "lock", "--check")
    assert "vLLM 2.0 cannot be a default." in refusal
    assert f"T{UNSERVED[1:]}." in refusal
    own_inv.checkout.edit_matrix('defaults: {vllm: "2.0", arch: gpu}', 'defaults: {vllm: "2.0", arch: cpu}')
    assert "cannot be a default" not in own_inv("lock", "--check").stderr


def test_the_page_of_versions_says_why_a_newer_release_is_not_the_default(own_inv: Inv) -> None:
    assert newer_versions(Project(own_inv.root)) == ""
    own_inv.checkout.edit_matrix(
        '  "2.0": {release: "2.0"}\n', '  "2.0": {release: "2.0"}\n  "3.0": {release: "3.0"}\n'
    )
    told = newer_versions(Project(own_inv.root))
    assert told.strip() == f"vLLM 3.0 is not the default: {UNSERVED.replace('@2.0', '@3.0')}."


def test_versions_of_one_release_are_served_by_its_cpu_image(own_inv: Inv) -> None:
    own_inv.checkout.edit_matrix(
        '  "2.0": {release: "2.0"}\n', '  "2.0": {release: "2.0"}\n  2.0-own: {release: "2.0", compile: {gpu: graft}}\n'
    )
    project = Project(own_inv.root)
    assert cpu_counterparts(project, "2.0-own") == cpu_counterparts(project, "2.0") != []
    assert faults_of(project, select_one(project.matrix, "big@2.0-own/gpu")) == []
