"""Describes mods: what each changes and why, on which versions, and which version has it upstream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imagefactory.project.cells import first_of_release
from imagefactory.project.matrix import Matrix
from imagefactory.project.server_versions import server_name, version_title
from imagefactory.site.stock import Stock
from images.shipped.mods.manifest import STAGES, Mod


@dataclass(frozen=True)
class OnVersion:
    """What a mod says about a version."""

    version: str
    state: str
    """applies, upstream, not needed or not covered"""
    detail: str


@dataclass(frozen=True)
class ModPage:
    """A mod."""

    name: str
    summary: str
    why: str
    licence: str
    distribution: str
    server: str
    upstreamed_in: str | None
    needed_when: tuple[str, ...]
    files: tuple[str, ...]
    """The files that it changes in the newest version that it applies to."""
    versions: tuple[OnVersion, ...]
    images: tuple[str, ...]
    """The images that have it, by their slugs."""


def mod_pages(stock: Stock) -> list[ModPage]:
    """Describe all mods of the checkout."""
    users: dict[str, list[str]] = {}
    for cell, planned in stock.planned.items():
        for mod in planned.plan.mods:
            users.setdefault(mod.name, []).append(cell.slug)
    return [
        ModPage(
            name=mod.name,
            summary=mod.manifest.summary,
            why=mod.manifest.why,
            licence=mod.manifest.licence,
            distribution=mod.manifest.distribution,
            server=mod.manifest.of_server,
            upstreamed_in=mod.manifest.upstreamed_in,
            needed_when=tuple(
                ", ".join(f"{key} {value}" for key, value in one.model_dump(exclude_none=True).items())
                for one in mod.manifest.needed_when
            ),
            files=tuple(
                dict.fromkeys(path for variant in mod.manifest.variants[-1:] for path in variant.paths)
            ),
            versions=tuple(_versions(stock.project.matrix, mod)),
            images=tuple(users.get(mod.name, ())),
        )
        for mod in stock.project.mods.values()
    ]


def _versions(matrix: Matrix, mod: Mod) -> Iterator[OnVersion]:
    """Yield what the mod declares about each release; `mods.check` holds it to that."""
    for name, version in matrix.versions.items():
        if (
            version.release is None
            or server_name(name) != mod.manifest.of_server
            or first_of_release(matrix, name) != name
        ):
            continue
        title = version_title(name)
        if mod.is_upstream(version.version):
            yield OnVersion(title, "upstream", f"since {mod.manifest.upstreamed_in}")
            continue
        stages = [stage for stage in STAGES if mod.variant(version.version, stage)]
        if stages:
            yield OnVersion(title, "applies", "to the sources" if stages == ["source"] else "")
        else:
            reason = mod.reason_not_needed(version.version)
            yield OnVersion(
                title, "not needed" if reason else "not covered", reason or "mod.yaml says nothing about it"
            )
