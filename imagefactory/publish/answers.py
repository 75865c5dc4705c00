"""Answers of published images: measured beside the image before, attached to the new one, and a gate for promotion.

Attached are a record of the verdict, and the measurement itself, compressed: the next image is compared with it.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from imagefactory.check.answers.record import AnswersRecord, judged
from imagefactory.check.answers.result import AnswersResult, Panel
from imagefactory.check.smoke.containers import ContainerError
from imagefactory.check.smoke.record import required_levels
from imagefactory.errors import FactoryError, TrustError, clean
from imagefactory.oci.registry import referrers
from imagefactory.oci.registry.artifacts import TITLE, Payload
from imagefactory.oci.registry.credentials import find_credentials
from imagefactory.oci.registry.reference import Descriptor
from imagefactory.oci.registry.repository import Repository
from imagefactory.project.project import Project
from imagefactory.publish.catalog import Published
from imagefactory.publish.gate import made_of
from imagefactory.publish.stored_catalog import read_catalog
from imagefactory.publish.tags import moving_tags
from imagefactory.store.atomic import writing
from imagefactory.store.digests import Digest, Sha256
from imagefactory.store.progress import Say

if TYPE_CHECKING:
    from imagefactory.check.smoke.subject import Subject
    from imagefactory.publish.staging import Staged

ANSWERS_TYPE: Final = "application/vnd.imagefactory.answers.v1+json"
PANEL_TYPE: Final = "application/vnd.imagefactory.panel.v1+json+gzip"
RECORD: Final = "answers.json"
PANEL_FILE: Final = "panel.json.gz"
LONGEST: Final = 500
"""Characters of a line in the catalog."""
_LARGEST: Final = 32 * 1024 * 1024
_CODE: Final = ("mod", "serve", "model", "bytecode", "pure-bundle")
"""Kinds of layers that hold no kernels."""


def pulled(project: Project, repository: Repository, digest: Digest) -> Subject:
    """Pull an image by digest, as users get it."""
    from imagefactory.check.smoke.subject import subject_of_image  # noqa: PLC0415 - with Docker's client

    reference = repository.reference
    found = find_credentials(reference.registry)
    auth = {"username": found.username, "password": found.secret} if found else None
    return subject_of_image(project, f"{reference.name}@{digest}", auth=auth)


def measure(project: Project, repository: Repository, digest: Digest, say: Say) -> AnswersResult:
    from imagefactory.check.answers.measuring import measure_image  # noqa: PLC0415 - with Docker's client

    return measure_image(project, pulled(project, repository, digest), {}, say)[0]


def measure_answers(
    project: Project, repository: Repository, staged: Staged, say: Say, *, retest: bool = False
) -> None:
    """Measure an image, and compare it with the one that its tag names now; the record goes beside the smoke record.

    The image that the tag names is not measured, nor what was compared with that image already.
    """
    from imagefactory.check.smoke.runner import results_folder  # noqa: PLC0415 - with Docker's client

    folder = results_folder(project, staged.digest)
    plan, panel = staged.plan, Panel.of(project.root).version
    base = read_catalog(repository).catalog.current(moving_tags(project.matrix, plan.cell), plan.platform)
    if base and base.digest == staged.digest:
        return
    before = base.digest if base else None
    known = newest([*_records(repository, staged.digest), *answers_in([folder])], staged.digest, plan.key)
    if known and not retest and (known.base, known.panel) == (before, panel) and known.verdict != "cannot tell":
        say(f"{plan.target}: {known.line}")
        return
    record = AnswersRecord(
        digest=staged.digest,
        plan_key=plan.key,
        target=f"{plan.cell}/{plan.cell.machine}",
        panel=panel,
        started=datetime.now(UTC),
        verdict="cannot tell",
        why="it was not measured",
        base=before,
    )
    try:
        result = measure(project, repository, staged.digest, say)
        with writing(folder / PANEL_FILE) as file:
            file.write(compact(result))
        earlier = _earlier(repository, base.digest, result) if base else None
        if base and earlier is None:
            earlier = measure(project, repository, base.digest, say)
        again = measure(project, repository, staged.digest, say) if earlier else None
        other = base is not None and _other_kernels(base, staged)
        record = judged(record, result, base=earlier, again=again, other_kernels=other)
    except (FactoryError, ContainerError) as error:
        why = f"{error.what} {error.why}" if isinstance(error, FactoryError) else str(error)
        record = record.model_copy(update={"why": shorten(clean(why), LONGEST // 2, placeholder=" ...")})
    record.write(folder / RECORD)
    say(f"{plan.target}: {record.line}")


def _earlier(repository: Repository, base: Digest, result: AnswersResult) -> AnswersResult | None:
    """Return the measurement that is attached to the image before, if it is of this panel and chip."""

    def alike(one: AnswersResult) -> object:
        return one.panel, one.machine.platform, {gpu.name for gpu in one.machine.gpus}, one.bound.settings

    return next((one for one in _measurements(repository, base) if alike(one) == alike(result)), None)


def _other_kernels(base: Published, staged: Staged) -> bool:
    parts = {part.name for part in {*base.made_of} ^ {*made_of(staged.plan)}}
    return any(not name.startswith(_CODE) for name in parts)


def attach_answers(repository: Repository, record: AnswersRecord, folder: Path | None = None) -> None:
    """Attach a record to its image, with the measurement that a folder has."""
    subject = repository.require_manifest(record.digest).descriptor()
    payloads = [Payload(ANSWERS_TYPE, record.to_json().encode(), {TITLE: RECORD})]
    if folder and (folder / PANEL_FILE).exists():
        payloads.append(Payload.file(folder / PANEL_FILE, PANEL_TYPE))
    referrers.attach(repository, subject, ANSWERS_TYPE, payloads, record.started)


def answers_in(folders: Iterable[Path]) -> list[AnswersRecord]:
    return [AnswersRecord.read(folder / RECORD) for folder in folders if (folder / RECORD).exists()]


def answers_among(repository: Repository, attached: Iterable[Descriptor]) -> list[AnswersRecord]:
    return [
        AnswersRecord.from_json(repository.blob(item.digest), f"{repository.reference.name}@{item.digest}")
        for item in referrers.items(repository, attached, ANSWERS_TYPE)
    ]


def newest(records: Iterable[AnswersRecord], digest: Digest, key: Sha256) -> AnswersRecord | None:
    """Return the newest record about an image, whatever it is attached to; a failed attempt does not undo a verdict."""
    own = [one for one in records if (one.digest, one.plan_key) == (digest, key)]
    return max(own, key=lambda one: (one.verdict != "cannot tell", one.started, one.accepted != ""), default=None)


def unaccepted(repository: Repository, digest: Digest, key: Sha256) -> str:
    """Say how the answers of an image changed, if nobody has accepted that; empty otherwise."""
    record = newest(_records(repository, digest), digest, key)
    return record.line if record and record.verdict == "changed" and not record.accepted else ""


def _records(repository: Repository, digest: Digest) -> list[AnswersRecord]:
    return answers_among(repository, referrers.find(repository, digest, ANSWERS_TYPE))


def _measurements(repository: Repository, digest: Digest) -> list[AnswersResult]:
    """Read what was measured of an image, newest first; what cannot be read is measured again."""
    found = []
    attached = referrers.find(repository, digest, ANSWERS_TYPE)
    for item in referrers.items(repository, attached, ANSWERS_TYPE, PANEL_TYPE):
        inflater = zlib.decompressobj(wbits=31)
        try:
            text = inflater.decompress(repository.blob(item.digest, _LARGEST), _LARGEST)
            result = AnswersResult.model_validate_json(text)
        except (zlib.error, ValidationError, FactoryError):
            continue
        found += [result] if result.bound.digest == digest else []
    return sorted(found, key=lambda one: one.started, reverse=True)


def compact(result: AnswersResult) -> bytes:
    """Compress a measurement: eight digits are all that a log-probability of 32 bits has."""

    def short(value: Any) -> Any:  # noqa: ANN401 - JSON
        if isinstance(value, float):
            return float(f"{value:.8g}")
        if isinstance(value, dict):
            return {name: short(one) for name, one in value.items()}
        return [short(one) for one in value] if isinstance(value, list) else value

    document = short(result.model_dump(mode="json"))
    return gzip.compress(json.dumps(document, separators=(",", ":")).encode(), mtime=0)


def pass_answers(project: Project, repository: Repository, staged: Staged, reason: str) -> AnswersRecord | None:
    """Refuse an image whose answers changed, unless somebody gives a reason; return its record, None if it has none.

    Where the level `gpu` is required, the answers have to be known, too.
    """
    plan = staged.plan
    record = newest(_records(repository, staged.digest), staged.digest, plan.key)
    required = "gpu" in required_levels(project.matrix, plan.arch)
    held = ("changed", "cannot tell") if required else ("changed",)
    if record is None or record.verdict not in held or record.accepted:
        return record
    if reason:
        record = record.model_copy(update={"accepted": reason})
        attach_answers(repository, record)
        return record
    target = f"{plan.target}/{plan.cell.machine}"
    what = "gives other answers" if record.verdict == "changed" else "may give other answers"
    raise TrustError(
        "answers-changed",
        f"{plan.target} {what} than the image that users have, and gets no tag.",
        where=f"{repository.reference.name}@{staged.digest}",
        why=_figures(record),
        fix=f"Find out what changed them (docs/answers.md). If they are meant to change: `./inv promote --target "
        f'{target} --answers-changed "REASON"`. The reason stays in the history.',
    )


def _figures(record: AnswersRecord) -> str:
    found, noise = record.figures, record.noise
    if found is None:
        return f"{record.line}."
    told = f"KL {found.divergence:.1e}, {found.same_choice:.2%} of first choices agree"
    if noise:
        told += f"; between two starts of it: KL {noise.divergence:.1e}, {noise.same_choice:.2%}"
    return f"{record.line}. {told}."
