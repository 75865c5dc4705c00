"""Where a compile runs: on this machine, in containers of the Docker daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from imagefactory.build.engines.docker import daemon
from imagefactory.build.watch import Watcher
from imagefactory.compile import container, toolchain
from imagefactory.compile.capacity import BuildMachine
from imagefactory.compile.container import Ended, Mount
from imagefactory.compile.toolchain import CompileProject
from imagefactory.plan.plan import Plan


class Compiler(Protocol):
    """Whatever runs the compilers of a toolchain."""

    def machine(self) -> BuildMachine:
        """Return the cores and the memory that the compilers can use."""

    def refuse_foreign(self, platform: str) -> None:
        """Raise an error unless it runs programs of a platform natively."""

    def image_folder(self, plan: Plan) -> Path | None:
        """Return the folder that a toolchain's image would be stored in; None if it is there or the folder unknown."""

    def provide(self, project: CompileProject, plan: Plan, watch: Watcher) -> str:
        """Make the image of a toolchain available, and return its name."""

    def run(
        self,
        image: str,
        command: Sequence[str],
        *,
        key: str,
        mounts: Sequence[Mount],
        environment: Mapping[str, str],
        log: Path,
        hear: Callable[[str], None],
    ) -> Ended:
        """Run a command in a container of an image; each line of output goes to the log and to `hear`."""


class DockerCompiler:
    """Runs compilers in the local Docker daemon."""

    machine = staticmethod(BuildMachine.this)
    provide = staticmethod(toolchain.provide)
    run = staticmethod(container.run)

    def refuse_foreign(self, platform: str) -> None:
        """Raise an error unless the daemon runs programs of a platform natively."""
        daemon.refuse_foreign(daemon.ask(), platform)

    def image_folder(self, plan: Plan) -> Path | None:
        """Return the daemon's folder of images, unless it has this one or is on another machine."""
        return container.root_folder() if daemon.image_id(toolchain.image_name(plan)) is None else None
