"""Identifies the image under test by its manifest digest.

A daemon keeps no manifest of a loaded image, only the digest of its configuration. The manifest contains that digest,
so the two are compared before any test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from imagefactory.assemble.assemble import built_layouts
from imagefactory.assemble.engines.docker import daemon
from imagefactory.errors import BuildError, CheckError, EngineError
from imagefactory.oci.layout import Layout
from imagefactory.plan.changes import last_plan
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell, reason_excluded
from imagefactory.project.project import Project
from imagefactory.store.digests import Digest, Sha256, sha256_of

PLAN_LABEL: Final = "imagefactory.plan"
_OWN_NAME = "imagefactory-smoke"
_BY_DIGEST = re.compile(r"(?P<repository>[^@]+)@(?P<digest>sha256:[0-9a-f]{64})")
_INDEXES = frozenset(
    {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}
)


class Subject(BaseModel):
    """An image and its location."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    version: str
    arch: str
    platform: str
    name: str
    """The user's name for it, or its path."""
    digest: Digest
    """The manifest's digest: the image's name in registries."""
    config: Digest
    """The configuration's digest: the image's id in daemons."""
    plan_key: Sha256
    layout: Path | None = None
    """Its OCI layout; None if only the daemon has it."""

    @property
    def cell(self) -> Cell:
        """The cell of the image, according to its labels."""
        return Cell(self.model, self.version, self.arch, self.platform)


def subject_of_target(project: Project, target: str) -> Subject:
    """Return the built image of a target."""
    [(_, layout, _)] = built_layouts(project, [target], one=True)
    return subject_of_layout(project, layout)


def subject_of_layout(project: Project, layout: Layout, name: str = "") -> Subject:
    """Return the image of an OCI layout, after checking its documents against their digests."""
    digest, config = layout.manifest_digest(), layout.config_digest()
    for what, blob in (("manifest", digest), ("configuration", config)):
        _refuse_other_bytes(layout, what, blob)
    return _subject(
        project, layout.config(), name or str(layout.folder), digest, config, layout=layout.folder
    )


def subject_of_image(project: Project, name: str, *, auth: Mapping[str, str] | None = None) -> Subject:
    """Return an image by name: a layout's folder, a reference in a registry, or an image of the daemon."""
    if Path(name, "index.json").exists():
        return subject_of_layout(project, Layout(Path(name)))
    if _BY_DIGEST.fullmatch(name):
        return _pulled(project, name, auth)
    if _has_registry(name):
        found = daemon.in_registry(name, auth=auth)
        return _pulled(project, f"{_repository(name)}@{found['digest']}", auth)
    return _loaded(project, name)


def plan_of(project: Project, subject: Subject) -> Plan | None:
    """Return the plan of an image if it is this checkout's or that of the last build here."""
    plans = [make_plan(project, subject.cell), last_plan(project.build_folder(subject.cell))]
    return next((plan for plan in plans if plan is not None and plan.key == subject.plan_key), None)


def bring_into_daemon(subject: Subject) -> tuple[str, str]:
    """Load the image unless the daemon has it.

    Returns the image's id in the daemon, and the name it was loaded under, which the caller has to remove; empty if it
    was not loaded.
    """
    # Daemons with containerd's image store use the manifest's digest.
    for known in (subject.config, subject.digest):
        if daemon.inspect(known) is not None:
            return known, ""
    if subject.layout is None:
        raise BuildError(
            "no-image",
            "The Docker daemon no longer has the image.",
            where=subject.name,
            why=f"No image has the id {subject.config}.",
            fix="Pull it again.",
        )
    name = f"{_OWN_NAME}:{subject.config[7:19]}"
    loaded = daemon.load(Layout(subject.layout), name)
    if loaded not in (subject.config, subject.digest):
        raise _another(
            subject.name, f"It has {loaded}; the manifest {subject.digest} names {subject.config}."
        )
    return loaded, name


def _pulled(project: Project, reference: str, auth: Mapping[str, str] | None) -> Subject:
    """Pull an image by digest, unless it cannot run here and a local layout has it."""
    found = _BY_DIGEST.fullmatch(reference)
    assert found is not None, reference  # noqa: S101 - both callers ensure it
    digest = Digest(found["digest"])
    described = daemon.in_registry(reference, auth=auth)
    if described["mediaType"] in _INDEXES:
        raise BuildError(
            "no-image",
            f"{reference} is an index of several images.",
            where=reference,
            why="Smoke tests need a single image.",
            fix="Use the digest of one of its images; `docker manifest inspect` lists them.",
        )
    layout = _layout_of(project, digest)
    if layout is not None:
        subject = subject_of_layout(project, layout, reference)
        if subject.platform != f"linux/{daemon.ask().machine}":
            return subject
    known = daemon.pull(reference, auth=auth)
    by = {_BY_DIGEST.fullmatch(entry) for entry in known.get("RepoDigests") or ()}
    if digest not in {match["digest"] for match in by if match}:
        raise _another(
            reference, f"It has the digests {', '.join(known.get('RepoDigests') or ()) or 'none'}."
        )
    config = Digest(known["Id"])
    if layout is None:
        return _subject(project, _document(known), reference, digest, config)
    if config not in (subject.config, digest):
        raise _another(reference, f"It has {config}; the manifest names {subject.config}.")
    return subject


def _layout_of(project: Project, digest: Digest) -> Layout | None:
    """Find an image among the local builds."""
    for index in sorted((project.root / "build").glob("*/index.json")):
        layout = Layout(index.parent)
        with suppress(BuildError):
            if layout.manifest_digest() == digest:
                return layout
    return None


def _another(reference: str, why: str) -> EngineError:
    return EngineError(
        "engine-failed",
        "The Docker daemon has another image than requested.",
        where=reference,
        why=why,
        fix="Try again; update Docker, and report it if it happens again.",
    )


def _document(known: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the daemon's description of an image to an image configuration."""
    return {"config": known.get("Config") or {}, "os": known["Os"], "architecture": known["Architecture"]}


def _loaded(project: Project, name: str) -> Subject:
    """Return an image of the daemon, with the manifest digest from its layout or from locks/layers.toml."""
    known = daemon.inspect(name)
    if known is None:
        raise BuildError(
            "no-image",
            f"Docker has no image {name}.",
            where="the Docker daemon",
            why="No OCI layout and no image of the daemon has this name.",
            fix="Use a reference with a registry, or load the image: `./inv load --target ...`.",
        )
    config = Digest(known["Id"])
    # Its manifest digest follows from the cell in its labels.
    subject = _subject(project, _document(known), name, config, config)
    layout = Layout(project.build_folder(subject.cell))
    if (layout.folder / "index.json").exists() and layout.config_digest() == config:
        return subject_of_layout(project, layout, name)
    image = KnownLayers(project.known_layers).image(make_plan(project, subject.cell))
    if image is not None and image.config_digest == config:
        return subject.model_copy(update={"digest": image.digest})
    raise CheckError(
        "bad-smoke-record",
        f"The manifest of {name} is unknown.",
        where=name,
        why="A daemon keeps no manifest of a loaded image, and no manifest of this checkout has the configuration "
        f"{config}.",
        fix="Use its digest (REPOSITORY@sha256:...), or build the target again.",
    )


def _subject(
    project: Project,
    document: Mapping[str, Any],
    name: str,
    digest: Digest,
    config: Digest,
    *,
    layout: Path | None = None,
) -> Subject:
    labels = (document.get("config") or {}).get("Labels") or {}
    platform = f"{document.get('os')}/{document.get('architecture')}"
    cell = Cell.of_labels(labels, platform)
    key = str(labels.get(PLAN_LABEL, ""))
    matrix = project.matrix
    known = (
        cell.model in matrix.models
        and cell.version in matrix.versions
        and cell.arch in matrix.archs
        and reason_excluded(matrix, cell) is None
    )
    if not known or not re.fullmatch(r"[0-9a-f]{64}", key):
        named = " ".join(filter(None, (cell.model, cell.version, cell.arch)))
        raise BuildError(
            "no-image",
            f"{name} is not an image of this matrix.",
            where=name,
            why=f"Its labels name the cell {named or '(nothing)'} for {platform} "
            f"and the plan {key or '(nothing)'}.",
            fix="Use an image of `./inv build`; `./inv targets` lists them.",
        )
    return Subject(
        **asdict(cell),
        name=name,
        digest=digest,
        config=config,
        plan_key=Sha256(key),
        layout=layout,
    )


def _refuse_other_bytes(layout: Layout, what: str, digest: Digest) -> None:
    data = layout.blob(digest).read_bytes() if layout.blob(digest).exists() else b""
    if f"sha256:{sha256_of(data)}" != digest:
        raise BuildError(
            "no-image",
            f"The {what} of the image is damaged.",
            where=layout.folder,
            why=f"Its bytes are not those of {digest}.",
            fix="Build it again: `./inv build --target ...`.",
        )
    json.loads(data)


def _has_registry(name: str) -> bool:
    """Whether a name starts with a registry's host, by Docker's rule."""
    first, slash, _ = name.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def _repository(name: str) -> str:
    head, slash, last = name.rpartition("/")
    return f"{head}{slash}{last.partition(':')[0]}"
