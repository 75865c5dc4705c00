"""Locks of what is in the libraries of wheels: GPU code that was found, and GPU code that was taken out."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from imagefactory.project.locks.lock import Frozen, Hash, SingleLock


class LibraryKernels(Frozen):
    """The number of cubins and PTX modules in one shared library, per GPU target."""

    name: str
    cubins: dict[str, int] = Field(default_factory=dict)
    ptx: dict[str, int] = Field(default_factory=dict)
    fp4: bool = False


class WheelKernels(Frozen):
    """The GPU code in a wheel: one entry for each library that has any."""

    file: str
    sha256: Hash
    libraries: tuple[LibraryKernels, ...] = ()


class KernelLock(SingleLock):
    """The GPU code in the locked wheels, recorded so that planning need not inspect any wheel."""

    file: ClassVar[str] = "kernels.toml"
    header: ClassVar[str] = (
        "For which chips the kernels of the locked wheels were compiled, read with cuobjdump."
    )

    wheels: tuple[WheelKernels, ...] = ()

    def find(self, sha256: str) -> WheelKernels | None:
        """Return the record of a wheel, if there is one."""
        return next((wheel for wheel in self.wheels if wheel.sha256 == sha256), None)


class SlimmedLibrary(Frozen):
    """A library of a wheel without the GPU code that a chip cannot load."""

    path: str
    published: Hash
    """The sha256 of the file in the wheel."""
    sha256: Hash
    kept: dict[str, int] = Field(default_factory=dict)
    """The bytes of GPU code per target."""
    blanked: dict[str, int]


class UntouchedLibrary(Frozen):
    """A library whose GPU code is not understood, and stays as it is."""

    path: str
    why: str


class SlimmedWheel(Frozen):
    """What was taken out of a wheel for a chip."""

    file: str
    sha256: Hash
    chip: str
    rule: int
    libraries: tuple[SlimmedLibrary, ...] = ()
    untouched: tuple[UntouchedLibrary, ...] = ()


class SlimLock(SingleLock):
    """The libraries that builds slimmed, recorded so that their hashes are known before a build."""

    file: ClassVar[str] = "slim.toml"
    header: ClassVar[str] = (
        "The libraries without the GPU code that a chip cannot load: hashes, and bytes per target."
    )
    maker: ClassVar[str] = "build"

    wheels: tuple[SlimmedWheel, ...] = ()

    def find(self, sha256: str, chip: str, rule: int) -> SlimmedWheel | None:
        """Return what was taken out of a wheel for a chip, if it is on record."""
        wanted = (sha256, chip, rule)
        return next((one for one in self.wheels if (one.sha256, one.chip, one.rule) == wanted), None)
