"""Runs smoke tests with pytest in a separate process, and records the results."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from imagefactory.check.smoke.assignment import Assignment, assigned
from imagefactory.check.smoke.record import Level, LevelResult, SmokeMachine, SmokeRecord, TestResult, reason_in
from imagefactory.check.smoke.subject import Subject
from imagefactory.errors import CheckError
from imagefactory.project.project import Project
from imagefactory.project.targets import host_machine
from imagefactory.store.progress import Say
from imagefactory.store.signals import ending_in_order

RECORD: Final = "record.json"
LOG: Final = "log.txt"
_LEVELS: Final = Path(__file__).parent / "levels"
_BROKE_OFF: Final = "the test run ended before this test did"
_POLL: Final = 0.3  # seconds


def results_folder(project: Project, digest: str) -> Path:
    """Return the folder of an image's results: record.json and the log of the last run."""
    return project.root / "build" / "smoke" / digest.removeprefix("sha256:")


def recorded(project: Project, digest: str) -> SmokeRecord:
    return SmokeRecord.read(results_folder(project, digest) / RECORD)


def records_here(project: Project, digest: str) -> list[SmokeRecord]:
    """Read the record of an image, if build/smoke has one."""
    return [recorded(project, digest)] if (results_folder(project, digest) / RECORD).exists() else []


def smoke(
    project: Project, subject: Subject, levels: Sequence[Level], say: Say, settings: Mapping[str, str] | None = None
) -> SmokeRecord:
    """Test an image at some levels, and record the results; keep the results of other levels.

    The server of the level `gpu` gets the settings, such as another model.
    """
    started = datetime.now(UTC).replace(microsecond=0)
    folder = results_folder(project, subject.digest)
    folder.mkdir(parents=True, exist_ok=True)
    with ending_in_order(), assigned(project, subject, levels, settings, say) as assignment:
        for level, why in assignment.hindered.items():
            say(f"{level}: not run: {why}")
        results = _run(assignment, levels, folder, say)
        machine = SmokeMachine(
            platform=f"linux/{host_machine()}",
            kernel=platform.release(),
            cpus=os.cpu_count() or 0,
            memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            engine=assignment.engine,
            gpus=assignment.gpus,
        )
    record = SmokeRecord(
        digest=subject.digest,
        plan_key=subject.plan_key,
        target=subject.cell.full_target,
        image=subject.name,
        platform=subject.cell.platform,
        machine=machine,
        started=started,
        levels=results,
    )
    with suppress(CheckError):  # there is none, or it is damaged
        record = record.with_earlier(recorded(project, subject.digest))
    record.write(folder / RECORD)
    return record


def refuse_failed(record: SmokeRecord, ran: Sequence[Level], *, by_name: bool, folder: Path) -> None:
    """Raise if a level of this run failed, or could not run although it was requested by name."""
    this_run = record.model_copy(update={"levels": {level: record.levels[level] for level in ran}})
    wrong = this_run.missing(ran if by_name else ())
    if wrong:
        raise CheckError(
            "smoke-failed",
            f"{record.target} did not pass its smoke tests.",
            where=record.image,
            why="; ".join(wrong),
            fix=f"{folder / LOG} has the details.",
        )


def _run(assignment: Assignment, levels: Sequence[Level], folder: Path, say: Say) -> dict[Level, LevelResult]:
    with tempfile.TemporaryDirectory(prefix="imagefactory-smoke-") as scratch:
        work = Path(scratch)
        (work / "assignment.json").write_text(assignment.model_dump_json(), "utf-8")
        with _pytest(levels, work, folder) as process:
            entries = _follow(process, work / "results.jsonl", say)
    return {level: _level(level, assignment, entries, process.returncode, folder) for level in levels}


def _level(level: Level, assignment: Assignment, entries: list[dict[str, Any]], code: int, folder: Path) -> LevelResult:
    if why := assignment.hindered.get(level):
        return LevelResult.not_run(why)
    planned, ended = (
        {entry["name"]: entry for entry in entries if (entry["level"], entry["kind"]) == (level, kind)}
        for kind in ("planned", "ended")
    )
    if not planned:
        last = (folder / LOG).read_text("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
        return LevelResult.not_run(f"pytest ended with code {code} before any test: {last[0]}")
    tests = []
    for name, entry in planned.items():
        facts = ended.get(name, {"outcome": "not-run", "message": _BROKE_OFF})
        fields = {key: value for key, value in facts.items() if key not in {"kind", "level"}}
        tests.append(TestResult(**fields | {"name": name, "means": entry["means"]}))
    served_digest = assignment.serving.digest if level == "serve" and assignment.serving is not None else ""
    return LevelResult.of(
        tests,
        seconds=round(sum(test.seconds for test in tests), 2),
        ran_on="" if served_digest == assignment.subject.digest else served_digest,
        settings=assignment.settings if level == "gpu" else {},
    )


@contextmanager
def _pytest(levels: Sequence[Level], work: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        *(sys.executable, "-m", "pytest", "-c", str(_LEVELS / "pytest.ini"), "--rootdir", str(_LEVELS)),
        *("--confcutdir", str(_LEVELS), "--assignment", str(work / "assignment.json")),
        *("--results", str(work / "results.jsonl")),
        *(str(_LEVELS / f"test_{level}.py") for level in levels),
    ]
    # Options of another pytest run do not apply here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    with (
        (folder / LOG).open("wb") as log,
        subprocess.Popen(  # noqa: S603 - our own tests
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=work, env=environment
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def _follow(process: subprocess.Popen[bytes], results: Path, say: Say) -> list[dict[str, Any]]:
    """Read and report results as tests end."""
    entries: list[dict[str, Any]] = []
    reported: set[str] = set()  # a reason that many tests share is printed once
    position = 0
    while True:
        # Asked before reading: results written between the two are still read.
        ended = process.poll() is not None
        text = results.read_bytes()[position:] if results.exists() else b""
        lines, _, _ = text.rpartition(b"\n")  # the last line may be half written
        position += len(lines) + 1 if lines else 0
        for line in lines.splitlines():
            entry = json.loads(line)
            entries.append(entry)
            if entry["kind"] == "ended":
                figures = "".join(f", {name} {value:g}" for name, value in entry["measured"].items())
                outcome = f"{entry['outcome']} ({entry['seconds']:.1f} s{figures})"
                reason = reason_in(entry["message"]) if entry["message"] else ""
                shown = "as above" if reason and reason in reported else reason
                reported.add(reason)
                say(": ".join(filter(None, (entry["level"], entry["name"], outcome, shown))))
        if ended:
            return entries
        time.sleep(_POLL)
