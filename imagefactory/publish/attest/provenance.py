"""Provenance: how an image was built, as a SLSA predicate.

It depends on the plan, the locks and the source commit; only the builder and its invocation belong to one run.
https://slsa.dev/spec/v1.1/provenance
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from imagefactory.plan.plan import Plan
from imagefactory.project.locks.files import LicenceLock, ModelLock
from imagefactory.project.locks.kernels import SlimLock
from imagefactory.project.project import Project
from imagefactory.publish.attest import sbom
from imagefactory.publish.attest.components import Component, components_of
from imagefactory.store.digests import Sha256, sha256_of

PREDICATE_TYPE: Final = "https://slsa.dev/provenance/v1"
MATRIX: Final = "matrix.yaml"


@dataclass(frozen=True)
class CheckoutState:
    """The commit that an image is made from."""

    commit: str | None
    """None if this is not a git repository, such as an unpacked archive."""
    modified: bool = False
    """True when tracked files differ from the commit."""


@dataclass(frozen=True)
class Run:
    """Who built an image, and in which job."""

    builder: str
    invocation: str | None = None


def make_provenance(project: Project, plan: Plan, *, source: CheckoutState, run: Run) -> dict[str, Any]:
    """Return the predicate: what an image was made from, by whom and how."""
    uri = f"git+{project.matrix.effective_source}"
    dependencies: list[dict[str, Any]] = [
        {"name": name, "digest": {"sha256": sha256}} for name, sha256 in input_hashes(project, plan).items()
    ]
    parts = components_of(project, plan)
    for changes in (_grafted, _slimmed):
        dependencies += [entry for part in parts for entry in changes(part)]
    if source.commit:
        dependencies.insert(0, {"uri": uri, "digest": {"gitCommit": source.commit}})
    document = sbom.write_sbom(project, plan, parts)
    return {
        "buildDefinition": {
            "buildType": f"{project.matrix.effective_source}#build-type-1",
            "externalParameters": {"target": plan.target, "platform": plan.platform},
            "internalParameters": {
                "plan": plan.key,
                "planFormat": plan.format,
                "layerFormat": plan.layer_format,
                "sourceModified": source.modified,
            },
            "resolvedDependencies": dependencies,
        },
        "runDetails": {
            "builder": {"id": run.builder},
            "metadata": {"invocationId": run.invocation} if run.invocation else {},
            "byproducts": [{"name": "SBOM", "mediaType": sbom.MEDIA_TYPE, "digest": {"sha256": sha256_of(document)}}],
        },
    }


def _grafted(part: Component) -> Iterator[dict[str, Any]]:
    """Name the published wheel behind a grafted one, and the files that were compiled in its place."""
    if part.graft is not None:
        yield {"name": part.graft.file, "digest": {"sha256": part.graft.sha256}}
        for file in part.graft.replaced:
            notes = {"compiledAs": part.compiled, "replacesSha256": file.published}
            name = f"{part.file}/{file.path}"
            yield {"name": name, "digest": {"sha256": file.sha256}, "annotations": notes}


def _slimmed(part: Component) -> Iterator[dict[str, Any]]:
    """Name the slimmed libraries, each with the published file that it was made from and the rule."""
    if part.slim is not None:
        for library in part.slim.libraries:
            notes = {"slimmedFrom": library.published, "chip": part.slim.chip, "rule": part.slim.rule}
            name = f"{part.file}/{library.path}"
            yield {"name": name, "digest": {"sha256": library.sha256}, "annotations": notes}


def input_hashes(project: Project, plan: Plan) -> dict[str, Sha256]:
    """Hash the files that determine an image and its attestations: matrix.yaml and the locks."""
    paths = [
        project.root / MATRIX,
        project.wheel_lock_path(plan.cell),
        project.base_lock_path(plan.cell),
        ModelLock.path(project.locks),
        SlimLock.path(project.locks),
        LicenceLock.path(project.locks),
    ]
    return {path.relative_to(project.root).as_posix(): sha256_of(path.read_bytes()) for path in paths if path.exists()}


def read_source(root: Path) -> CheckoutState:
    """Ask git for the commit, and whether files differ from it."""
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return CheckoutState(None)
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    return CheckoutState(commit.strip(), modified=bool(changes))


def read_run(source: str, environment: Mapping[str, str] = os.environ) -> Run:
    """Return who builds: a workflow of GitHub Actions, or somebody's own machine."""
    workflow = environment.get("GITHUB_WORKFLOW_REF")
    if environment.get("GITHUB_ACTIONS") != "true" or not workflow:
        return Run(f"{source}#somebodys-machine")
    server = environment.get("GITHUB_SERVER_URL", "https://github.com")
    repository, run = environment.get("GITHUB_REPOSITORY", ""), environment.get("GITHUB_RUN_ID", "")
    attempt = environment.get("GITHUB_RUN_ATTEMPT", "1")
    return Run(f"{server}/{workflow}", f"{server}/{repository}/actions/runs/{run}/attempts/{attempt}")


def _git(root: Path, *arguments: str) -> str | None:
    words = ["git", "-C", str(root), *arguments]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own words
    return None
