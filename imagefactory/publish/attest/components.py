"""The parts of an image: everything that its plan names, each with its licence, in one list.

The list is made from the inputs of the plan's layers, so nothing that goes into an image can be missing from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast
from urllib.parse import quote

from imagefactory.locks.files import LockedDeb, LockedWheel, licence_lock_path
from imagefactory.locks.project import Project
from imagefactory.plan.plan import Layer, Plan
from imagefactory.publish.attest.licence_record import Licences
from imagefactory.store.digests import Sha256
from images.shipped.mods.manifest import Mod

OWN_LICENCE: Final = "Apache-2.0"
"""The licence of the factory's own files, as in LICENSE."""
ComponentKind = Literal["wheel", "deb", "mod", "source", "program", "model"]


@dataclass(frozen=True, kw_only=True)
class Component:
    """One part of an image, or the model that it serves."""

    kind: ComponentKind
    name: str
    version: str
    purl: str | None
    sha256: Sha256 | None
    licence: str | None
    """An SPDX expression; None if the part is not in the image, and its licence is up to the user to check."""
    says: str
    """Where the licence is stated."""
    notices: tuple[str, ...] = ()
    layer: Sha256
    file: str | None = None
    size: int | None = None
    needed_by: tuple[str, ...] = ()
    files: Mapping[str, Sha256] = field(default_factory=dict)
    """Files that are not parts themselves: those of the serve program, and those that a mod changes or adds."""

    @property
    def reference(self) -> str:
        """Return the part's reference in an SBOM."""
        return self.purl or f"{self.kind}:{self.name}"

    @property
    def in_image(self) -> bool:
        """False for a model that is downloaded when the image starts."""
        return self.kind != "model" or self.purl is None


def components_of(project: Project, plan: Plan) -> list[Component]:
    """List everything that a plan puts into an image, and the models that it serves."""
    licences = Licences(licence_lock_path(project.locks))
    wheels = {wheel.sha256: wheel for wheel in project.wheel_lock(plan.cell).wheels}
    base = project.base_lock(plan.cell)
    debs = {deb.sha256: deb for deb in base.debs}
    distribution = project.matrix.bases[base.base].debian
    found: list[Component] = []
    for layer in plan.layers:
        match layer.kind:
            case "base":
                found += [_deb(debs[item.sha256], licences, layer, distribution) for item in layer.inputs]
            case "wheel" | "pure-bundle" | "platform-bundle":
                found += [_wheel(wheels[item.sha256], licences, layer) for item in layer.inputs]
            case "serve":
                found.append(_program(layer))
            case "mod":
                found += _mod(layer)
            case "model":
                found += _models(layer)
            case "toolkit":
                pass  # links of a toolchain image, to files of other layers
    return sorted(found, key=lambda part: (part.kind, part.name, part.reference))


def wheel_purl(wheel: LockedWheel) -> str:
    """Return the package URL of a wheel. One that was compiled here is not the one on the index."""
    name, file = f"{wheel.name}@{_quoted(wheel.version)}", f"file_name={_quoted(wheel.file)}"
    if wheel.compiled is None:
        return f"pkg:pypi/{name}?{file}"
    return f"pkg:generic/{name}?checksum=sha256:{wheel.sha256}&{file}"


def _wheel(wheel: LockedWheel, licences: Licences, layer: Layer) -> Component:
    licensed = licences.of(wheel)
    return Component(
        kind="wheel",
        name=wheel.name,
        version=wheel.version,
        purl=wheel_purl(wheel),
        sha256=wheel.sha256,
        licence=licensed.licence,
        says=licensed.says,
        notices=licensed.notices,
        layer=layer.key,
        file=wheel.file,
        size=wheel.size,
        needed_by=wheel.needed_by,
    )


def _deb(deb: LockedDeb, licences: Licences, layer: Layer, distribution: str) -> Component:
    licensed = licences.of(deb)
    return Component(
        kind="deb",
        name=deb.name,
        version=deb.version,
        purl=f"pkg:deb/debian/{_quoted(deb.name)}@{_quoted(deb.version)}"
        f"?arch={deb.architecture}&distro={distribution}",
        sha256=deb.sha256,
        licence=licensed.licence,
        says=licensed.says,
        notices=licensed.notices,
        layer=layer.key,
        file=deb.file.rpartition("/")[2],
        size=deb.size,
        needed_by=deb.needed_by,
    )


def _program(layer: Layer) -> Component:
    places = cast("Mapping[str, str]", layer.settings["files"])
    return Component(
        kind="program",
        name="imagefactory-serve",
        version=layer.key[:12],
        purl=None,
        sha256=None,
        licence=OWN_LICENCE,
        says="LICENSE",
        layer=layer.key,
        needed_by=("matrix.yaml",),
        files={f"/{places[item.name]}": item.sha256 for item in layer.inputs},
    )


def _mod(layer: Layer) -> Iterator[Component]:
    """List a mod, and the distribution that it brings along, if any."""
    *_, link = cast("list[dict[str, object]]", layer.settings["chain"])
    mod = Mod.from_data(link)
    [variant] = mod.manifest.variants
    digest = mod.digest(variant)
    yield Component(
        kind="mod",
        name=mod.name,
        version=digest[:12],
        purl=None,
        sha256=digest,
        licence=mod.manifest.licence,
        says="mod.yaml",
        layer=layer.key,
        needed_by=("matrix.yaml",),
    )
    if variant.source is not None:
        source = variant.source
        yield Component(
            kind="source",
            name=mod.manifest.distribution,
            version=source.commit,
            purl=f"pkg:github/{source.git.lower()}@{source.commit}#{source.package}",
            sha256=Sha256(source.sha256),
            licence=source.licence,
            says="mod.yaml",
            layer=layer.key,
            needed_by=(f"mod:{mod.name}",),
        )


def _models(layer: Layer) -> Iterator[Component]:
    """List the model and its drafters. Their weights are not in the image unless the factory generates them."""
    model = cast("dict[str, Any]", layer.settings["model"])
    if "generated" in model:
        yield Component(
            kind="model",
            name=str(model["generated"]),
            version=layer.key[:12],
            purl=None,
            sha256=None,
            licence=OWN_LICENCE,
            says="LICENSE",
            layer=layer.key,
            needed_by=("matrix.yaml",),
        )
    named = [] if "generated" in model else [(model["model"], model.get("revision"))]
    named += [(drafter["repo"], drafter.get("revision")) for drafter in model["drafters"]]
    for repo, revision in named:
        yield Component(
            kind="model",
            name=str(repo),
            version=str(revision or ""),
            purl=f"pkg:huggingface/{repo}" + (f"@{revision}" if revision else ""),
            sha256=None,
            licence=None,
            says="its page on the model hub",
            layer=layer.key,
            needed_by=("matrix.yaml",),
        )


def _quoted(text: str) -> str:
    """Escape a part of a package URL; a colon may stay (https://github.com/package-url/purl-spec)."""
    return quote(text, safe=":")
