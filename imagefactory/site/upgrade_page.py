"""What changes for the owner of each image: the page that is searched by digest or tag, and the notes in the feed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from imagefactory.check.bench.result import BenchResult
from imagefactory.publish.catalog import Published
from imagefactory.publish.image_contents import Contents, contents_of_plan
from imagefactory.publish.upgrade import Known, compare_contents, lines, newest_for, newest_version
from imagefactory.site.stock import Document, Planned, Stock
from imagefactory.store.digests import Digest


@dataclass(frozen=True)
class Upgrades:
    """Everything that is needed to compare any two images of the site."""

    stock: Stock
    known: Known
    contents: Mapping[Digest, Contents | str]
    """What is in each image, or why that is not known."""

    @classmethod
    def of(cls, stock: Stock, results: Sequence[BenchResult]) -> Upgrades:
        project, catalog = stock.project, stock.records.catalog
        planned = {
            one.digest: contents_of_plan(project, one.plan, one.image) for one in stock.planned.values() if one.digest
        }
        read = stock.records.contents.items()  # what cannot be read may be planned here
        contents = planned | {digest: one for digest, one in read if digest not in planned or isinstance(one, Contents)}
        return cls(stock, Known.of(project, catalog, results), contents)

    def lines(self, before: Digest, after: Digest) -> list[str]:
        """Tell what changes between two images, in lines of Markdown."""
        sides = [self.contents.get(one, "It is older than those that this site describes.") for one in (before, after)]
        one, other = sides
        if isinstance(one, str) or isinstance(other, str):
            unknown = next(side for side in sides if isinstance(side, str))
            return [f"What changes is not known: {unknown} `./inv upgrade --from {before}` may tell."]
        return lines(compare_contents(one, other, self.known))

    def rows(self) -> Iterator[Document]:
        """Yield published images, the newest first; without a registry, those that this checkout makes."""
        catalog = self.stock.records.catalog
        for image in reversed(catalog.images):
            if image.digest in self.contents:
                yield self._published(image)
        for planned in () if self.stock.records.asked else self.stock.planned.values():
            if planned.digest:
                yield self._row(planned.digest, self._newest(planned), planned, [])

    def _published(self, image: Published) -> Document:
        catalog = self.stock.records.catalog
        planned = self.stock.planned.get(image.cell)
        days = [f"{event.time:%Y-%m-%d}" for event in catalog.events_of.get(image.digest, ())]
        names = [image.tag, *sorted(catalog.tags_of(image.digest)), *dict.fromkeys(days)]
        return self._row(image.digest, newest_for(catalog, image).digest, planned, names) | {"target": str(image.cell)}

    def _row(self, digest: Digest, newest: Digest, planned: Planned | None, names: Sequence[str]) -> Document:
        held = digest in self.known.held
        return {
            "digest": digest,
            "target": str(planned.cell) if planned else "",
            "slug": planned.cell.slug if planned else None,
            "names": names,
            "newest": newest,
            "state": "rollback" if held else "current" if newest == digest else "update waiting",
            "lines": self.lines(digest, newest),
        }

    def _newest(self, planned: Planned) -> Digest:
        """Return what whoever built an image here would build today."""
        cell = planned.cell
        newer = self.stock.planned.get(replace(cell, version=newest_version(self.stock.project.matrix, cell)), planned)
        return newer.digest or planned.digest or Digest("")
