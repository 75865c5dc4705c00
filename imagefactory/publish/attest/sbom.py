"""The SBOM of an image: CycloneDX 1.6 in JSON, made from the plan and the locks alone.

No clock, random number or package is involved, so the same checkout gives the same bytes, and anybody can check an
SBOM by making it again. https://cyclonedx.org/docs/1.6/json/
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from imagefactory.plan.plan import Plan
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import Graft
from imagefactory.project.project import Project
from imagefactory.publish.attest.components import Component, ComponentKind, components_of, package_urls
from imagefactory.publish.attest.spdx import UNDECLARED
from imagefactory.store.digests import canonical_json, checksum, parse_json

MEDIA_TYPE: Final = "application/vnd.cyclonedx+json"
PREDICATE_TYPE: Final = "https://cyclonedx.org/bom"
LARGEST: Final = 16 * 1024 * 1024
"""GitHub's limit for attestations."""
ROOT: Final = "image"
_TYPES: Final[dict[ComponentKind, str]] = {
    "wheel": "library",
    "deb": "library",
    "mod": "library",
    "program": "application",
    "model": "machine-learning-model",
}


def make_sbom(project: Project, plan: Plan) -> bytes:
    return write_sbom(project, plan, components_of(project, plan))


def package_list(project: Project, cells: Iterable[Cell]) -> bytes:
    """List the packages of several images, each once, for a scanner that reads CycloneDX."""
    components = [
        {"type": "library", "bom-ref": purl, "name": name.partition(" ")[2], "version": version, "purl": purl}
        for (name, version), purl in sorted(package_urls(project, cells).items())
    ]
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    return canonical_json(head | {"components": components})


def write_sbom(project: Project, plan: Plan, parts: Sequence[Component]) -> bytes:
    root = {"plan": plan.key, "platform": plan.platform, "kernels": plan.kernels}
    absent = {f"{package.name} {package.version}": package.reason for package in project.wheel_lock(plan.cell).left_out}
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "lifecycles": [{"phase": "build"}],
            "tools": {"components": [{"type": "application", "name": "imagefactory"}]},
            "component": {
                "type": "container",
                "bom-ref": ROOT,
                "name": plan.target,
                "version": plan.version,
                "properties": _properties(root, absent),
            },
        },
        "components": [_component(part) for part in parts],
        "dependencies": _dependencies(parts),
        # By construction: the list is made from the inputs of the layers.
        "compositions": [{"aggregate": "complete", "assemblies": [ROOT]}],
    }
    # From all the rest of the document, so that it is added last, and the same content has the same number.
    document["serialNumber"] = f"urn:uuid:{uuid5(NAMESPACE_URL, checksum(document))}"
    return canonical_json(document)


def _component(part: Component) -> dict[str, Any]:
    properties = {
        "kind": part.kind,
        "layer": part.layer,
        "file": part.file,
        "size": None if part.size is None else str(part.size),
        "licence-from": part.says,
        "notices-mention": " ".join(part.notices) or None,
        "slimmed-for": f"{part.slim.chip} by rule {part.slim.rule}" if part.slim else None,
    }
    component: dict[str, Any] = {
        "type": _TYPES[part.kind],
        "bom-ref": part.reference,
        "name": part.name,
        "version": part.version,
        # CycloneDX's word for what is not installed.
        "scope": "required" if part.in_image else "optional",
        "properties": _properties(properties, part.left_out),
    }
    if part.purl is not None:
        component["purl"] = part.purl
    if part.sha256 is not None:
        component["hashes"] = _hashes(part.sha256)
    if part.licence not in (None, UNDECLARED):
        component["licenses"] = [{"expression": part.licence, "acknowledgement": "declared"}]
    if part.graft is not None:
        component["pedigree"] = _pedigree(part.graft)
    if part.slim is not None:
        grafted = component.get("pedigree", {})
        notes = f"{grafted.get('notes', '')} {_SLIMMED}".strip()
        became = [f"{library.path}: {library.published} became {library.sha256}" for library in part.slim.libraries]
        patches = [{"type": "unofficial", "diff": {"text": {"content": text}}} for text in became]
        component["pedigree"] = grafted | {"patches": patches, "notes": notes}
    if part.files:
        component["components"] = [
            _file(path, sha256) | {"bom-ref": f"{part.reference}:{path}"} for path, sha256 in sorted(part.files.items())
        ]
    return component


_SLIMMED = "GPU code that the chip cannot load was overwritten with zeros in the listed libraries."


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]


def _file(path: str, sha256: str) -> dict[str, Any]:
    return {"type": "file", "name": path, "hashes": _hashes(sha256)}


def _pedigree(graft: Graft) -> dict[str, Any]:
    """Name the published wheel that a grafted one was made from, and the files of it that were replaced."""
    name, version, *_ = graft.file.split("-")
    ancestor = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}?file_name={graft.file}",
        "hashes": _hashes(graft.sha256),
        "components": [_file(file.path, file.published) for file in graft.replaced],
    }
    notes = "The files listed in the ancestor were replaced by compiled ones; all others are the ancestor's."
    return {"ancestors": [ancestor], "notes": notes}


def _dependencies(parts: Sequence[Component]) -> list[dict[str, Any]]:
    """Invert "needed by": CycloneDX lists what each component depends on."""
    packages = {(part.kind, part.name): part.reference for part in parts}
    mods = {f"mod:{part.name}": part.reference for part in parts if part.kind == "mod"}
    depends: dict[str, set[str]] = {ref: set() for ref in (ROOT, *(part.reference for part in parts))}
    for part in parts:
        for name in part.needed_by:
            needs = packages.get((part.kind, name)) if part.kind in ("wheel", "deb") else mods.get(name)
            depends[needs or ROOT].add(part.reference)
    return [{"ref": ref, "dependsOn": sorted(needs)} for ref, needs in sorted(depends.items())]


def _properties(values: Mapping[str, str | None], left_out: Mapping[str, str]) -> list[dict[str, str]]:
    """List properties, and what is not in the image although vLLM requires it or a wheel brings it."""
    pairs = [(name, value) for name, value in sorted(values.items()) if value is not None]
    pairs += [("left-out", f"{what}: {why}") for what, why in sorted(left_out.items())]
    return [{"name": f"imagefactory:{name}", "value": value} for name, value in pairs]


def first_difference(content: bytes, expected: bytes) -> str:
    """Describe where an SBOM first differs from the expected one."""
    try:
        left, right = parse_json(content), parse_json(expected)
        ours = {part["bom-ref"]: part for part in left["components"]}
        theirs = {part["bom-ref"]: part for part in right["components"]}
    except (ValueError, KeyError, TypeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    for reference in sorted(ours.keys() | theirs.keys()):
        if reference not in ours:
            return f"the component {reference} is missing"
        if reference not in theirs:
            return f"the component {reference} should not be there"
        if ours[reference] != theirs[reference]:
            return f"component {reference}: {_fields(ours[reference], theirs[reference])}"
    return _fields(left, right) if left != right else "it is written differently, though it says the same"


def _fields(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    return f"another {', '.join(names)}"
