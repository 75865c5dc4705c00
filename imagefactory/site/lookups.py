"""What the pages with one box answer from: what changes for whoever pulls today, and which images have a CVE."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from imagefactory.project.project import Project
from imagefactory.site.guides import plain
from imagefactory.site.image_page import ImagePage
from imagefactory.site.pictures import outcome_class
from imagefactory.site.status_page import KnownVulnerability, Upgrade
from imagefactory.site.stock import PackageList
from imagefactory.store.paths import read_text
from imagefactory.store.progress import count

CHIPS: Final = {"current": "newest", "rollback": "rolled back", "update waiting": "a newer one"}
_CRON: Final = re.compile(r'cron: "(\d+) (\d+) \* \* \*"')


@dataclass(frozen=True)
class Answer:
    """A card that appears when one of its words is typed; `links` are numbers of the document's."""

    title: str
    chip: str
    kind: str
    """The outcome that colours the chip."""
    names: Sequence[str]
    """Whoever types one of these wants this card and no other; the card shows them."""
    lines: Sequence[tuple[str, Sequence[int]]]
    more: str = ""
    """What is shown when asked for, and searched: digests by the 12 digits that Docker shows."""
    page: int | None = None
    """The link of the title."""


@dataclass
class Links:
    """The addresses that answers refer to, each once: they are most of the bytes otherwise."""

    numbers: dict[tuple[str, str], int] = field(default_factory=dict)

    def number(self, title: str, address: str) -> int:
        return self.numbers.setdefault((title, address), len(self.numbers))

    def document(self, answers: Iterable[Answer]) -> Mapping[str, object]:
        # The answers first: making them numbers the links.
        return {"answers": list(answers), "links": list(self.numbers)}


def upgrades_lookup(upgrades: Iterable[Upgrade]) -> Mapping[str, object]:
    """Return what changes for the owner of each image, found by tag, day, digest or image ID."""
    links = Links()

    def answer(row: Upgrade) -> Answer:
        lines = [(plain(line), ()) for line in row.lines]
        page = links.number(row.target, f"images/{row.slug}.html") if row.slug else None
        kind = outcome_class(row.state)
        digests = {"digest": row.digest, "image ID": row.id, "newest": row.newest if row.newest != row.digest else ""}
        more = ", ".join(f"{name} {digest[7:19]}" for name, digest in digests.items() if digest)
        return Answer(row.target, CHIPS[row.state], kind, (row.target, *row.names), lines, more, page)

    return links.document(map(answer, upgrades))


def packages_lookup(
    packages: Sequence[PackageList], vulnerabilities: Iterable[KnownVulnerability], images: Sequence[ImagePage]
) -> Mapping[str, object]:
    """Return which images have a vulnerability that a scan found, and which have a package, whether scanned or not."""
    links, targets = Links(), {image.slug: image.target for image in images}

    def known(row: KnownVulnerability) -> Answer:
        fixes = (
            f"{name} " + (f"is fixed in {', '.join(fixed)}" if fixed else "has no fix")
            for name, fixed in row.packages.items()
        )
        by_model: dict[str, list[int]] = {}
        for slug in row.images:
            model, _, version = targets[slug].partition("@")
            by_model.setdefault(f"{model}:", []).append(links.number(version, f"images/{slug}.html"))
        lines = [(f"{count(len(row.images), 'image')} today: {'; '.join(fixes)}", ()), *by_model.items()]
        return Answer(row.id, row.severity, outcome_class(row.severity), (row.id, *row.aliases), lines)

    def place(one: PackageList) -> int:
        return links.number(one.title.replace(", linux/", "/"), f"packages/{one.slug}.html")

    def answers() -> Iterator[Answer]:
        yield from map(known, vulnerabilities)
        for name, versions in package_versions(packages).items():
            lines = [(f"{version}:", [place(one) for one in lists]) for version, lists in versions.items()]
            yield Answer(name, "package", "", (name,), lines)

    return links.document(answers())


def package_versions(packages: Iterable[PackageList]) -> dict[str, dict[str, list[PackageList]]]:
    """Return where each version of each package is, by name and version."""
    found: dict[str, dict[str, list[PackageList]]] = {}
    for one in packages:
        for package in one.packages:
            places = found.setdefault(package.name, {}).setdefault(package.version, [])
            if not places or places[-1] is not one:
                places.append(one)
    return dict(sorted(found.items()))


def nightly_at(project: Project) -> str:
    """Return when the nightly workflow scans all packages; empty if the checkout does not say."""
    file = project.root / ".github" / "workflows" / "nightly.yml"
    found = _CRON.search(read_text(file)) if file.is_file() else None
    return f"{int(found[2]):02}:{int(found[1]):02} UTC" if found else ""
