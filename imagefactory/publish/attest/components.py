"""The components of an image, everything that its plan names, each with its licence; and a summary of these.

The list is made from the inputs of the plan's layers, so nothing that goes into an image can be missing from it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote

from imagefactory.lock.wheel_contents import installed_path
from imagefactory.oci.format import VENV
from imagefactory.plan.bytecode import COMPILER, is_list
from imagefactory.plan.plan import (
    BaseLayer,
    BytecodeLayer,
    Layer,
    ModelLayer,
    ModLayer,
    Plan,
    ServeLayer,
    ToolkitLayer,
    WheelLayer,
)
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import Graft, LockedDeb, LockedWheel
from imagefactory.project.locks.kernels import SlimmedWheel
from imagefactory.project.project import Project
from imagefactory.publish.attest import spdx
from imagefactory.publish.attest.licence_record import Licences
from imagefactory.store.digests import Sha256

ComponentKind = Literal["wheel", "deb", "mod", "program", "model"]


@dataclass(frozen=True, kw_only=True)
class Component:
    """One part of an image, or the model that it serves."""

    kind: ComponentKind
    name: str
    version: str
    purl: str | None = None
    sha256: Sha256 | None = None
    licence: str | None
    """An SPDX expression; None for a model that is not in the image, whose licence users look up themselves."""
    says: str
    """Where the licence is stated."""
    notices: tuple[str, ...] = ()
    layer: Sha256
    file: str | None = None
    size: int | None = None
    needed_by: tuple[str, ...] = ("matrix.yaml",)
    files: Mapping[str, Sha256] = field(default_factory=dict)
    """Files that are not components themselves: those of the serve program, compiled and slimmed ones."""
    compiled: Sha256 | None = None
    """The key of the compile that a wheel is from."""
    graft: Graft | None = None
    """The published wheel that all other files of a graft are from."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Files of the wheel that the image does not have, each with the reason."""
    slim: SlimmedWheel | None = None
    """What was taken out of its libraries."""

    @property
    def reference(self) -> str:
        return self.purl or f"{self.kind}:{self.name}"

    @property
    def in_image(self) -> bool:
        """False for a model that is downloaded when the image starts."""
        return self.kind != "model" or self.purl is None


def components_of(project: Project, plan: Plan) -> list[Component]:
    """List everything that a plan puts into an image, and the models that it serves."""
    licences = Licences(project)
    lock = project.wheel_lock(plan.cell)
    wheels, python = {wheel.sha256: wheel for wheel in lock.wheels}, lock.python
    base = project.base_lock(plan.cell)
    debs = {deb.sha256: deb for deb in base.debs}
    distribution = project.matrix.bases[base.base].debian
    parts: list[Component] = []
    for layer in plan.layers:
        match layer:
            case BaseLayer():
                locked = [debs[file.sha256] for file in layer.inputs]
                parts += [_package(deb, deb_purl(deb, distribution), licences, layer) for deb in locked]
            case WheelLayer():
                for wheel in (wheels[file.sha256] for file in layer.inputs):
                    part = _package(wheel, wheel_purl(wheel), licences, layer)
                    parts.append(_with_changes(part, wheel, project, layer, python))
            case ServeLayer():
                files = {f"/{layer.settings.files[file.name]}": file.sha256 for file in layer.inputs}
                parts.append(_factory_part("program", "imagefactory-serve", layer, files=files))
            case ModLayer():
                parts += [_mod(layer)]
            case ModelLayer():
                parts += models_of(layer)
            case BytecodeLayer():
                parts.append(_bytecode(layer))
            case ToolkitLayer():
                pass  # links of a toolchain image, to files of other layers
    return sorted(parts, key=lambda part: (part.kind, part.name, part.reference))


def wheel_purl(wheel: LockedWheel) -> str:
    """Return a wheel's package URL, for scanners. One compiled here is not the file its publisher has on the index."""
    name, file = f"{wheel.name}@{_quoted(wheel.version)}", f"file_name={_quoted(wheel.file)}"
    if wheel.compiled is None:
        return f"pkg:pypi/{name}?{file}"
    return f"pkg:generic/{name}?checksum=sha256:{wheel.sha256}&{file}"


def deb_purl(deb: LockedDeb, distribution: str) -> str:
    """Return a Debian package's URL; databases of vulnerabilities know its source package, the folder in the pool."""
    name, source = f"{_quoted(deb.name)}@{_quoted(deb.version)}", deb.file.split("/")[-2]
    upstream = f"&upstream={_quoted(source)}" if source != deb.name else ""
    return f"pkg:deb/debian/{name}?arch={deb.architecture}&distro=debian-{distribution}{upstream}"


def package_urls(project: Project, cells: Iterable[Cell]) -> dict[tuple[str, str], str]:
    """Return the URLs of all packages of cells, by kind and name, and version.

    A wheel that was compiled here counts as its publisher's: so do the vulnerabilities of its sources.
    """
    urls: dict[tuple[str, str], str] = {}
    for cell in cells:
        base = project.base_lock(cell)
        distribution = project.matrix.bases[base.base].debian
        for wheel in project.wheel_lock(cell).wheels:
            urls[f"wheel {wheel.name}", wheel.version] = f"pkg:pypi/{wheel.name}@{_quoted(wheel.version)}"
        urls |= {(f"deb {deb.name}", deb.version): deb_purl(deb, distribution) for deb in base.debs}
    return urls


def _with_changes(part: Component, wheel: LockedWheel, project: Project, layer: WheelLayer, python: str) -> Component:
    """Add what an image has instead of a wheel's files, or leaves out."""
    settings = layer.settings.slim
    slim = project.slim_lock.find(wheel.sha256, settings.chip, settings.rule) if settings else None
    changed = {file.path: file.sha256 for file in (wheel.graft.replaced if wheel.graft else ())}
    changed |= {library.path: library.sha256 for library in (slim.libraries if slim else ())}
    return replace(
        part,
        compiled=wheel.compiled,
        graft=wheel.graft,
        slim=slim,
        files={
            f"/{VENV}/{installed_path(path, distribution=wheel.name, python=python)}": sha256
            for path, sha256 in changed.items()
        },
        left_out={f"/{VENV}/{path}": files.reason for files in wheel.left_out for path in files.paths},
    )


def _package(
    package: LockedWheel | LockedDeb, purl: str, licences: Licences, layer: BaseLayer | WheelLayer
) -> Component:
    licensed = licences.of(package)
    return Component(
        kind="wheel" if isinstance(package, LockedWheel) else "deb",
        name=package.name,
        version=package.version,
        purl=purl,
        sha256=package.sha256,
        licence=licensed.licence,
        says=licensed.says,
        notices=licensed.notices,
        layer=layer.key,
        file=package.file.rpartition("/")[2],
        size=package.size,
        needed_by=package.needed_by,
    )


def _factory_part(kind: ComponentKind, name: str, layer: Layer, **more: Any) -> Component:  # noqa: ANN401 - fields
    """Describe what the factory itself adds to an image; its licence is in LICENSE."""
    version = layer.key[:12]
    fields = {"licence": "Apache-2.0", "says": "LICENSE"} | more
    return Component(kind=kind, name=name, version=version, layer=layer.key, **fields)


def _bytecode(layer: BytecodeLayer) -> Component:
    """Describe bytecode: the factory's files that decide it. Its licences are those of what it is compiled from."""
    name = f"imagefactory-bytecode-{layer.name.partition(' ')[0]}"
    files = {file.name: file.sha256 for file in layer.inputs if file.name == COMPILER or is_list(file.name)}
    says = "the packages that it is compiled from"
    return _factory_part("program", name, layer, files=files, licence="LicenseRef-of-its-sources", says=says)


def _mod(layer: ModLayer) -> Component:
    mod = layer.settings.chain[-1].mod
    [variant] = mod.manifest.variants
    digest = mod.digest(variant)
    return Component(
        kind="mod",
        name=mod.name,
        version=digest[:12],
        sha256=digest,
        licence=mod.manifest.licence,
        says="mod.yaml",
        layer=layer.key,
    )


def models_of(layer: ModelLayer) -> Iterator[Component]:
    """Describe the model and its drafters. Their weights are not in an image, unless the factory makes them."""
    model = layer.settings.model
    named = [(drafter["repo"], drafter.get("revision")) for drafter in model["drafters"]]
    if "generated" in model:
        yield _factory_part("model", str(model["generated"]), layer)
    else:
        named.insert(0, (model["model"], model.get("revision")))
    for repo, revision in dict.fromkeys(named):  # a model may draft for itself
        yield Component(
            kind="model",
            name=str(repo),
            version=str(revision or ""),
            purl=f"pkg:huggingface/{repo}" + (f"@{revision}" if revision else ""),
            licence=None,
            says="its page on the model hub",
            layer=layer.key,
        )


def _quoted(text: str) -> str:
    """Escape a part of a package URL; a colon may stay (https://github.com/package-url/purl-spec)."""
    return quote(text, safe=":")


How = Literal["declared", "by choice", "in notices"]
"""A GNU licence applies to a part (or to some of it), is one that may be chosen, or is mentioned in its notices."""


@dataclass(frozen=True)
class GnuPart:
    """A part with a GNU licence in its expression."""

    kind: str
    name: str
    version: str
    licences: tuple[str, ...]
    how: How


@dataclass(frozen=True)
class LicenceSummary:
    """The licences of an image's parts."""

    target: str
    counts: dict[str, int]
    """Licence expression -> number of parts."""
    gnu: tuple[GnuPart, ...]
    undeclared: tuple[str, ...]
    elsewhere: tuple[str, ...]
    """Models that are downloaded when the image starts; their licences are on their own pages."""


def summarise_parts(target: str, parts: Sequence[Component]) -> LicenceSummary:
    inside = [part for part in parts if part.in_image]
    counts = Counter(part.licence or spdx.UNDECLARED for part in inside)
    return LicenceSummary(
        target=target,
        # The most frequent first, then by name.
        counts=dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))),
        gnu=tuple(gnu for part in inside if (gnu := _gnu(part)) is not None),
        undeclared=tuple(part.name for part in inside if part.licence in (None, spdx.UNDECLARED)),
        elsewhere=tuple(part.name for part in parts if not part.in_image),
    )


def _gnu(part: Component) -> GnuPart | None:
    expression = part.licence or ""
    named = spdx.copyleft(expression)
    how: How = "declared" if named and spdx.is_unavoidable(expression) else "by choice"
    if not named and part.notices:
        named, how = part.notices, "in notices"
    return GnuPart(part.kind, part.name, part.version, named, how) if named else None
