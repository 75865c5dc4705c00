"""Builds layers in parallel, each as soon as its files are there, while those of others are still downloaded.

Every layer is built in a process of its own, which can be killed at any moment: files are written whole or not at all.
The result does not depend on the order in which layers finish.
"""

import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, ThreadPoolExecutor, wait
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from filelock import FileLock

from imagefactory.assemble.layers.layer_blob import LayerWork, build_layer
from imagefactory.assemble.watch import Watcher
from imagefactory.errors import BuildError
from imagefactory.oci.image import Blob
from imagefactory.plan.known_layers import read_blob_record
from imagefactory.plan.plan import Layer
from imagefactory.store.atomic import translating_disk_full
from imagefactory.store.cache import Store
from imagefactory.store.digests import Sha256
from imagefactory.store.progress import Progress

SMALL_WORK = 32_000_000  # fewer bytes to unpack are not worth processes of their own
_CONTEXT = multiprocessing.get_context("forkserver")

Waits = Callable[[Layer], Collection[Future[Any]]]  # returns the downloads that a layer waits for


def build_layers(
    work: Iterable[LayerWork],
    store: Store,
    watch: Watcher,
    *,
    waits: Waits = lambda _: (),
    workers: int | None = None,
) -> dict[Sha256, Blob]:
    # The largest first: the last one to start must not be the longest.
    jobs = sorted(work, key=lambda job: (-job.layer.unpacked, job.layer.key))
    builders = _Builders(store, watch, workers or available_cores(), sum(job.layer.unpacked for job in jobs))
    downloads = {job.layer.key: set(waits(job.layer)) for job in jobs}
    pending: set[Future[Any]] = set().union(*downloads.values())
    building: dict[Future[Blob], Layer] = {}
    blobs: dict[Sha256, Blob] = {}
    with builders:
        while jobs or building:
            for job in [job for job in jobs if pending.isdisjoint(downloads[job.layer.key])]:
                jobs.remove(job)
                watch.state(job.layer.key, "waiting", 0, 0)
                building[builders.start(job)] = job.layer
            done, _ = wait({*pending, *building}, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                if future in building:
                    layer = building.pop(future)
                    blobs[layer.key] = result
                    watch.state(layer.key, "done", result.size, result.size)
            pending -= done
    return blobs


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Builders:
    """Threads that each watch over a process; a little work they do themselves, one after the other."""

    def __init__(self, store: Store, watch: Watcher, workers: int, unpacked: int) -> None:
        self._store, self._watch = store, watch
        self._small = unpacked < SMALL_WORK
        self._threads = ThreadPoolExecutor(1 if self._small else workers)
        self._starting = threading.Lock()
        self._processes: set[ForkServerProcess] = set()
        self._stopped = False

    def __enter__(self) -> None:
        if not self._small:
            _start_forkserver()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            # Under the lock, so that no process starts after the others were killed.
            with self._starting:
                self._stopped = True
                for process in self._processes:
                    process.kill()
        self._threads.shutdown(cancel_futures=True)
        if kind is not None:
            self._store.sweep()  # killed processes leave their scratch folders behind

    def start(self, work: LayerWork) -> Future[Blob]:
        def tell(done: int) -> None:
            self._watch.state(work.layer.key, "packing", done, work.layer.unpacked)

        if self._small:
            return self._threads.submit(_build, work, self._store, tell)
        return self._threads.submit(self._build_apart, work, tell)

    def _build_apart(self, work: LayerWork, tell: Progress) -> Blob:
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        process = _CONTEXT.Process(target=_report, args=(_build, work, self._store, theirs), daemon=True)
        with self._starting:
            if self._stopped:
                raise CancelledError
            process.start()
            self._processes.add(process)
        theirs.close()  # only then does the pipe end with the process
        try:
            while isinstance(message := ours.recv(), int):
                tell(message)
        except EOFError:
            message = None
        finally:
            ours.close()
            process.join()
            with self._starting:
                self._processes.discard(process)
        if message is None:
            raise BuildError(
                "worker-lost",
                f"A process that built a layer ended early, with exit code {process.exitcode}.",
                where=f"layer {work.layer.kind} {work.layer.name}",
                why="Its error is above; if there is none, the system killed it, usually because memory ran out.",
                fix="Free some memory or build fewer layers at once (`--workers 1`); what is finished is kept.",
            )
        if isinstance(message, Exception):
            raise message
        result: Blob = message
        return result


def _start_forkserver() -> None:
    """Start the parent of the processes so that they all ignore Ctrl-C: stopping them is up to us."""
    _CONTEXT.set_forkserver_preload(["__main__", build_layer.__module__])
    multiprocessing.resource_tracker.ensure_running()  # its own start would allow the signal again
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    path = os.environ.get("PYTHONSAFEPATH", "")
    os.environ["PYTHONSAFEPATH"] = "1"  # else it imports what the current folder has, such as another checkout's code
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        os.environ["PYTHONSAFEPATH"] = path  # empty means unset
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _report(
    build: Callable[[LayerWork, Store, Progress], Blob], work: LayerWork, store: Store, parent: Connection
) -> None:
    """Build a layer in a process of its own; send the progress, then the result or what went wrong."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        result: Blob | Exception = build(work, store, parent.send)
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        error.add_note(traceback.format_exc())
        result = error
    parent.send(result)


def _die_with_parent() -> None:
    """Exit when the parent is gone: if it was killed, it could not stop us, and we would hold locks forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _build(work: LayerWork, store: Store, tell: Progress) -> Blob:
    """Build one layer; two builds on one store that want the same layer take turns."""
    record = store.layer(work.layer.key)
    tell(0)  # also while another build has the lock
    with translating_disk_full(record):
        record.parent.mkdir(parents=True, exist_ok=True)
    with translating_disk_full(record), FileLock(record.with_suffix(".lock")):
        blob = read_blob_record(work.layer.key, store)
        if blob is None:
            store.mark_used(*work.files.values())
            blob = build_layer(work, store, tell)
    return blob
