"""Identifies the image under test by its manifest digest.

A daemon keeps only the digest of an image's configuration. The manifest contains it, so the two are compared first.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.images_here import built_layouts
from imagefactory.errors import BuildError, EngineError, FactoryError
from imagefactory.oci.image import INDEX_TYPE
from imagefactory.oci.layout import Layout
from imagefactory.oci.registry.repository import DOCKER_INDEX_TYPE
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.plan.status import last_plan
from imagefactory.project.cells import Cell, buildable
from imagefactory.project.locks.files import Frozen
from imagefactory.project.project import Project
from imagefactory.store.digests import Digest, Sha256, sha256_of

PLAN_LABEL: Final = "imagefactory.plan"
_OWN_NAME = "imagefactory-smoke"
_BY_DIGEST = re.compile(r"[^@]+@sha256:[0-9a-f]{64}")
_INDEXES = (INDEX_TYPE, DOCKER_INDEX_TYPE)


class Subject(Frozen):
    """An image and its location."""

    cell: Cell  # according to its labels
    name: str  # the user's name for it, or its path
    digest: Digest  # the manifest's digest: the image's name in registries
    config: Digest  # the configuration's digest: the image's id in daemons
    plan_key: Sha256
    layout: Path | None = None  # its OCI layout; None if only the daemon has it


def subject_of_target(project: Project, target: str) -> Subject:
    [(_, layout, _)] = built_layouts(project, [target], one=True)
    return subject_of_layout(project, layout)


def subject_of_layout(project: Project, layout: Layout, name: str = "") -> Subject:
    """Return the image of an OCI layout, after checking its documents against their digests."""
    digest, config = layout.manifest_digest(), layout.config_digest()
    for what, expected in (("manifest", digest), ("configuration", config)):
        blob = layout.blob(expected)
        if not blob.exists() or f"sha256:{sha256_of(blob.read_bytes())}" != expected:
            raise BuildError(
                "no-image",
                f"The {what} of the image is damaged.",
                where=layout.folder,
                why=f"Its bytes are not those of {expected}.",
                fix="Build it again: `./inv build --target ...`.",
            )
    subject = _subject(project, layout.config(), name or str(layout.folder), digest, config)
    return subject.model_copy(update={"layout": layout.folder})


def subject_of_image(project: Project, name: str, *, auth: Mapping[str, str] | None = None) -> Subject:
    """Return an image by name: the folder of a layout, or a reference by digest."""
    if Path(name, "index.json").exists():
        return subject_of_layout(project, Layout(Path(name)))
    if _BY_DIGEST.fullmatch(name):
        return _pulled(project, name, auth)
    raise BuildError(
        "no-image",
        f"{name} is neither an OCI layout nor a reference by digest.",
        where="the --image option",
        why="A tag can move, and a daemon keeps no manifest of a loaded image.",
        fix="Use REPOSITORY@sha256:..., the folder of a layout, or --target.",
    )


def subject_named(project: Project, name: str) -> Subject:
    is_image = "sha256:" in name or Path(name, "index.json").exists()
    return subject_of_image(project, name) if is_image else subject_of_target(project, name)


def plan_of(project: Project, subject: Subject) -> Plan | None:
    """Return the plan of an image if it is this checkout's or that of the last build here."""
    plans = [make_plan(project, subject.cell), last_plan(project.build_folder(subject.cell))]
    return next((plan for plan in plans if plan is not None and plan.key == subject.plan_key), None)


@contextmanager
def in_daemon(subject: Subject) -> Iterator[str]:
    """Load the image unless the daemon has it, and remove it afterwards if so; yield its id in the daemon."""
    # Daemons with containerd's image store use the manifest's digest.
    ids = (subject.config, subject.digest)
    image_id = next((candidate for candidate in ids if daemon.inspect(candidate) is not None), None)
    if image_id or subject.layout is None:  # it was pulled
        yield image_id or subject.config
        return
    name = f"{_OWN_NAME}:{subject.config[7:19]}"  # twelve digits after `sha256:`
    loaded = daemon.load(Layout(subject.layout), name)
    if loaded not in ids:
        raise _another(subject.name, f"It has {loaded}; the manifest {subject.digest} names {subject.config}.")
    try:
        yield loaded
    finally:
        with suppress(FactoryError):
            daemon.remove_name(name)


def _pulled(project: Project, reference: str, auth: Mapping[str, str] | None) -> Subject:
    """Pull an image by digest, unless it cannot run here and a local layout has it."""
    digest = Digest(reference.rpartition("@")[2])
    if daemon.in_registry(reference, auth=auth)["mediaType"] in _INDEXES:
        raise BuildError(
            "no-image",
            f"{reference} is an index of several images.",
            where=reference,
            why="Smoke tests need a single image.",
            fix="Use the digest of one of its images; `docker manifest inspect` lists them.",
        )
    subject = _built_here(project, reference, digest)
    if subject and subject.cell.platform != f"linux/{daemon.ask().machine}":
        return subject
    inspected = daemon.pull(reference, auth=auth)
    digests = inspected.get("RepoDigests") or []
    if digest not in {entry.rpartition("@")[2] for entry in digests}:
        raise _another(reference, f"It has the digests {', '.join(digests) or 'none'}.")
    config = Digest(inspected["Id"])
    if subject is None:
        document = {"config": inspected.get("Config"), "os": inspected["Os"], "architecture": inspected["Architecture"]}
        return _subject(project, document, reference, digest, config)
    if config not in (subject.config, digest):
        raise _another(reference, f"It has {config}; the manifest names {subject.config}.")
    return subject


def _built_here(project: Project, reference: str, digest: Digest) -> Subject | None:
    for index in sorted((project.root / "build").glob("*/index.json")):
        layout = Layout(index.parent)
        with suppress(BuildError):
            if layout.manifest_digest() == digest:
                return subject_of_layout(project, layout, reference)
    return None


def _another(reference: str, why: str) -> EngineError:
    return EngineError(
        "engine-failed",
        "The Docker daemon has another image than requested.",
        where=reference,
        why=why,
        fix="Try again; update Docker, and report it if it happens again.",
    )


def _subject(project: Project, document: Mapping[str, Any], name: str, digest: Digest, config: Digest) -> Subject:
    labels = (document.get("config") or {}).get("Labels") or {}
    platform = f"{document.get('os')}/{document.get('architecture')}"
    cell = Cell.of_labels(labels, platform)
    key = str(labels.get(PLAN_LABEL, ""))
    if cell not in buildable(project.matrix) or not re.fullmatch(r"[0-9a-f]{64}", key):
        named = " ".join(filter(None, (cell.model, cell.version, cell.arch)))
        raise BuildError(
            "no-image",
            f"{name} is not an image of this matrix.",
            where=name,
            why=f"Its labels name the cell {named or '(nothing)'} for {platform} and the plan {key or '(nothing)'}.",
            fix="Use an image of `./inv build`; `./inv targets` lists them.",
        )
    return Subject(cell=cell, name=name, digest=digest, config=config, plan_key=Sha256(key))
