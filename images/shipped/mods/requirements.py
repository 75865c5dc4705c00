"""Picks a mod together with the mods it requires, except those that a version does not need."""

from collections.abc import Mapping

from packaging.version import Version

from images.shipped.errors import ModError
from images.shipped.mods.manifest import Mod, Stage, Variant

Picked = dict[str, tuple[Mod, Variant]]


def with_requirements(mod: Mod, mods: Mapping[str, Mod], version: Version, stage: Stage = "installed") -> Picked:
    """Pick the variants of a mod and of its requirements for a version, requirements first."""
    variant = mod.variant(version, stage)
    if variant is None:
        raise ModError(
            "not-applicable",
            f"The mod {mod.name} does not apply to vLLM {version}.",
            where=mod.where("variants"),
            why=f"{why_not(mod, version)}.",
            fix="Leave it out; `./inv mods.check` lists the versions it applies to.",
        )
    picked: Picked = {}
    for index, name in enumerate(mod.manifest.requires):
        required = mods[name]
        if required.variant(version, stage) is not None:
            picked |= with_requirements(required, mods, version, stage)
        elif not required.is_upstream(version) and required.reason_not_needed(version) is None:
            raise ModError(
                "not-applicable",
                f"The mod {mod.name} requires {name}, which does not apply to vLLM {version}.",
                where=mod.where("requires", index),
                why=f"{why_not(required, version)}.",
                fix=f"Add a variant of {name} for {version}, or leave {mod.name} out.",
            )
    return picked | {mod.name: (mod, variant)}


def why_not(mod: Mod, version: Version, *, compiled: bool = False) -> str:
    """Explain why a mod does not change the installed files of a version."""
    if mod.is_upstream(version):
        return f"{mod.name}: upstream since {mod.manifest.upstreamed_in}"
    reason = mod.reason_not_needed(version)
    if reason is not None:
        return f"{mod.name}: not needed, {reason}"
    if mod.variant(version, "source") is not None:
        if compiled:
            return f"{mod.name}: is applied to the sources, before they are compiled"
        return f"{mod.name}: changes sources that are compiled; these kernels come from a wheel"
    return f"{mod.name}: has no variant for {version}"
