"""What is in an image, as far as its owner notices, by its plan and locks or by the registry; and in an index."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from imagefactory.errors import RegistryError, TrustError
from imagefactory.oci.image import INDEX_TYPE, MANIFEST_TYPE, Image
from imagefactory.oci.registry.artifacts import contents
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import DOCKER_INDEX_TYPE, DOCKER_MANIFEST_TYPE, Repository, StoredManifest
from imagefactory.plan.plan import ModelLayer, Plan
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.publish.attest.components import models_of
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.vulnerabilities import VulnerabilityRecord
from imagefactory.store.digests import Digest, parse_json

_KINDS = ("wheel", "deb", "model")
_MOST_IMAGES = 32
"""More images of an index than there are platforms."""


@dataclass(frozen=True)
class Contents:
    """An image; two of them can be compared wherever they come from."""

    cell: Cell
    digest: Digest | None
    """None while a layer has never been built."""
    start: str
    """The command that gets this very image."""
    mods: tuple[str, ...]
    settings: Mapping[str, str]
    """The image's variables: the defaults of its settings among them."""
    layers: Mapping[Digest, int]
    """The bytes of each, by digest; empty while one has never been built."""
    packages: Mapping[str, str] | None
    """Versions by kind and name, such as `wheel torch`; None without an SBOM."""
    vulnerabilities: VulnerabilityRecord | None = None
    left_out: tuple[str, ...] = ()
    """Why records that are attached to it do not count."""


def contents_of_plan(project: Project, plan: Plan, image: Image | None) -> Contents:
    cell, last = plan.cell, plan.layers[-1]
    models = models_of(last) if isinstance(last, ModelLayer) else ()
    packages = {f"wheel {wheel.name}": wheel.version for wheel in project.wheel_lock(cell).wheels}
    packages |= {f"deb {deb.name}": deb.version for deb in project.base_lock(cell).debs}
    packages |= {f"model {model.name}": model.version for model in models if not model.in_image}
    return Contents(
        cell,
        image.digest if image else None,
        f"./inv run --target {cell.full_target}",
        tuple(mod.name for mod in plan.mods),
        plan.config.env,
        {blob.digest: blob.size for blob in image.layers} if image else {},
        packages,
    )


def contents_in_registry(dossier: Dossier) -> Contents:
    """Describe a published image by its manifest, its configuration and its SBOM, whatever checkout made it."""
    repository, digest = dossier.repository, dossier.image
    manifest = repository.require_manifest(digest)
    layers = {layer.digest: layer.size for layer in contents(repository, manifest)}
    texts = [text for _, text in dossier.sboms if isinstance(text, bytes)]
    reference = repository.reference.at(digest)
    try:
        config = parse_json(repository.blob(Digest(manifest.document()["config"]["digest"])))
        image_config = config["config"]
        mods = image_config["Labels"]["imagefactory.mods"]
        return Contents(
            Cell.of_labels(image_config["Labels"], f"{config['os']}/{config['architecture']}"),
            digest,
            f"docker pull {reference}",
            () if mods == "none" else tuple(mods.split()),
            dict(line.split("=", 1) for line in image_config["Env"]),
            layers,
            dict(_listed(parse_json(texts[0]))) if texts else None,
            dossier.scan,
            dossier.left_out,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RegistryError(
            "registry-failed",
            "That is not an image of the factory.",
            where=str(reference),
            why=f"Its configuration or its SBOM cannot be read ({type(error).__name__}).",
            fix="Check the tag or digest; `./inv verify --image` says more.",
        ) from None


def _listed(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in document["components"]:
        kinds = [entry["value"] for entry in part["properties"] if entry["name"] == "imagefactory:kind"]
        if kinds and kinds[0] in _KINDS and "purl" in part:
            yield f"{kinds[0]} {part['name']}", part["version"]


def images_of(
    repository: Repository, manifest: StoredManifest
) -> list[tuple[StoredManifest, Mapping[str, str] | None]]:
    """Return an image, or all images of an index with the platforms that it lists them for; raise if it has others."""
    if manifest.media_type not in (INDEX_TYPE, DOCKER_INDEX_TYPE):
        return [(manifest, None)]
    try:
        children = [Descriptor.of(child) for child in manifest.document()["manifests"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        why = f"its list of images cannot be read ({type(error).__name__})"
        raise unfit_index(repository, manifest, why) from None
    if not children:
        raise unfit_index(repository, manifest, "it is empty: it lists no image that could be checked")
    if len(children) > _MOST_IMAGES:
        raise unfit_index(repository, manifest, f"it lists {len(children):,} images")
    images: list[tuple[StoredManifest, Mapping[str, str] | None]] = []
    for child in children:
        image = repository.manifest(child.digest)
        wrong = {child.media_type, image.media_type} - {MANIFEST_TYPE, DOCKER_MANIFEST_TYPE} if image else set()
        if image is None or wrong:
            why = f"which is no image: {wrong.pop()}" if wrong else "which the registry does not have"
            raise unfit_index(repository, manifest, f"it lists {child.digest}, {why}")
        images.append((image, child.platform))
    return images


def unfit_index(repository: Repository, index: StoredManifest, why: str) -> TrustError:
    return TrustError(
        "unfit-index",
        "The index is not one that the factory publishes.",
        where=str(repository.reference.at(index.digest)),
        why=f"About this index: {why}.",
        fix="You: do not use it; `./inv history` lists the digests that were published, check one of those. Whoever "
        "publishes: move the tag back (`./inv publish`), and find out who else may write to the repository.",
    )
