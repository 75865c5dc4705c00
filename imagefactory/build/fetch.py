"""Downloads what layers are made from, in the background: a layer can start as soon as its last file is there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Self

from imagefactory.build.inputs import LayerInputs
from imagefactory.build.watch import Watcher
from imagefactory.plan.plan import Layer
from imagefactory.store.digests import Sha256
from imagefactory.store.downloads import Downloader, Wanted


class Downloads:
    """The files of layers on their way into the store; an exception stops all of them."""

    def __init__(self, inputs: LayerInputs, layers: Iterable[Layer], watch: Watcher) -> None:
        """Start to download what the store lacks, in the order of the layers."""
        self.inputs = inputs
        self._store = inputs.project.store
        self._watch = watch
        self._downloader = Downloader(self._store)
        absent = {layer.key: self._absent(layer) for layer in layers}
        self._sizes = {key: sum(item.size for item in items) for key, items in absent.items()}
        self._fetched = {
            key: dict.fromkeys((item.sha256 for item in items), 0) for key, items in absent.items()
        }
        self._coming: dict[Sha256, Future[Path]] = {}
        for item in (item for items in absent.values() for item in items):
            if item.sha256 not in self._coming:
                self._coming[item.sha256] = self._downloader.submit(item, partial(self._tell, item.sha256))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._downloader.__exit__(kind, *rest)

    def of(self, layer: Layer) -> Collection[Future[Path]]:
        """Return the downloads that a layer waits for."""
        return {self._coming[sha256] for sha256 in self._fetched[layer.key]}

    def get(self, items: Iterable[Wanted]) -> dict[Sha256, Path]:
        """Return files, also of other layers, as soon as they are there."""
        for item in (items := list(items)):
            if item.sha256 not in self._coming:
                self._coming[item.sha256] = self._downloader.submit(item, lambda _: None)
        return {item.sha256: self._coming[item.sha256].result() for item in items}

    def _absent(self, layer: Layer) -> list[Wanted]:
        wanted = {item.sha256: item for item in self.inputs.wanted(layer)}
        return [item for item in wanted.values() if not self._store.download(item.sha256).exists()]

    def _tell(self, sha256: Sha256, done: int) -> None:
        for key, fetched in self._fetched.items():
            if sha256 in fetched:
                fetched[sha256] = done
                self._watch.state(key, "downloading", sum(fetched.values()), self._sizes[key])
