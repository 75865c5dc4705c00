"""Compiled wheels: keeping, moving and adopting them: 73 to 79."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class WrongWheelError(FactoryError):
    """A wheel is not what was to be compiled: another package, version, or kind of machine."""

    exit_code = 73


class DamagedWheelError(FactoryError):
    """What the wheelhouse holds is not what was put into it."""

    exit_code = 74


class WheelNotKeptError(FactoryError):
    """Neither the wheelhouse nor the registry has such a wheel."""

    exit_code = 75


class SeveralWheelsError(FactoryError):
    """Several compiled wheels would do, and nobody said which."""

    exit_code = 76


class WheelArtifactError(FactoryError):
    """What the registry has under a wheel's name is not that wheel."""

    exit_code = 77


class NoRegistryError(FactoryError):
    """Nobody said in which registry wheels are shared."""

    exit_code = 78


class KernelRecordError(FactoryError):
    """locks/kernels.toml does not say what a wheel holds."""

    exit_code = 79
