"""Checks that the kernels that a server calls on a chip are there, and are more than an empty shell."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from imagefactory.errors import CheckError
from imagefactory.lock.audit.auditing import cuobjdump, open_subject, settings_of
from imagefactory.lock.audit.libraries import KernelNames, read_names
from imagefactory.project.project import Project
from imagefactory.project.server_versions import TITLES, VLLM
from images.shipped.yamlfile import read_yaml

FILE: Final = "reached.yaml"
EMPTY: Final = 512
"""Bytes of machine code up to which a kernel does nothing: CUTLASS compiles kernels for other chips to that."""
Reach = Literal["native", "jit", "empty", "missing"]


class Call(BaseModel):
    """An operation of a server, and a kernel that it launches on chips of a kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    call: str
    server: str = VLLM
    used_by: Annotated[str, Field(min_length=5)]
    chips: Annotated[str, Field(pattern=r"^[0-9]+\.[0-9x]+$")]
    """A compute capability, or all of a major version: 12.x."""
    library: str
    """A pattern for the names of the libraries that may have it."""
    kernel: str
    """A regular expression, searched for in mangled names."""

    def concerns(self, capability: str) -> bool:
        """Whether a chip takes this path."""
        return fnmatchcase(capability, self.chips.replace("x", "*"))


@dataclass(frozen=True)
class Reached:
    """What a call finds on a chip."""

    call: Call
    outcome: Reach
    why: str

    @property
    def works(self) -> bool:
        """False if the call would fail; PTX runs, once the driver has translated it."""
        return self.outcome in ("native", "jit")


def calls(capability: str, server: str = VLLM) -> list[Call]:
    source = read_yaml(Path(__file__).with_name(FILE), FILE)
    known = TypeAdapter(list[Call]).validate_python(source.data)
    return [call for call in known if call.server == server and call.concerns(capability)]


def reaches(project: Project, name: str, arch: str = "") -> list[Reached]:
    """Find the kernels of every call in a library, wheel, image, target or release."""
    subject = open_subject(project, name, arch)
    settings, policy = settings_of(project, subject.arch)
    capability = settings.capability or ""
    wanted = calls(capability, subject.server)
    if Path(name).is_file() and name.endswith(".so"):
        wanted = [call for call in wanted if fnmatchcase(Path(name).name, call.library)]
    if not wanted:
        raise CheckError(
            "not-auditable",
            f"It is not known what {TITLES[subject.server]} calls in {name} on {subject.arch}.",
            where=f"imagefactory/lock/audit/{FILE}",
            why=f"No call there concerns compute capability {capability} and these libraries.",
            fix="Add the calls, or leave out --reaches.",
        )
    program = cuobjdump(project)
    found: list[tuple[str, KernelNames]] = []
    for library in subject.libraries:
        file = Path(library.name).name
        if any(fnmatchcase(file, call.library) for call in wanted):
            with project.store.scratch() as scratch:
                library.unpack(scratch / file)
                names = read_names(scratch / file, program, policy.accept, capability, scratch)
                found.append((file, names))
    return [
        _judge(call, [names for file, names in found if fnmatchcase(file, call.library)]) for call in wanted
    ]


def refuse_unreached(subject: str, found: Sequence[Reached]) -> None:
    """Raise an error if a call would not find its kernel."""
    failing = [one for one in found if not one.works]
    if failing:
        raise CheckError(
            "kernel-missing",
            f"{len(failing)} call{'s' if len(failing) > 1 else ''} would fail with {subject}.",
            where=", ".join(one.call.call for one in failing),
            why="; ".join(f"{one.call.call}: {one.why}" for one in failing),
            fix="Compile it for this arch with all mods, or choose a release that has the kernels.",
        )


def _judge(call: Call, found: Sequence[KernelNames]) -> Reached:
    if not found:
        return Reached(call, "missing", f"there is no {call.library}")
    wanted = re.compile(call.kernel)
    sizes = [size for names in found for name, size in names.native.items() if wanted.search(name)]
    full = [size for size in sizes if size > EMPTY]
    if full:
        return Reached(call, "native", f"{len(full)} kernel{'s' if len(full) > 1 else ''}")
    translated = [name for names in found for name in names.translated if wanted.search(name)]
    if translated:
        return Reached(
            call, "jit", f"{len(translated)} as PTX only, which the driver translates at first use"
        )
    if sizes:
        return Reached(call, "empty", f"{len(sizes)} compiled to nothing: {max(sizes)} bytes")
    return Reached(call, "missing", "no kernel of that name for this chip")
