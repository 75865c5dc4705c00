"""Prepares a smoke run on this machine: the image to test, and the levels that cannot run."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pydantic import Field

from imagefactory.assemble.assemble import BuildRun, assemble
from imagefactory.assemble.engines.docker import daemon
from imagefactory.assemble.watch import Unwatched
from imagefactory.check.smoke.containers import Containers
from imagefactory.check.smoke.record import Level, reason_in
from imagefactory.check.smoke.subject import (
    Subject,
    in_daemon,
    in_layout,
    plan_of,
    subject_of_layout,
    subject_of_target,
)
from imagefactory.errors import BuildError, FactoryError
from imagefactory.oci.layout import Layout
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.project.counterparts import cpu_counterparts, has_gpu
from imagefactory.project.locks.files import Frozen
from imagefactory.project.project import Project
from imagefactory.project.servers.known import server_of
from imagefactory.store.digests import Digest
from imagefactory.store.progress import Say

_GPU_QUERY = ("--query-gpu=name,compute_cap", "--format=csv,noheader")
_GPU = re.compile(r"(?P<name>.+), (?P<capability>\d+\.\d+)")


class Serving(Frozen):
    """The image that the level `serve` starts: the one under test, or its CPU counterpart."""

    image: str
    digest: Digest
    target: str
    mods: tuple[str, ...] = ()  # mods of the image under test that its counterpart lacks and applies at start-up
    variables: dict[str, str] = Field(default={})
    """With which an image for GPUs serves the tiny model; empty for an image for CPUs."""
    on_gpu: bool = False


class Assignment(Frozen):
    """The input of the tests."""

    root: Path
    run: str
    subject: Subject
    image: str = ""  # the image's id in the daemon; empty if the daemon cannot run it
    serving: Serving | None = None
    hindered: dict[Level, str] = Field(default={})  # why a level cannot run
    engine: str = ""
    gpus: tuple[str, ...] = ()
    settings: dict[str, str] = Field(default={})  # of the server at the level `gpu`


class _CannotRunError(Exception):
    """A level cannot run; the message is the reason."""


@contextmanager
def assigned(
    project: Project,
    subject: Subject,
    levels: Sequence[Level],
    settings: Mapping[str, str] | None = None,
    say: Say = lambda _: None,
) -> Iterator[Assignment]:
    """Prepare an image for its tests; afterwards remove its layout, and what was loaded into the daemon."""
    with ExitStack() as loaded:
        preparing = _Preparing(project, subject, Containers(uuid4().hex[:12]), loaded, say)
        try:
            yield preparing.assignment(levels).model_copy(update={"settings": dict(settings or {})})
        finally:
            # Containers go before their images, which the stack removes after this.
            if preparing.engine is not None:
                preparing.containers.remove_all()


@dataclass
class _Preparing:
    project: Project
    subject: Subject
    containers: Containers
    loaded: ExitStack
    say: Say
    engine: daemon.Daemon | None = None

    def assignment(self, levels: Sequence[Level]) -> Assignment:
        facts: dict[str, object] = {}
        hindered: dict[Level, str] = {}
        steps: dict[Level, Callable[[], dict[str, object]]] = {
            "static": self._for_reading,
            "container": self._for_containers,
            "serve": self._for_serving,
            "gpu": self._for_a_gpu,
        }
        for level, prepare in steps.items():
            try:
                facts |= prepare() if level in levels else {}
            except _CannotRunError as error:
                hindered[level] = str(error)
            except FactoryError as error:
                hindered[level] = f"{error.what} {' '.join(error.why.split())}"
        made = Assignment(
            root=self.project.root,
            run=self.containers.run,
            subject=self.subject,
            hindered=hindered,
            engine=f"Docker {self.engine.version}" if self.engine else "",
        )
        return made.model_copy(update=facts)

    def _for_reading(self) -> dict[str, object]:
        layout = self.loaded.enter_context(in_layout(self.project, self.subject))
        return {"subject": self.subject.model_copy(update={"layout": layout})}

    def _for_containers(self) -> dict[str, object]:
        self._refuse_foreign()
        return {"image": self.loaded.enter_context(in_daemon(self.subject, self.say))}

    def _for_serving(self) -> dict[str, object]:
        counterpart = self._counterpart()
        if isinstance(counterpart, str):
            return self._serving_on_the_gpu(counterpart)
        mods = self._mods_to_add(counterpart) if counterpart != self.subject else ()
        image = self.loaded.enter_context(in_daemon(counterpart, self.say))
        target = counterpart.cell.full_target
        variables = dict(server_of(counterpart.cell).on_cpu)
        serving = Serving(image=image, digest=counterpart.digest, target=target, mods=mods, variables=variables)
        return {"serving": serving}

    def _serving_on_the_gpu(self, lack: str) -> dict[str, object]:
        """Let the image serve by itself, since no image for CPUs can do it, if there is a GPU that it is for."""
        try:
            facts = self._for_a_gpu()
        except _CannotRunError as error:
            raise _CannotRunError(f"{lack}, and {error}") from None
        subject = self.subject
        serving = Serving(
            image=str(facts["image"]),
            digest=subject.digest,
            target=subject.cell.full_target,
            variables=dict(server_of(subject.cell).on_gpu),
            on_gpu=True,
        )
        return {**facts, "serving": serving}

    def _for_a_gpu(self) -> dict[str, object]:
        arch = self.project.matrix.archs[self.subject.cell.arch]
        if arch.capability is None:
            raise _CannotRunError(f"{self.subject.cell.arch} has no GPU")
        self._refuse_foreign()
        image = self.loaded.enter_context(in_daemon(self.subject, self.say))
        options = ("--gpus", "all", "--entrypoint", "nvidia-smi")
        done = self.containers.once(image, *_GPU_QUERY, options=options, timeout=120)
        gpus = tuple(match for line in done.stdout.splitlines() if (match := _GPU.fullmatch(line.strip())))
        if done.returncode or not gpus:
            reason = reason_in(done.stderr.strip() or done.stdout)
            raise _CannotRunError(f"containers see no NVIDIA GPU here ({reason})")
        if arch.capability not in {gpu["capability"] for gpu in gpus}:
            present = ", ".join(f"{gpu['name']} ({gpu['capability']})" for gpu in gpus)
            raise _CannotRunError(f"the image is for compute capability {arch.capability}; here is {present}")
        return {"image": image, "gpus": tuple(gpu["name"] for gpu in gpus)}

    def _here(self) -> str:
        if self.engine is None:
            self.engine = daemon.ask()
        return f"linux/{self.engine.machine}"

    def _refuse_foreign(self) -> None:
        """Refuse an image for another platform: servers crash under emulation."""
        if self.subject.cell.platform != self._here():
            platform = self.subject.cell.platform
            raise _CannotRunError(f"the image is for {platform} and the engine runs on {self._here()}")

    def _counterpart(self) -> Subject | str:
        """Find the image of the same version that serves without a GPU, or say why there is none."""
        project, subject = self.project, self.subject
        if not has_gpu(project.matrix, subject.cell.arch) or server_of(subject.cell).on_cpu:
            self._refuse_foreign()
            return subject
        platform = self._here()
        cells = [cell for cell in cpu_counterparts(project, subject.cell.version) if cell.platform == platform]
        if not cells:
            return f"{subject.cell.runs} has no cell for a CPU on {platform}"
        cell = next((cell for cell in cells if project.is_locked(cell)), None)
        if cell is None:
            return f"{cells[0]} is not locked for {platform}"
        try:
            return subject_of_target(project, cell.full_target)
        except BuildError:  # it is missing or out of date
            known_layers = KnownLayers(project.known_layers)
            [built] = assemble(BuildRun(project, [make_plan(project, cell)], Unwatched(), known_layers))
            return subject_of_layout(project, Layout(built.layout.folder))

    def _mods_to_add(self, counterpart: Subject) -> tuple[str, ...]:
        """List the mods that a counterpart lacks and has to apply at start-up."""
        plans = [plan_of(self.project, subject) for subject in (self.subject, counterpart)]
        if plans[0] is None or plans[1] is None:
            raise _CannotRunError("this checkout does not have the image's plan, so its mods are unknown")
        present = {mod.name for mod in plans[1].mods}
        return tuple(mod.name for mod in plans[0].mods if mod.name not in present)
