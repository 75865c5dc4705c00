"""Identifies the image under test by its manifest digest.

Its files are read from an OCI layout, its containers run in the daemon. A daemon keeps only the digest of an image's
configuration. The manifest contains it, so the two are compared first.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.images_here import built_layouts
from imagefactory.errors import BuildError, EngineError, FactoryError
from imagefactory.oci.layout import Layout
from imagefactory.oci.registry.credentials import find_credentials
from imagefactory.oci.registry.image_download import download_image, read_image
from imagefactory.oci.registry.reference import Reference
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Plan
from imagefactory.plan.status import last_plan
from imagefactory.project.cells import Cell, buildable
from imagefactory.project.locks.files import Frozen
from imagefactory.project.project import Project
from imagefactory.store.digests import Digest, Sha256, parse_json, sha256_of
from imagefactory.store.progress import Say

PLAN_LABEL: Final = "imagefactory.plan"
_OWN_NAME = "imagefactory-smoke"
_BY_DIGEST = re.compile(r"[^@]+@sha256:[0-9a-f]{64}")


class Subject(Frozen):
    """An image and its location."""

    cell: Cell  # according to its labels
    name: str  # the user's name for it, or its path
    digest: Digest  # the manifest's digest: the image's name in registries
    config: Digest  # the configuration's digest: the image's id in daemons
    plan_key: Sha256
    layout: Path | None = None  # its OCI layout; None if it is in a registry, where `name` is its reference


def subject_of_target(project: Project, target: str) -> Subject:
    [(_, layout, _)] = built_layouts(project, [target], one=True)
    return subject_of_layout(project, layout)


def subject_of_layout(project: Project, layout: Layout) -> Subject:
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
    subject = _subject(project, layout.config(), str(layout.folder), digest, config)
    return subject.model_copy(update={"layout": layout.folder})


def subject_of_image(project: Project, name: str) -> Subject:
    """Return an image by name: the folder of a layout, or a reference by digest."""
    if Path(name, "index.json").exists():
        return subject_of_layout(project, Layout(Path(name)))
    if _BY_DIGEST.fullmatch(name):
        return _in_registry(project, name)
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
def in_layout(project: Project, subject: Subject) -> Iterator[Path]:
    """Yield the folder of the image's layout; that of an image in a registry is made here, and removed afterwards."""
    if subject.layout is not None:
        yield subject.layout
        return
    store = project.store
    with Repository.open(subject.name) as repository, store.in_use(), store.scratch() as scratch:
        image = read_image(repository, subject.digest)
        yield download_image(repository, image, store, scratch / "image").folder


@contextmanager
def in_daemon(subject: Subject, say: Say = lambda _: None) -> Iterator[str]:
    """Pull the image, or load it unless the daemon has it, and remove what was loaded; yield its id in the daemon."""
    # Daemons with containerd's image store use the manifest's digest.
    ids = (subject.config, subject.digest)
    if subject.layout is None:
        if daemon.inspect(subject.name) is None:
            say(f"pulling {subject.name}")
        yield _pulled(subject, ids)
        return
    image_id = next((candidate for candidate in ids if daemon.inspect(candidate) is not None), None)
    if image_id:
        yield image_id
        return
    name = f"{_OWN_NAME}:{subject.config[7:19]}"  # twelve digits after `sha256:`
    say(f"loading {subject.cell} into Docker")
    loaded = daemon.load(Layout(subject.layout), name)
    if loaded not in ids:
        raise _another(subject.name, f"It has {loaded}; the manifest {subject.digest} names {subject.config}.")
    try:
        yield loaded
    finally:
        with suppress(FactoryError):
            daemon.remove_name(name)


def _in_registry(project: Project, reference: str) -> Subject:
    digest = Digest(reference.rpartition("@")[2])
    with Repository.open(reference) as repository:
        image = read_image(repository, digest)
    return _subject(project, parse_json(image.config), reference, digest, image.config_digest)


def _pulled(subject: Subject, ids: tuple[Digest, Digest]) -> str:
    """Pull an image by digest, as users do; return its id in the daemon."""
    credentials = find_credentials(Reference.parse(subject.name).registry)
    auth = {"username": credentials.username, "password": credentials.secret} if credentials else None
    inspected = daemon.pull(subject.name, auth=auth)
    digests, image_id = inspected.get("RepoDigests") or [], str(inspected["Id"])
    if subject.digest not in {entry.rpartition("@")[2] for entry in digests}:
        raise _another(subject.name, f"It has the digests {', '.join(digests) or 'none'}.")
    if image_id not in ids:
        raise _another(subject.name, f"It has {image_id}; the manifest names {subject.config}.")
    return image_id


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
