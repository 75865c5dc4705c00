"""Keeps vLLM's KV cache on a disk: prompts that were computed before a restart need not be computed again.

vLLM's OffloadingConnector copies the cache to a stage in the host's memory, and asks the classes here for the rest. Its
own tier for files never deletes any, and lets a request wait for ever whose cache does not fit into the stage: each
part that arrives drives out another that is still needed (vllm-project/vllm#49902). Here,

- one request at a time gets parts from the disk, no more than fit into the stage, and keeps them until it runs;
- one that has waited for LIMIT seconds is computed, and so are all others for a while;
- what is on the disk is not copied to the stage again, so that a long conversation's new parts find room there.
"""  # noqa: INP001 - found by PYTHONPATH

import hashlib
import json
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

import vllm
from huggingface_hub import try_to_load_from_cache  # type: ignore[import-not-found]
from imagefactory_kv_files import SPAN, Files, last_use  # type: ignore[import-not-found]
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    LookupResult,
    Medium,
    RequestOffloadingContext,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

LIMIT, PAUSE = 60.0, 600.0
"""Seconds that a request waits for the disk, and for which no other waits for it then."""
END = 8.0
"""Seconds in which a server that ends writes what it still has to write."""
THREADS = 8
"""For reading, and as many for writing."""
ALL, OF_GROUP = 7 / 8, 5 / 8
"""The parts of the stage that a request may fill, and that one of its groups of layers may.

The rest is for what others write. Of several groups one has all tokens, and would leave nothing for the windows or
states of the others, without which it is of no use.
"""

_CHOOSING = re.compile("PYTHONHASHSEED$|VLLM_(USE_|.*(ATTENTION|BACKEND|KV_|FP[48]|MLA|MOE|QUANT|LAYOUT))")
"""Names of variables by which users choose how vLLM computes, or how it names parts."""

logger = init_logger("vllm.imagefactory_kv")


class Disk(SecondaryTierManager):  # type: ignore[misc]
    """The files as vLLM's tiers are: it names parts by key, and reads and writes them in threads."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(self, spec: "DiskSpec", view: memoryview) -> None:
        super().__init__(offloading_spec=spec, primary_kv_view=view, tier_type="disk")
        wanted = spec.extra_config["disk"]
        self.groups = len(spec.config.groups)
        about = identity(spec, wanted["about"], self.block_size_bytes)
        place = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
        self.files = Files(wanted["folder"], place, int(wanted["bytes"]))
        with suppress(OSError):
            Path(wanted["folder"], place, "about.json").write_text(json.dumps(about, indent=1), "utf-8")
        self._stage = view.cast("B")
        self._pool = DualQueueThreadPool(THREADS, THREADS, thread_name_prefix="imagefactory_kv")
        self._began: dict[str, int] = {}
        """When requests began, in nanoseconds; what they use is not deleted while they last."""
        self._touched: set[str] = set()
        self._loads: dict[int, tuple[list[bytes], list[bytes]]] = {}
        """The keys of jobs that read, and those of them that were read."""
        self._uses: SimpleQueue[list[tuple[str, int]]] = SimpleQueue()
        threading.Thread(target=self._note_uses, daemon=True).start()
        size = self.files.total / 1e9
        logger.info("KV cache on disk: %d files, %.1f of %.1f GB, in %s", len(self.files), size, self.limit_gb, place)

    @property
    def limit_gb(self) -> float:
        return float(self.files.limit / 1e9)

    def has(self, key: bytes) -> bool:
        return key.hex() in self.files

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:  # noqa: ANN401 - a class of vLLM's
        self._touch(req_context)
        return LookupResult.HIT if self.has(key) else LookupResult.MISS

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:  # noqa: ANN401
        self._began[req_context.req_id] = time.time_ns()
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:  # noqa: ANN401
        self._touched.discard(req_context.req_id)
        self._touch(req_context)
        self._touched.discard(req_context.req_id)
        self._began.pop(req_context.req_id, None)

    def submit_store(self, job: Any) -> None:  # noqa: ANN401
        self._touch(job.req_context)
        keep = last_use(min(self._began.values(), default=time.time_ns()), SPAN)
        # They come as a set; the beginning of a conversation has to be there first.
        parts = sorted(zip(job.keys, job.chunk_ids, strict=True), key=lambda part: _position(job.req_context, part[0]))
        tasks = [self._writing(key, chunk, self._used(job.req_context, key), keep) for key, chunk in parts]
        self._enqueue(self._pool.enqueue_store, job, tasks)

    def submit_load(self, job: Any) -> None:  # noqa: ANN401
        keys, read = self._loads[job.job_id] = list(job.keys), []
        tasks = [self._reading(key, chunk, read) for key, chunk in zip(keys, job.chunk_ids, strict=True)]
        self._enqueue(self._pool.enqueue_load, job, tasks)

    @staticmethod
    def _enqueue(enqueue: Any, job: Any, tasks: list[Any]) -> None:  # noqa: ANN401
        tasks = tasks or [lambda: None]  # the pool never ends a job without tasks
        enqueue(job.job_id, len(tasks), tasks)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        for job, _, seconds in self._pool.get_finished():
            keys, read = self._loads.pop(job, ([], []))
            yield JobResult(
                job_id=job,
                success=len(read) == len(keys),
                successful_keys=tuple(read) or None,
                transfer_time=seconds,
                transfer_bytes=len(read) * self.block_size_bytes if keys else None,
            )

    def drain_jobs(self) -> None:
        self._pool.wait_idle()

    def shutdown(self) -> None:
        until = time.monotonic() + END  # a disk that hangs must not keep the server from ending
        while self._pool._inflight_jobs and time.monotonic() < until:  # noqa: SLF001
            time.sleep(0.05)
        self._pool.shutdown(wait=False)
        for thread in self._pool._threads:  # noqa: SLF001
            thread.join(max(0.5, until - time.monotonic()))
        with suppress(BufferError):
            self._stage.release()
        self.files.close()

    def _row(self, chunk: int) -> memoryview:
        return self._stage[int(chunk) * self.block_size_bytes : (int(chunk) + 1) * self.block_size_bytes]

    def _writing(self, key: bytes, chunk: int, used: int, keep: int) -> Any:  # noqa: ANN401
        return lambda: self.files.write(key.hex(), self._row(chunk), used, keep)

    def _reading(self, key: bytes, chunk: int, read: list[bytes]) -> Any:  # noqa: ANN401
        def task() -> None:
            if self.files.read(key.hex(), self._row(chunk)):
                read.append(key)

        return task

    def _used(self, req_context: Any, key: bytes) -> int:  # noqa: ANN401
        began = self._began.get(req_context.req_id) or time.time_ns()
        return int(last_use(began, _position(req_context, key)))

    def _touch(self, req_context: Any) -> None:  # noqa: ANN401
        """Note that a request uses what is there of its conversation, wherever it has it from."""
        if req_context.req_id in self._touched:
            return
        self._touched.add(req_context.req_id)
        began = self._began.get(req_context.req_id) or time.time_ns()
        positions = req_context._offload_key_positions  # noqa: SLF001 - vLLM has no other way to all of its keys
        used = [(key.hex(), last_use(began, end)) for key, end in positions.items() if self.has(key)]
        if used:
            self._uses.put(used)

    def _note_uses(self) -> None:
        while True:
            self.files.touch(self._uses.get())


class Manager(TieringOffloadingManager):  # type: ignore[misc]
    """vLLM's manager of a stage and a disk, in which no request waits for ever."""

    def __init__(self, stage: CPUPrimaryTierOffloadingManager, disk: Disk, chunks: int) -> None:
        super().__init__(primary_tier=stage, secondary_tiers=[disk])
        self._disk, self._chunks = disk, chunks
        self._of_group = chunks * (OF_GROUP if disk.groups > 1 else ALL)
        self._turn: _Turn | None = None
        self._closed_until = 0.0

    def lookup(self, key: bytes, req_context: Any, *, exclude_tier_idx: int | None = None) -> LookupResult:  # noqa: ANN401
        self._maybe_process_finished_jobs()
        turn = self._turn if self._turn and self._turn.request == req_context.req_id else None
        if turn:
            turn.seen = time.monotonic()
            if key in turn.held:
                return LookupResult.HIT
        found = self.primary_tier.lookup(key, req_context)
        if found is LookupResult.HIT and turn and (key in turn.parts or len(turn.parts) < ALL * self._chunks):
            turn.hold(key, self.primary_tier)
        elif found is LookupResult.HIT_PENDING or (found is LookupResult.MISS and self._disk.has(key)):
            return self._coming(key, req_context, turn, found)
        return super().lookup(key, req_context, exclude_tier_idx=exclude_tier_idx)

    def _coming(self, key: bytes, req_context: Any, turn: "_Turn | None", found: LookupResult) -> LookupResult:  # noqa: ANN401
        """Answer for a part that is on the disk, or on its way to the stage: whether the request has to wait for it."""
        now = time.monotonic()
        if turn and now - turn.since > LIMIT:
            logger.warning("KV cache on disk: too slow, after %.0f s; prompts are computed for %.0f s", LIMIT, PAUSE)
            self._closed_until = now + PAUSE
        if now < self._closed_until:
            return LookupResult.MISS
        if turn is None:
            if self._turn and now - self._turn.seen < LIMIT:
                return LookupResult.RETRY  # others first
            self._end_turn()
            turn = self._turn = _Turn(req_context, now)
        if found is LookupResult.HIT_PENDING:
            return found
        group = get_offload_group_idx(key)
        full = len(turn.parts) >= ALL * self._chunks or turn.groups[group] >= self._of_group
        if full or key in turn.parts:  # the second: it came, but was damaged, or had to go
            return LookupResult.MISS
        if not self._room():
            return LookupResult.RETRY  # until others have written theirs
        turn.parts.add(key)
        turn.groups[group] += 1
        return super().lookup(key, req_context)

    def _room(self) -> int:
        stage = self.primary_tier
        return int(stage._get_num_free_chunks() + stage._num_evictable_cache_chunks)  # noqa: SLF001

    def prepare_load(self, keys: Collection[bytes], req_context: Any) -> Any:  # noqa: ANN401
        loaded = super().prepare_load(keys, req_context)
        self._end_turn(req_context.req_id)
        return loaded

    def prepare_store(self, keys: Collection[bytes], req_context: Any) -> Any:  # noqa: ANN401
        new = [key for key in keys if not self._disk.has(key)]
        stored = super().prepare_store(new, req_context)
        if stored is None and len(new) > self._chunks // 2 and (room := self._room()) > self._chunks // 4:
            # It will not fit later either: the beginning is of use, and the next request brings the rest again.
            stored = super().prepare_store(new[:room], req_context)
        return stored

    def on_schedule_end(self, context: Any) -> None:  # noqa: ANN401
        super().on_schedule_end(context)
        for request in context.new_req_ids:
            self._end_turn(request)

    def on_request_finished(self, req_context: Any, *, exclude_tier_idx: int | None = None) -> None:  # noqa: ANN401
        self._end_turn(req_context.req_id)
        super().on_request_finished(req_context, exclude_tier_idx=exclude_tier_idx)

    def reset_cache(self) -> None:
        self._end_turn()
        super().reset_cache()

    def _end_turn(self, request: str | None = None) -> None:
        if self._turn and request in {None, self._turn.request}:
            self._turn.release(self.primary_tier)
            self._turn = None


class _Turn:
    """What the request gets whose turn it is."""

    def __init__(self, req_context: Any, since: float) -> None:  # noqa: ANN401
        self.context, self.request, self.since, self.seen = req_context, req_context.req_id, since, since
        self.groups: Counter[int] = Counter()
        """How many parts of each group of layers came from the disk."""
        self.parts: set[bytes] = set()
        """What it has in the stage, or will have."""
        self.held: set[bytes] = set()
        """Those that are there."""

    def hold(self, key: bytes, stage: CPUPrimaryTierOffloadingManager) -> None:
        stage.prepare_read([key], self.context)
        self.parts.add(key)
        self.held.add(key)

    def release(self, stage: CPUPrimaryTierOffloadingManager) -> None:
        stage.complete_read(self.held, self.context)
        self.held.clear()


class DiskSpec(TieringOffloadingSpec):  # type: ignore[misc]
    """What vLLM's connector makes: a stage of the size it was told, and the disk."""

    _manager: Manager | None

    def create_worker(self, kv_caches: Any) -> Any:  # noqa: ANN401
        worker = super().create_worker(kv_caches)
        worker._mmap_region._creator = False  # noqa: SLF001 - the manager removes its name
        return worker

    def get_manager(self) -> Manager:
        if self._manager is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=None,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            if not region._creator:  # noqa: SLF001
                # The workers, which come first, have it: without a name it ends with the last process that has it.
                Path(region.mmap_path).unlink(missing_ok=True)
            stage = CPUPrimaryTierOffloadingManager(num_chunks=self.num_chunks, mmap_region=region)
            self._manager = Manager(stage, Disk(self, stage.get_kv_memoryview()), self.num_chunks)
        return self._manager


def identity(spec: DiskSpec, about: dict[str, Any], size: int) -> dict[str, Any]:
    """Return everything that another start must have in common to read the same files."""
    config, parallel, site = spec.config, spec.config.parallel, Path(vllm.__file__).parents[1]
    return {
        "versions": [vllm.__version__, *sys.version_info[:2]],
        "code": [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(site.glob("vllm*.dist-info/RECORD"))],
        "weights": weights(config.model.name, about.get("revision") or None),
        "dtype": config.model.dtype,
        "groups": [[group.group_id, group.tokens_per_block, list(group.layer_names)] for group in config.groups],
        "tokens": [config.cache.tokens_per_hash, config.cache.blocks_per_chunk],
        "layout": [config.kv_cache_layout, config.canonical_layout, config.replicated_layout],
        "parallel": [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size],
        "bytes": [config.worker_kv_bytes_per_block, size],
        "variables": sorted(item for item in os.environ.items() if _CHOOSING.match(item[0])),
        **about,
    }


def weights(model: str, revision: str | None) -> Any:  # noqa: ANN401 - for JSON
    """Return what identifies a model's files: the commit of a repository, or a folder's names, sizes and times."""
    folder = Path(model)
    if not folder.is_dir():
        with suppress(ValueError):
            cached = try_to_load_from_cache(model, "config.json", revision=revision)
            folder = Path(cached).parent if isinstance(cached, str) else folder
    if folder.parent.name == "snapshots":
        return folder.name
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        logger.warning(
            "KV cache on disk: it is unknown which files %s has, so that no other start reads this cache", model
        )
        return time.time_ns()
    return [[str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _position(req_context: Any, key: bytes) -> int:  # noqa: ANN401
    return req_context.get_offload_key_position(key) or 0
