"""Pruning: delete what no kept tag reaches. Published images stay unless a policy says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from imagefactory.errors.publishing import PromotionLostError
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.catalog import Catalog, Published, now
from imagefactory.publish.catalog_writes import PREVIOUS, read_catalog, write_catalog
from imagefactory.publish.github_packages import GitHubPackages
from imagefactory.publish.inventory import KINDS, HoldingKind, Holdings, subject_of, survey
from imagefactory.publish.tags import CATALOG, STAGING, nightly_date
from imagefactory.store.digests import Digest

_SETTLED = timedelta(days=1)


@dataclass(frozen=True)
class Policy:
    """What to keep besides everything that tags in use reach."""

    staging_days: float = 14
    """How long an image that was pushed but never promoted stays."""
    nightly_days: float | None = None
    """How long nightlies stay; None for good."""
    keep: int | None = None
    """How many of the newest published images of each target stay; None for all."""


@dataclass(frozen=True)
class Doomed:
    """A manifest that nothing kept reaches."""

    digest: Digest
    kind: HoldingKind
    tags: tuple[str, ...]
    size: int
    """The bytes it refers to. Some may be shared with what stays."""


@dataclass(frozen=True)
class Pruning:
    """What goes and what stays."""

    doomed: tuple[Doomed, ...]
    kept: int
    undated: tuple[str, ...]
    """Staging tags that stay because their age is unknown."""
    forgotten: tuple[Digest, ...]
    """Images in the catalog that are gone, or about to go."""


def plan_pruning(holdings: Holdings, policy: Policy, moment: datetime) -> Pruning:
    """Decide what goes."""
    catalog = holdings.snapshot.catalog
    retained = {
        image.digest
        for image in catalog.images
        if image.digest in holdings.manifests and not _outdated(catalog, image, policy, moment)
    }
    undated: list[str] = []
    roots = set(retained)
    roots |= {found.digest for tag in catalog.moving_tags() if (found := catalog.pointer(tag)) is not None}
    for tag, digest in holdings.tags.items():
        if subject_of(tag):
            continue  # stays or goes with what it is about
        if catalog.image(digest) and (tag.startswith(STAGING) or catalog.owner_of(tag) == digest):
            continue  # stays or goes with its image
        if tag.startswith(STAGING):
            age = _age(holdings, digest, moment)
            if age is None:
                undated.append(tag)
            if age is not None and age > timedelta(days=policy.staging_days):
                continue
        roots.add(digest)
    roots |= _catalogs(holdings)
    kept = holdings.reach(roots)
    doomed = [
        Doomed(digest, holdings.kind(digest), tuple(holdings.tags_on(digest)), _size(manifest.document()))
        for digest, manifest in holdings.manifests.items()
        if digest not in kept
    ]
    gone = {item.digest for item in doomed}
    return Pruning(
        doomed=tuple(sorted(doomed, key=lambda item: (KINDS.index(item.kind), item.tags, item.digest))),
        kept=len(kept & holdings.manifests.keys()),
        undated=tuple(sorted(undated)),
        forgotten=tuple(
            image.digest
            for image in catalog.images
            if image.digest in gone or image.digest not in holdings.manifests
        ),
    )


def prune(
    repository: Repository,
    policy: Policy,
    *,
    delete: bool = False,
    moment: datetime | None = None,
    deleted: Callable[[Doomed], None] = lambda _: None,
) -> Pruning:
    """Find what no kept tag reaches, and delete it if asked to."""
    moment = moment or now()
    packages = GitHubPackages.of(repository.reference)
    remove = packages.delete if packages else repository.delete
    # What came just now may be on its way to a tag.
    loose = (
        [digest for digest, came in packages.versions().items() if moment - came > _SETTLED]
        if packages
        else []
    )
    holdings = survey(repository, loose)
    pruning = plan_pruning(holdings, policy, moment)
    if not delete:
        return pruning
    if read_catalog(repository).digest != holdings.snapshot.digest:
        raise PromotionLostError(
            "Somebody published while the registry was being examined.",
            where=str(repository.reference.tagged(CATALOG)),
            why="What was unused then may be in use now.",
            fix="Run `invoke prune` again. Nothing was deleted.",
        )
    for item in pruning.doomed:
        remove(item.digest)
        deleted(item)
    if pruning.forgotten:
        gone = pruning.forgotten
        write_catalog(repository, lambda catalog: catalog.without(gone))
    return pruning


def _outdated(catalog: Catalog, image: Published, policy: Policy, moment: datetime) -> bool:
    """Check whether a published image may go: it is unused, and the policy keeps fewer."""
    in_use = {
        digest
        for tag in catalog.moving_tags()
        if (found := catalog.pointer(tag)) is not None
        for digest in found.images.values()
    }
    if image.digest in in_use:
        return False
    if policy.nightly_days is not None:
        days = [
            day for event in catalog.events if event.image == image.digest for day in _nightlies(event.named)
        ]
        if days and (moment.date() - max(days)).days > policy.nightly_days:
            return True
    return policy.keep is not None and image.digest not in _newest(catalog, image, policy.keep)


def _newest(catalog: Catalog, image: Published, count: int) -> list[Digest]:
    """List the most recently promoted images of the same target."""
    same = {other.digest for other in catalog.images if other.cell == image.cell}
    promoted = [
        event.image for event in reversed(catalog.events) if event.kind == "promote" and event.image in same
    ]
    return list(dict.fromkeys(promoted))[:count]


def _nightlies(tags: Iterable[str]) -> list[date]:
    return [day for tag in tags if (day := nightly_date(tag)) is not None]


def _age(holdings: Holdings, digest: Digest, moment: datetime) -> timedelta | None:
    created = holdings.created(digest)
    if created is None:
        return None
    try:
        return moment - datetime.fromisoformat(created)
    except (ValueError, TypeError):  # no date, or one without a time zone
        return None


def _catalogs(holdings: Holdings) -> set[Digest]:
    """Keep the catalog and its predecessor, in case somebody has to go back to it."""
    current = holdings.snapshot.digest
    if current is None:
        return set()
    previous = holdings.manifests[current].document().get("annotations", {}).get(PREVIOUS)
    return {current, *([Digest(previous)] if previous else [])}


def _size(document: dict[str, object]) -> int:
    layers = document.get("layers", ())
    return sum(int(layer["size"]) for layer in layers) if isinstance(layers, list) else 0
