"""Describes the mods of the checkout: what they change, for which versions, in which images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from imagefactory.project.cells import first_of_release
from imagefactory.project.matrix import Matrix
from imagefactory.project.server_versions import server_name, version_title
from imagefactory.site.stock import Stock
from images.shipped.mods.manifest import STAGES, Mod


@dataclass(frozen=True)
class Declared:
    """What a mod declares about a release."""

    version: str
    state: str
    detail: str


@dataclass(frozen=True)
class ModPart:
    """A mod; `files` are those of the newest version that it applies to."""

    name: str
    summary: str
    why: str
    licence: str
    distribution: str
    server: str
    upstreamed_in: str | None
    needed_when: tuple[str, ...]
    files: tuple[str, ...]
    versions: tuple[Declared, ...]
    images: tuple[str, ...]


def mods_page(stock: Stock) -> tuple[ModPart, ...]:
    """Describe all mods of the checkout."""
    users: dict[str, list[str]] = {}
    for cell, planned in stock.planned.items():
        for mod in planned.plan.mods:
            users.setdefault(mod.name, []).append(cell.slug)
    return tuple(
        ModPart(
            name=mod.name,
            summary=mod.manifest.summary,
            why=mod.manifest.why,
            licence=mod.manifest.licence,
            distribution=mod.manifest.distribution,
            server=mod.manifest.of_server,
            upstreamed_in=mod.manifest.upstreamed_in,
            needed_when=tuple(
                ", ".join(f"{key} {value}" for key, value in condition.model_dump(exclude_none=True).items())
                for condition in mod.manifest.needed_when
            ),
            files=tuple(dict.fromkeys(path for variant in mod.manifest.variants[-1:] for path in variant.paths)),
            versions=tuple(_declared(stock.project.matrix, mod)),
            images=tuple(users.get(mod.name, ())),
        )
        for mod in stock.project.mods.values()
    )


def _declared(matrix: Matrix, mod: Mod) -> Iterator[Declared]:
    """Yield what the mod declares about each release, newest first; `mods.check` holds it to that."""
    for name, version in reversed(matrix.versions.items()):
        if version.release is None or first_of_release(matrix, name) != name:
            continue
        if server_name(name) != mod.manifest.of_server:
            continue
        stages = [stage for stage in STAGES if mod.variant(version.version, stage)]
        reason = mod.reason_not_needed(version.version)
        if mod.is_upstream(version.version):
            state, detail = "upstream", f"since {mod.manifest.upstreamed_in}"
        elif stages:
            state, detail = "applies", "to the sources" if stages == ["source"] else ""
        else:
            state = "not needed" if reason else "not covered"
            detail = reason or "mod.yaml says nothing about it"
        yield Declared(version_title(name), state, detail)
