"""Compares images, and knows which differences are expected between those of the two engines."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, Self

from imagefactory.assemble.images_here import built_layouts
from imagefactory.oci.compare import Difference, Opened, ReadWatcher, diff_images, diff_layouts, open_layout
from imagefactory.oci.format import VENV
from imagefactory.oci.layout import Layout
from imagefactory.plan.known_layers import read_owners
from imagefactory.plan.plan import Plan
from imagefactory.plan.status import last_plan
from imagefactory.project.project import Project
from imagefactory.store.cache import Store
from imagefactory.store.digests import Digest, Sha256
from imagefactory.store.progress import size

_METADATA: Final = f"{VENV}/lib/python*/site-packages/*.dist-info"
_SCRIPT: Final = 1024  # the most bytes of the few lines that start an entry point
_CONTENT: Final = {"sha256", "size"}


@dataclass(frozen=True)
class Summary:
    """What two layouts differ in, by their manifests and plans: no layer is read for it."""

    equal: int
    """How many layers both have."""
    layers: tuple[tuple[str, str, str], ...]
    """The others: what each is, and its size on the left and on the right."""
    packages: tuple[tuple[str, str, str], ...]
    """Packages with other versions; empty if a layout has no plan."""

    @classmethod
    def of(cls, left: Layout, right: Layout) -> Self:
        sides = [{_kind_or_name(label): digest for digest, label in side.labels().items()} for side in (left, right)]
        before, after = (
            {label: size(layout.size_of(digest)) for label, digest in side.items()}
            for layout, side in zip((left, right), sides, strict=True)
        )
        equal = set(left.layer_digests()) & set(right.layer_digests())
        apart = [label for label in sides[0] | sides[1] if not equal & {side.get(label) for side in sides}]
        layers = tuple((label, before.get(label, "-"), after.get(label, "-")) for label in apart)
        plans = [last_plan(layout.folder) for layout in (left, right)]
        return cls(len(equal), layers, tuple(_changed_packages(*plans)))


def _kind_or_name(label: str) -> str:
    kind = label.partition(" ")[0]
    return kind if kind.endswith("-bundle") else label  # the name of a bundle is the number of its wheels


def _changed_packages(left: Plan | None, right: Plan | None) -> Iterator[tuple[str, str, str]]:
    if left is None or right is None:
        return
    before, after = (
        {
            # NAME-VERSION-TAGS.whl (PEP 427) and NAME_VERSION_ARCH.deb
            file.name.split(sign)[0]: file.name.split(sign)[1]
            for layer in plan.layers
            for file in layer.inputs
            if (sign := {"wheel": "-", "deb": "_"}.get(file.kind, ""))
        }
        for plan in (left, right)
    )
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, before.get(name, "-"), after.get(name, "-")


@dataclass(frozen=True)
class _InDaemon:
    name: str
    identity: str
    size: int


@dataclass(frozen=True)
class Pair:
    """Two images to compare."""

    left: Layout | _InDaemon
    right: Layout | _InDaemon
    store: Store

    @classmethod
    def named(cls, project: Project, left: str, right: str) -> Self:
        """Find two images; a name means an OCI layout, an image of the Docker daemon (with a colon) or a target."""
        return cls(_find(project, left), _find(project, right), project.store)

    @property
    def is_one_image(self) -> bool:
        return not _identities(self.left).isdisjoint(_identities(self.right))

    @property
    def summary(self) -> Summary | None:
        """What differs by layer, if that is known without reading them."""
        if self.is_one_image or not (isinstance(self.left, Layout) and isinstance(self.right, Layout)):
            return None
        return Summary.of(self.left, self.right)

    def compare(self, watch: ReadWatcher) -> tuple[list[Difference], list[Difference]]:
        """Return the unexpected differences and the expected ones: none between images of the embedded engine."""
        if self.is_one_image:
            return [], []
        if isinstance(self.left, Layout) and isinstance(self.right, Layout):
            keys = _keys(self.left) | _keys(self.right)

            def paths_of(digest: Digest) -> Collection[str] | None:
                return read_owners(keys[digest], self.store) or None if digest in keys else None

            return diff_layouts(self.left, self.right, self.store, watch, paths_of), []
        differences = diff_images(*(_open(side, self.store, watch) for side in (self.left, self.right)))
        unexpected = unexpected_of(differences)
        return unexpected, [difference for difference in differences if difference not in unexpected]


def _find(project: Project, name: str) -> Layout | _InDaemon:
    if Path(name, "index.json").exists():
        return Layout(Path(name))
    if ":" in name:
        from imagefactory.assemble.engines.docker.daemon import require  # noqa: PLC0415 - only where Docker is meant

        attributes = require(name)
        return _InDaemon(name, str(attributes["Id"]), int(attributes.get("Size") or 0))
    [(_, layout, _)] = built_layouts(project, [name], one=True)
    return layout


def _identities(image: Layout | _InDaemon) -> set[str]:
    """Return the digests that name an image; daemons with containerd's image store use the manifest's."""
    if isinstance(image, _InDaemon):
        return {image.identity}
    return {image.manifest_digest(), image.config_digest()}


def _keys(layout: Layout) -> dict[Digest, Sha256]:
    plan = last_plan(layout.folder)
    digests = layout.layer_digests()
    if plan is None or len(plan.layers) != len(digests):
        return {}
    return {digest: layer.key for digest, layer in zip(digests, plan.layers, strict=True)}


def _open(image: Layout | _InDaemon, store: Store, watch: ReadWatcher) -> Opened:
    if isinstance(image, Layout):
        return open_layout(image, store, watch)
    from imagefactory.assemble.engines.docker.daemon import open_image  # noqa: PLC0415 - only where Docker is meant

    row = Digest(image.name)
    watch.blobs({row: image.name})
    watch.state(row, "reading", 0, image.size)  # Docker writes the whole image to its disk before it sends any
    opened = open_image(image.name, lambda done: watch.state(row, "reading", done, image.size))
    watch.state(row, "read", image.size, image.size)
    return opened


def unexpected_of(differences: Iterable[Difference]) -> list[Difference]:
    differences = list(differences)
    sizes = {size.path: max(int(size.left), int(size.right)) for size in differences if size.field == "size"}
    return [difference for difference in differences if not _is_expected(difference, sizes.get(difference.path, 0))]


def _is_expected(difference: Difference, size: int) -> bool:
    path, field = difference.path, difference.field
    if path == "(config)":
        # Old BuildKits do not take SOURCE_DATE_EPOCH for the time of the image, and set what Windows alone reads.
        return field in {"created", "ArgsEscaped"}
    if field == "mtime":
        # A folder that a step puts something into gets the time of the build.
        return difference.kind == "directory"
    if field not in _CONTENT:
        return False
    # INSTALLER says who installed: uv, or the factory. RECORD has its hash and those of scripts, in uv's order.
    if any(fnmatchcase(path, f"{_METADATA}/{name}") for name in ("INSTALLER", "RECORD")):
        return True
    return path.startswith(f"{VENV}/bin/") and size <= _SCRIPT  # in uv's words
