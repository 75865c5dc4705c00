"""Compiling kernels, and looking into them: 95 to 99, 36 to 39, 54."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class AuditError(FactoryError):
    """A library cannot be looked into, or there is nothing to judge it by."""

    exit_code = 95


class AuditFailedError(FactoryError):
    """A library holds no code that runs on the arch."""

    exit_code = 96


class CompileFailedError(FactoryError):
    """The compile ended with an error; its log says where, and a second run goes on from there."""

    exit_code = 97


class NotEnoughRoomError(FactoryError):
    """There is too little memory or disk for the compile, which would end hours later with a worse message."""

    exit_code = 98


class WrongSourceError(FactoryError):
    """A folder given with --source is not the project that it is said to be."""

    exit_code = 99


class SourceUnreachableError(FactoryError):
    """A source that has to be fetched with git cannot be had."""

    exit_code = 36


class ToolchainMisfitError(FactoryError):
    """What this toolchain compiles would not run in the image, or it cannot compile this at all."""

    exit_code = 37


class CompileBusyError(FactoryError):
    """The same thing is being compiled already."""

    exit_code = 38


class CompileDataError(FactoryError):
    """compile.yaml says something that cannot be."""

    exit_code = 39


class UnknownTargetError(FactoryError):
    """The sources have no such target or module to compile."""

    exit_code = 54
