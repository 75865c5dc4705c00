"""The Docker engine: renders a Dockerfile and has Docker build it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from imagefactory.build.engines.protocol import BuildOptions, BuiltImage
from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.locks.project import Project
from imagefactory.plan.plan import Plan


class DockerEngine:
    """Builds inside a Docker daemon, or with a builder of buildx."""

    summary: Final = "runs the rendered Dockerfile; the image stays in the daemon"
    takes: Final = frozenset({"builder", "cache_from", "cache_to"})

    def build(
        self, project: Project, plans: Sequence[Plan], options: BuildOptions, watch: Watcher, say: Say
    ) -> list[BuiltImage]:
        """Build the plans one after the other."""
        from imagefactory.build.engines.docker.engine import build_image  # noqa: PLC0415 - takes a second to import

        return [build_image(project, plan, options, watch, say) for plan in plans]
