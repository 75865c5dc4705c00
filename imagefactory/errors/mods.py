"""Mods: 80 to 94."""

from __future__ import annotations

from imagefactory.errors import FactoryError


class ModManifestError(FactoryError):
    """A mod.yaml is wrong: a value, a reference, a file that it names."""

    exit_code = 80


class AnchorError(FactoryError):
    """An anchor occurs not once, but never or several times."""

    exit_code = 81


class PatchError(FactoryError):
    """A diff does not fit where it says, or touches what it does not declare."""

    exit_code = 82


class ModFileError(FactoryError):
    """A file that a mod changes is missing, or one that it adds is there already."""

    exit_code = 83


class ModCheckError(FactoryError):
    """A statement of a mod does not hold in the patched tree, or holds without the mod."""

    exit_code = 84


class ModConflictError(FactoryError):
    """Two mods touch the same lines, or say that they cannot be together."""

    exit_code = 85


class ModNotApplicableError(FactoryError):
    """A mod that was named does not apply to this version."""

    exit_code = 86


class ModClaimError(FactoryError):
    """A mod claims a version for which it does not hold."""

    exit_code = 87


class SourceMissingError(FactoryError):
    """The sources that a mod changes are out of reach."""

    exit_code = 88


class ModKeyError(FactoryError):
    """A mod.yaml has a key that mods do not know."""

    exit_code = 89


class ModPathError(FactoryError):
    """A mod names a path outside of the distribution that it changes."""

    exit_code = 90


class ModLicenceError(FactoryError):
    """A mod does not say its licence, or not in a form that an image can carry."""

    exit_code = 91


class ModVersionsError(FactoryError):
    """A version range of a mod is none, matches nothing, or says the same versions twice."""

    exit_code = 92


class ModCycleError(FactoryError):
    """Mods require each other in a circle."""

    exit_code = 93


class ModSyntaxError(FactoryError):
    """An edit leaves a file that does not compile."""

    exit_code = 94
