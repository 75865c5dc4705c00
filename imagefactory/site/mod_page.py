"""Describes mods: what each changes and why, on which versions, and which version has it upstream."""

from __future__ import annotations

from collections.abc import Iterator

from imagefactory.project.cells import first_of_release
from imagefactory.project.matrix import Matrix
from imagefactory.project.server_versions import server_name, version_title
from imagefactory.site.stock import Document, Stock
from images.shipped.mods.manifest import STAGES, Mod


def mod_pages(stock: Stock) -> list[Document]:
    """Describe all mods of the checkout; `files` are those of the newest version that it applies to."""
    users: dict[str, list[str]] = {}
    for cell, planned in stock.planned.items():
        for mod in planned.plan.mods:
            users.setdefault(mod.name, []).append(cell.slug)
    return [
        {
            "name": mod.name,
            "summary": mod.manifest.summary,
            "why": mod.manifest.why,
            "licence": mod.manifest.licence,
            "distribution": mod.manifest.distribution,
            "server": mod.manifest.of_server,
            "upstreamed_in": mod.manifest.upstreamed_in,
            "needed_when": [
                ", ".join(f"{key} {value}" for key, value in one.model_dump(exclude_none=True).items())
                for one in mod.manifest.needed_when
            ],
            "files": list(dict.fromkeys(path for one in mod.manifest.variants[-1:] for path in one.paths)),
            "versions": list(_versions(stock.project.matrix, mod)),
            "images": users.get(mod.name, []),
        }
        for mod in stock.project.mods.values()
    ]


def _versions(matrix: Matrix, mod: Mod) -> Iterator[Document]:
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
        yield {"version": version_title(name), "state": state, "detail": detail}
