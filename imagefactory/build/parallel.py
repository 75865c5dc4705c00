"""Builds layers in parallel, while their inputs are still being downloaded.

Downloads run in threads, layers in processes; a layer starts as soon as its last input is there. The result does not
depend on the order in which they finish.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Protocol

from filelock import FileLock

from imagefactory.build.layers.layer_blob import build_layer
from imagefactory.build.watch import Watcher
from imagefactory.errors.layers import WorkerLostError
from imagefactory.locks.gpu_libraries import SlimLock, SlimmedWheel
from imagefactory.oci.blob import Blob
from imagefactory.plan.built_layers import read_blob_record
from imagefactory.plan.plan import Layer
from imagefactory.store.atomic import translating_disk_full
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256

if TYPE_CHECKING:
    from imagefactory.build.layers.mod_layer import ModFiles
    from imagefactory.locks.files import LockedDeb
    from imagefactory.store.downloads import Wanted

SMALL_WORK = 32_000_000
"""Less than this (bytes to unpack) is built in this process; starting workers would take longer."""

_PATIENCE = 2.0
"""Seconds to wait for a killed process to be gone."""


class _Reports(Protocol):
    """How workers report progress: through a queue between processes, or within this one."""

    def put(self, report: tuple[Sha256, int]) -> None: ...

    def get(self) -> tuple[Sha256, int]: ...

    def empty(self) -> bool: ...


@dataclass
class _Job:
    """A layer to build, and the inputs that it is still waiting for."""

    layer: Layer
    missing: set[Sha256]
    fetched: dict[Sha256, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Prepared:
    """What a layer needs beside its inputs."""

    mod_files: ModFiles | None
    python: Sequence[LockedDeb]
    slimmed: Sequence[SlimmedWheel]


def build_layers(
    layers: Iterable[Layer],
    wanted: Callable[[Layer], Sequence[Wanted]],
    store: Store,
    watch: Watcher,
    *,
    workers: int | None = None,
    expected: Mapping[Sha256, Blob] | None = None,
    mod_files: Mapping[Sha256, ModFiles] | None = None,
    pythons: Mapping[Sha256, Sequence[LockedDeb]] | None = None,
    slimmed: SlimLock | None = None,
) -> dict[Sha256, Blob]:
    """Build layers that the store does not have, and return what each came out as.

    A layer whose outcome is known (`expected`, by key) is only compared with it; the others are inspected file by file.
    Mod layers need their files, and bytecode a Python, by key (`mod_files`, `pythons`). The record of slimmed wheels
    saves hashing them (`slimmed`).
    """
    # The largest first: the last one to start must not be the longest.
    ordered = sorted(layers, key=lambda layer: (-layer.unpacked, layer.key))
    count = workers or available_cores()
    construction = _Construction(
        ordered,
        wanted,
        store,
        watch,
        workers=count,
        expected=expected or {},
        mod_files=mod_files or {},
        pythons=pythons or {},
        slimmed=slimmed,
    )
    return construction.run()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Construction:
    """One run of both pools: downloads feed layers until all are built or something fails."""

    def __init__(
        self,
        to_build: Sequence[Layer],
        wanted: Callable[[Layer], Sequence[Wanted]],
        store: Store,
        watch: Watcher,
        *,
        workers: int,
        expected: Mapping[Sha256, Blob],
        mod_files: Mapping[Sha256, ModFiles],
        pythons: Mapping[Sha256, Sequence[LockedDeb]],
        slimmed: SlimLock | None,
    ) -> None:
        self.store = store
        self.watch = watch
        self.workers = workers
        self.expected = expected
        self.mod_files = mod_files
        self.pythons = pythons
        self.slimmed = slimmed
        self.jobs = {layer.key: _Job(layer, set()) for layer in to_build}
        self.files: dict[Sha256, Wanted] = {}
        self.waiting: dict[Sha256, list[_Job]] = {}
        self.sizes: dict[Sha256, int] = {}
        for job in self.jobs.values():
            self.sizes[job.layer.key] = 0
            for item in wanted(job.layer):
                if not store.download(item.sha256).exists():
                    job.missing.add(item.sha256)
                    self.files[item.sha256] = item
                    self.waiting.setdefault(item.sha256, []).append(job)
                    self.sizes[job.layer.key] += item.size
        self.progress: queue.Queue[tuple[Sha256, int]] = queue.Queue()

    def run(self) -> dict[Sha256, Blob]:
        small = sum(job.layer.unpacked for job in self.jobs.values()) < SMALL_WORK
        context = multiprocessing.get_context("forkserver")
        reports: _Reports = queue.SimpleQueue() if small else context.SimpleQueue()
        with ExitStack() as stack:
            builders = stack.enter_context(
                _builders(small=small, workers=self.workers, context=context, reports=reports)
            )
            pending: dict[Future[Any], Sha256] = {}
            try:
                pending |= self._start_downloads(stack) if self.files else {}
                for job in self.jobs.values():
                    self.watch.state(job.layer.key, "waiting", 0, job.layer.download)
                    if not job.missing:
                        pending[self._start(builders, job)] = job.layer.key
                return self._until_done(pending, builders, reports)
            except BaseException as error:
                _stop_at_once(builders)
                self.store.sweep()
                if isinstance(error, BrokenExecutor):
                    raise _worker_lost(self.workers) from None
                raise

    def _start_downloads(self, stack: ExitStack) -> dict[Future[Any], Sha256]:
        from imagefactory.store.downloads import Downloader  # noqa: PLC0415 - a build without downloads starts faster

        downloader = stack.enter_context(Downloader(self.store))
        return {
            downloader.submit(item, self._reporter(sha256)): sha256 for sha256, item in self.files.items()
        }

    def _until_done(
        self, pending: dict[Future[Any], Sha256], builders: Executor, reports: _Reports
    ) -> dict[Sha256, Blob]:
        blobs: dict[Sha256, Blob] = {}
        while pending:
            done, _ = wait(pending, timeout=0.1, return_when=FIRST_COMPLETED)
            self._tell(reports)
            for future in done:
                identity = pending.pop(future)
                result = future.result()
                if identity in self.jobs:
                    blobs[identity] = result
                    self.watch.state(identity, "done", result.size, result.size)
                    continue
                for job in self.waiting[identity]:
                    job.missing.discard(identity)
                    if not job.missing:
                        pending[self._start(builders, job)] = job.layer.key
        return blobs

    def _start(self, builders: Executor, job: _Job) -> Future[Blob]:
        self.watch.state(job.layer.key, "waiting", 0, job.layer.unpacked)
        key = job.layer.key
        inputs = {item.sha256 for item in job.layer.inputs}
        slimmed = tuple(one for one in self.slimmed.wheels if one.sha256 in inputs) if self.slimmed else ()
        prepared = _Prepared(self.mod_files.get(key), self.pythons.get(key, ()), slimmed)
        return builders.submit(_build, job.layer, self.store, self.expected.get(key), prepared)

    def _reporter(self, sha256: Sha256) -> Callable[[int], None]:
        return lambda done: self.progress.put((sha256, done))

    def _tell(self, reports: _Reports) -> None:
        """Pass on what downloads and workers reported."""
        while not self.progress.empty():
            sha256, done = self.progress.get()
            for job in self.waiting[sha256]:
                if job.missing:
                    job.fetched[sha256] = done
                    total = self.sizes[job.layer.key]
                    self.watch.state(job.layer.key, "downloading", sum(job.fetched.values()), total)
        while not reports.empty():
            key, done = reports.get()
            self.watch.state(key, "splicing", done, self.jobs[key].layer.unpacked)


_reports: _Reports


def _builders(*, small: bool, workers: int, context: BaseContext, reports: _Reports) -> Executor:
    if small:
        return ThreadPoolExecutor(1, initializer=_take_reports, initargs=(reports,))
    _start_forkserver()
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin_work, initargs=(reports,))


def _start_forkserver() -> None:
    """Start the parent of the workers so that they all ignore Ctrl-C: stopping them is up to us."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _stop_at_once(builders: Executor) -> None:
    """Kill the workers: files are written whole or not at all, so nothing half-done stays behind."""
    if isinstance(builders, ProcessPoolExecutor):
        workers = multiprocessing.active_children()
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join(timeout=_PATIENCE)
    # The pool's own thread finds its workers dead and ends; left to the end of the program, it and Python's exit
    # handler race for a pipe, and the loser prints a traceback.
    thread: threading.Thread | None = getattr(builders, "_executor_manager_thread", None)
    builders.shutdown(wait=False, cancel_futures=True)
    if thread is not None:
        thread.join(timeout=_PATIENCE)


def _worker_lost(workers: int) -> WorkerLostError:
    return WorkerLostError(
        "A process that built a layer was killed.",
        where=f"one of {workers} workers",
        why="It did not stop by itself; usually the system kills a process because memory ran out.",
        fix="Free some memory or build fewer layers at once (`--workers 1`); what is finished is kept.",
    )


def _take_reports(reports: _Reports) -> None:
    global _reports  # noqa: PLW0603 - the only way to hand a queue to the processes of a pool
    _reports = reports


def _begin_work(reports: _Reports) -> None:
    """Set up a worker process."""
    _take_reports(reports)
    threading.Thread(target=_die_with_parent, daemon=True).start()


def _die_with_parent() -> None:
    """Exit when the parent is gone: if it was killed, it could not stop us, and we would hold locks forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _build(layer: Layer, store: Store, expected: Blob | None, prepared: _Prepared) -> Blob:
    """Build one layer in a worker; two builds on one store that want the same layer take turns."""
    record = store.layer(layer.key)
    _reports.put((layer.key, 0))
    with translating_disk_full(record):
        record.parent.mkdir(parents=True, exist_ok=True)
    with translating_disk_full(record), FileLock(record.with_suffix(".lock")):
        blob = read_blob_record(layer.key, store)
        if blob is None:
            files = {item.sha256: store.download(item.sha256) for item in layer.inputs}
            store.mark_used(*files.values())
            blob = build_layer(
                layer,
                files,
                store,
                lambda done: _reports.put((layer.key, done)),
                expected=expected,
                mod_files=prepared.mod_files,
                python=prepared.python,
                slimmed=prepared.slimmed,
            )
    return blob
