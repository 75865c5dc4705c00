"""Locate a locked compiled wheel: in the wheelhouse, in a configured folder, or in the registry."""

from __future__ import annotations

from imagefactory.environment.index_config import IndexConfig
from imagefactory.locks.files import LockedWheel
from imagefactory.locks.project import Project
from imagefactory.resolve.wheelhouse.keep import find
from imagefactory.resolve.wheelhouse.remote import opened, pull, remote_wheels, shared_at
from imagefactory.store.indexes import local_wheels


def compiled_locations(project: Project, wheel: LockedWheel) -> list[str]:
    """List local files that may be a locked wheel; if there is none, pull it from the registry.

    The lock's sha256 decides. The same inputs may compile to different bytes on another machine, so the wheel that the
    wheelhouse has under a key is only a candidate.
    """
    kept = find(project.store, str(wheel.compiled))
    if kept is not None and kept.sha256 == wheel.sha256:
        return [str(kept.path)]
    folders = local_wheels(IndexConfig.from_environment())
    found = [str(path) for path in folders if path.name == wheel.file]
    where = shared_at(project.matrix)
    if not found and where is not None:
        with opened(where) as repository:
            offers = [
                offer for offer in remote_wheels(repository, wheel.name) if offer.sha256 == wheel.sha256
            ]
            found = [str(pull(repository, offer, project.store).path) for offer in offers[:1]]
    return found
