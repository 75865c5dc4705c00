"""Runs the compilers of a toolchain in containers of the local Docker daemon."""

from __future__ import annotations

from pathlib import Path

from imagefactory.build.engines.docker import daemon
from imagefactory.build.watch import Watcher
from imagefactory.compile import container, toolchain
from imagefactory.compile.capacity import BuildMachine
from imagefactory.compile.toolchain import CompileProject
from imagefactory.plan.plan import Plan


class Compiler:
    """The local Docker daemon; tests replace it."""

    run = staticmethod(container.run)

    def machine(self) -> BuildMachine:
        """Return the cores and the memory that the compilers can use."""
        return BuildMachine.this()

    def refuse_foreign(self, platform: str) -> None:
        """Raise an error unless it runs programs of a platform natively."""
        daemon.refuse_foreign(daemon.ask(), platform)

    def image_folder(self, plan: Plan) -> Path | None:
        """Return the folder that a toolchain's image would be stored in; None if it is there or the folder unknown."""
        return container.root_folder() if daemon.image_id(toolchain.image_name(plan)) is None else None

    def provide(self, project: CompileProject, plan: Plan, watch: Watcher) -> str:
        """Make the image of a toolchain available, and return its name."""
        return toolchain.provide(project, plan, watch)
