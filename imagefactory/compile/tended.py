"""Tends a compile while it runs: orders its objects, notes its state, and learns from their times however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagefactory.compile.capacity import BuildMachine
from imagefactory.compile.job import Job
from imagefactory.compile.settings import CompileSettings
from imagefactory.compile.under_way import State, note
from imagefactory.compile.weights import learn, tell
from imagefactory.store.cache import Store


@contextmanager
def tended(
    store: Store, settings: CompileSettings, job: Job, machine: BuildMachine, jobs: int
) -> Iterator[Path]:
    """Tend a compile in its folder, which is returned; times that a killed run left behind are learnt first."""
    folder = job.folder(store)
    learnt = learn(store, job.inputs, folder)
    tell(folder, settings, job.request, learnt, jobs=jobs, memory_gb=machine.memory_gb)
    note(folder, job, "running")
    state: State = "interrupted"
    try:
        yield folder
        state = "done"
    except Exception:
        state = "failed"
        raise
    finally:
        note(folder, job, state)
        learn(store, job.inputs, folder)
