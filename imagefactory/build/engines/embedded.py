"""The embedded engine: assembles images without Docker, the same bytes on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from imagefactory.build.assemble import assemble
from imagefactory.build.engines.protocol import BuildOptions, BuiltImage
from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.locks.project import Project
from imagefactory.plan.plan import Plan


class EmbeddedEngine:
    """Builds layers itself and writes OCI layouts."""

    summary: Final = "assembles layers without Docker, bit for bit"
    takes: Final = frozenset({"output", "locked", "workers"})

    def build(
        self, project: Project, plans: Sequence[Plan], options: BuildOptions, watch: Watcher, say: Say
    ) -> list[BuiltImage]:
        """Build all plans together; layers that they share are built once."""
        built = assemble(
            project,
            plans,
            watch,
            say,
            locked_only=options.locked,
            output=options.output,
            workers=options.workers,
        )
        return [
            BuiltImage(one.plan, one.image.digest, str(one.layout.folder), tuple(one.image.layers))
            for one in built
        ]
