"""What a run of publishing was asked for: one value that goes through all steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from imagefactory.assemble.watch import Unwatched, Watcher
from imagefactory.check.smoke.record import Level
from imagefactory.oci.registry.image_push import PushWatcher
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from imagefactory.publish.standing import Gate
from imagefactory.store.progress import Say

if TYPE_CHECKING:
    from imagefactory.publish.attest.signing import Signer


@dataclass(frozen=True)
class PublishRun:
    """What was asked for, and the registry as this run found it."""

    gate: Gate
    say: Say
    signer: Signer | None = None
    """Without one, nothing is signed."""
    watch: Watcher = field(default_factory=Unwatched)
    pushing: PushWatcher | None = None
    levels: tuple[Level, ...] = ()
    """Levels to test, if not those that the arch requires."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of the server at the level gpu, and of the one whose answers are measured."""
    must_pass: bool = False
    """Whether an image that fails its tests ends there; otherwise its record is attached."""
    retest: bool = False
    answers: bool = False
    """Whether to measure answers also if the level `gpu` does not run."""

    @property
    def project(self) -> Project:
        return self.gate.project

    @property
    def repository(self) -> Repository:
        return self.gate.repository
