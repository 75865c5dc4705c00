"""Answers of published images: measured beside the image before, and attached to the new one.

Attached are a record of the verdict, and the measurement itself, compressed: the next image is compared with it.
"""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final

from imagefactory.check.answers.record import AnswersRecord, judged
from imagefactory.check.answers.result import AnswersResult, Panel
from imagefactory.check.smoke.containers import ContainerError
from imagefactory.check.weights import weights_of
from imagefactory.errors import FactoryError, clean
from imagefactory.oci.registry.artifacts import TITLE, Payload
from imagefactory.oci.registry.referrers import Attachment, dated
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from imagefactory.publish.catalog import Published, parts_of
from imagefactory.publish.dossier import ANSWERS_TYPE, PANEL_TYPE, Dossier
from imagefactory.publish.run import PublishRun
from imagefactory.publish.tag_owners import moving_tags
from imagefactory.store.atomic import writing
from imagefactory.store.digests import Digest

if TYPE_CHECKING:
    from imagefactory.check.smoke.subject import Subject
    from imagefactory.publish.staging import Staged

RECORD: Final = "answers.json"
PANEL_FILE: Final = "panel.json.gz"
LONGEST: Final = 500
"""Characters of a line in the catalog, which takes no more in any text."""
_CODE: Final = ("mod", "serve", "model", "bytecode", "pure-bundle")
"""Kinds of layers that hold no kernels."""


def pulled(project: Project, repository: Repository, digest: Digest) -> Subject:
    """Find a pushed image by digest; it is pulled to run, as users do."""
    from imagefactory.check.smoke.subject import subject_of_image  # noqa: PLC0415 - with Docker's client

    return subject_of_image(project, str(repository.reference.at(digest)))


def measure(run: PublishRun, digest: Digest) -> AnswersResult:
    from imagefactory.check.answers.measuring import measure_image  # noqa: PLC0415 - with Docker's client

    return measure_image(run.project, pulled(run.project, run.repository, digest), run.settings, run.say)[0]


def measure_answers(run: PublishRun, staged: Staged) -> None:
    """Measure an image, and compare it with the one that its tag names now; the record goes beside the smoke record.

    The image that the tag names is not measured, nor what was compared with that image already.
    """
    from imagefactory.check.smoke.runner import results_folder  # noqa: PLC0415 - with Docker's client

    project, say = run.project, run.say
    folder = results_folder(project, staged.digest)
    plan, panel = staged.plan, Panel.of(project.root).version
    catalog = run.gate.snapshot.catalog
    base = catalog.current(moving_tags(project.matrix, catalog, plan.cell), plan.platform)
    if base and base.digest == staged.digest:
        return
    before = base.digest if base else None
    last = staged.dossier.answers(plan.key, *answers_in(folder))
    if last and not run.retest and (last.base, last.panel) == (before, panel) and last.verdict != "cannot tell":
        say(f"{plan.target}: {last.line}")
        return
    record = AnswersRecord(
        digest=staged.digest,
        plan_key=plan.key,
        target=plan.cell.full_target,
        panel=panel,
        started=datetime.now(UTC),
        verdict="cannot tell",
        why="it was not measured",
        base=before,
        weights=weights_of(run.settings),
    )
    try:
        result = measure(run, staged.digest)
    except (FactoryError, ContainerError) as error:
        # A change that was measured says more than a failure to measure it again, which does not lift it.
        known = last is not None and last.verdict == "changed"
        record = record.model_copy(update=_unmeasured(run, None if known else base, error))
    else:
        with writing(folder / PANEL_FILE) as file:
            file.write(compact(result))
        try:
            earlier = _earlier(run.repository, base.digest, result) if base else None
            if base and earlier is None:
                earlier = measure(run, base.digest)
            # A second start of the same image shows how far answers differ without any change.
            again = measure(run, staged.digest) if earlier else None
            new_kernels = base is not None and _other_kernels(base, staged)
            record = judged(record, result, base=earlier, again=again, other_kernels=new_kernels)
        except (FactoryError, ContainerError) as error:
            record = record.model_copy(update={"why": _words(error)})
    record.write(folder / RECORD)
    say(f"{plan.target}: {record.line}")


def _unmeasured(run: PublishRun, base: Published | None, error: Exception) -> dict[str, str]:
    """Judge an image that does not let itself be measured: if the one before does, that is a change."""
    why = _words(error)
    if base is None:
        return {"why": why}
    try:
        if not Dossier.read(run.repository, base.digest).measurements():
            measure(run, base.digest)
    except (FactoryError, ContainerError):
        return {"why": why}
    return {"verdict": "changed", "why": f"the image before could be measured, this one cannot: {why}"}


def _words(error: Exception) -> str:
    why = f"{error.what} {error.why}" if isinstance(error, FactoryError) else str(error)
    return shorten(clean(why), LONGEST // 2, placeholder=" ...")


def _earlier(repository: Repository, base: Digest, result: AnswersResult) -> AnswersResult | None:
    """Return the measurement that is attached to the image before, if it is of this panel and chip."""

    def alike(run: AnswersResult) -> object:
        return run.panel, run.machine.platform, {gpu.name for gpu in run.machine.gpus}, run.bound.settings

    earlier = Dossier.read(repository, base).measurements()
    return next((measured for measured in earlier if alike(measured) == alike(result)), None)


def _other_kernels(base: Published, staged: Staged) -> bool:
    parts = {part.name for part in {*base.made_of} ^ {*parts_of(staged.plan)}}
    return any(not name.startswith(_CODE) for name in parts)


def answers_attachment(record: AnswersRecord, folder: Path | None = None) -> Attachment:
    """Make the attachment of a record, with the measurement that a folder has."""
    payloads = [Payload(ANSWERS_TYPE, record.to_json().encode(), {TITLE: RECORD})]
    if folder and (folder / PANEL_FILE).exists():
        payloads.append(Payload.file(folder / PANEL_FILE, PANEL_TYPE))
    return Attachment(ANSWERS_TYPE, payloads, dated(record.started))


def answers_in(folder: Path) -> list[AnswersRecord]:
    return [AnswersRecord.read(folder / RECORD)] if (folder / RECORD).exists() else []


def compact(result: AnswersResult) -> bytes:
    """Compress a measurement: eight digits are all that a log-probability of 32 bits has."""

    def short(value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, float):
            return float(f"{value:.8g}")
        if isinstance(value, dict):
            return {name: short(part) for name, part in value.items()}
        return [short(part) for part in value] if isinstance(value, list) else value

    document = short(result.model_dump(mode="json"))
    # Without a time in it, the same measurement is the same blob.
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)
