"""Describes an image for its page and the JSON beside it: tags, digest, layers, mods, kernels, tests, history."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from imagefactory.check.answers.record import NOT_MEASURED
from imagefactory.check.smoke.record import LEVELS
from imagefactory.launch.docker_run import Launch, docker_run, shell_line
from imagefactory.project.cells import Cell, known_faults
from imagefactory.project.locks.files import WheelLock
from imagefactory.project.locks.kernels import recorded_audit
from imagefactory.project.server_versions import VLLM
from imagefactory.publish.history import history
from imagefactory.publish.tags import fixed_tag, moving_tags
from imagefactory.site.stock import Document, Planned, Stock

NEIGHBOURS: Final = 6
"""How many other images a page compares its own with."""
HISTORY: Final = 100
"""How many changes a page lists, the newest."""
SOMEBODY: Final = "/home/somebody"


def image_page(stock: Stock, planned: Planned, packages: Document, shared: Mapping[str, int]) -> Document:
    """Describe an image; `shared` counts the images that have a layer, by its key.

    `digest` is the image that this checkout makes (None while a layer has never been built), `published_digest` the one
    that the tags name today.
    """
    project, cell, plan = stock.project, planned.cell, planned.plan
    matrix = project.matrix
    tags = moving_tags(matrix, cell)
    arch = matrix.archs[cell.arch]
    audit = recorded_audit(project.wheel_lock(cell), arch, project.kernel_lock)
    lines = history(stock.records.catalog, tags, cell.platform)
    now, evidence = stock.published[cell], stock.evidence(cell)
    blobs = planned.image.layers if planned.image else ()
    published = now.digest if now else None
    digest = published or planned.digest
    registry = stock.records.registry
    reference = f"{registry}@{digest}" if digest else f"{registry}:{tags[0]}"
    smoke = list(_smoke(stock, cell))
    return {
        "slug": cell.slug,
        "target": f"{cell}/{cell.machine}",
        "model": cell.model,
        "server": cell.server,
        "version": cell.version,
        "runs": cell.runs,
        "arch": cell.arch,
        "gpu": arch.gpu or "machines without a GPU",
        "platform": cell.platform,
        "base": f"Debian {matrix.bases[project.base_lock(cell).base].debian}",
        "python": project.wheel_lock(cell).python,
        "kernels_from": _origin_of_kernels(project.wheel_lock(cell)),
        "registry": registry,
        "digest": planned.digest,
        "published_digest": published,
        "published_on": f"{lines[-1].time:%Y-%m-%d}" if lines else None,
        "tags": tags,
        "fixed_tag": now.tag if now else fixed_tag(cell, plan.key),
        "bytes": sum(blob.size for blob in blobs) or None,
        "unpacked": sum(blob.unpacked for blob in blobs) or None,
        "layers": list(_layers(planned, shared)),
        "neighbours": _neighbours(stock, planned),
        "mods": [mod.name for mod in plan.mods],
        "notes": plan.notes,
        "faults": known_faults(matrix, cell),
        "audit": audit.result,
        "audit_summary": audit.summary,
        "kernels": [
            {"library": one.library, "outcome": one.outcome, "why": one.why, "cubins": one.kernels.cubins}
            for one in audit.verdicts
        ],
        "packages": packages["slug"],
        "licences": packages["licences"],
        "gnu": packages["gnu"],
        "statements": evidence.statements,
        "smoke": smoke,
        "smoke_on": f"{evidence.smoke.started:%Y-%m-%d}" if evidence.smoke else None,
        "vulnerabilities": evidence.vulnerabilities,
        "vulnerabilities_line": evidence.vulnerabilities.line if evidence.vulnerabilities else None,
        "history": [
            {
                "date": f"{line.time:%Y-%m-%d %H:%M}",
                "kind": line.kind,
                "digest": line.image.digest,
                "tag": line.image.tag,
                "bytes": line.image.size,
                "changed": line.changed,
                "now": line.now,
                "held": line.held,
                "answers": line.answers,
            }
            for line in lines[: -HISTORY - 1 : -1]
        ],
        "older": max(0, len(lines) - HISTORY),
        "problems": evidence.problems,
        "docker_run": _docker_run(planned, reference),
        "older_run": _docker_run(planned, f"{registry}@{lines[-2].image.digest}") if lines[1:] else None,
        "environment": plan.config.env,
        "entrypoint": plan.config.entrypoint,
        "labels": plan.config.labels,
        "reference": reference,
        "state": _state(published, planned.digest),
        "tested": _tested(smoke),
        "answers": lines[-1].answers if lines else NOT_MEASURED,
    }


def _state(published: str | None, digest: str | None) -> str:
    if published is None:
        return "built" if digest else "planned"
    return "current" if published == digest else "update waiting"


def _tested(smoke: list[Document]) -> str:
    """Return the worst outcome of the required levels."""
    outcomes = {row["outcome"] for row in smoke if row["required"]}
    worst = next((word for word in ("failed", "not-run", "no record") if word in outcomes), "passed")
    return worst if outcomes else "no record"


def _layers(planned: Planned, shared: Mapping[str, int]) -> Iterator[Document]:
    blobs = planned.image.layers if planned.image else None
    for number, layer in enumerate(planned.plan.layers):
        yield {
            "kind": layer.kind,
            "name": layer.name,
            "bytes": blobs[number].size if blobs else None,
            "digest": blobs[number].digest if blobs else None,
            "key": layer.key,
            "shared_by": shared.get(layer.key, 1) - 1,
        }


def _neighbours(stock: Stock, planned: Planned) -> list[Document]:
    """List the images of the same machine that leave least to pull, of the same model or of the same version."""
    cell, own = planned.cell, planned.sizes
    sizes = sorted(
        (sum(size for digest, size in own.items() if digest not in other.sizes), other.cell)
        for other in stock.planned.values()
        if own and other.image and other.cell != cell
        if (other.cell.arch, other.cell.platform) == (cell.arch, cell.platform)
    )
    own_model = [found for found in sizes if found[1].model == cell.model]
    same_version = [found for found in sizes if found[1].version == cell.version]
    chosen = dict.fromkeys([*own_model[: NEIGHBOURS // 2], *same_version[: NEIGHBOURS // 2]])
    return [{"slug": other.slug, "target": str(other), "bytes": count} for count, other in sorted(chosen)]


def _origin_of_kernels(lock: WheelLock) -> str:
    """Say who compiled vLLM's kernels, and what else was compiled for the chip."""
    compiled = [wheel.name for wheel in lock.wheels if wheel.compiled and wheel.name != VLLM]
    origin = "published" if lock.kernels == "upstream" else lock.kernels
    return f"{origin} kernels{''.join(f', {name} compiled' for name in compiled)}"


def _smoke(stock: Stock, cell: Cell) -> Iterator[Document]:
    """Yield every level that is required or was run."""
    required = stock.project.matrix.archs[cell.arch].smoke
    record, published = stock.evidence(cell).smoke, stock.published[cell]
    for level in LEVELS:
        row = {"level": level, "required": level in required, "outcome": "no record", "why": "", "tests": ()}
        if record and (result := record.levels.get(level)):
            yield row | {"outcome": result.outcome, "why": result.why, "tests": result.tests}
        elif published and level in published.smoke:
            why = "from the catalog; no record is attached"
            yield row | {"outcome": published.smoke[level], "why": why}
        elif level in required:
            yield row


def _docker_run(planned: Planned, reference: str) -> str:
    """Return the command that starts the image, for anybody's home."""
    description = planned.plan.layers[-1].settings.model_dump()["description"]
    launch = Launch(planned.cell, reference, description, models=f"{SOMEBODY}/.cache/huggingface")
    return re.sub(rf"(?<= ){SOMEBODY}/", "~/", shell_line(docker_run(launch)))
