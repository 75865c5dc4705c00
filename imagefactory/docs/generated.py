"""The parts of the documentation that follow from the matrix and the code: digest, tables, schemas."""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from imagefactory.check.bench.profiles import load_starts
from imagefactory.check.bench.published import PublishedFigures, load_published
from imagefactory.check.bench.result import BenchResult
from imagefactory.compile.settings import CompileSettings
from imagefactory.docs.markdown import markdown_table, replace_between
from imagefactory.errors import FactoryError
from imagefactory.launch.preview import Preview
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Plan
from imagefactory.plan.serve.description import describe_image, image_environment, serve_document
from imagefactory.project.cells import Cell, buildable, known_faults, usable_drafters
from imagefactory.project.counterparts import reason_no_default
from imagefactory.project.matrix import Matrix, load_matrix
from imagefactory.project.project import Project
from imagefactory.project.server_versions import TITLES, version_title
from imagefactory.project.targets import select_one
from imagefactory.serve_program import memory as program_memory
from imagefactory.site.choosing import USES, Candidate, gpu_of, hard_score, ranked
from imagefactory.site.figures import reported_of, speeds_of
from imagefactory.site.guides import read_guides
from imagefactory.site.pictures import timeline_file
from imagefactory.site.starts import StartMemory
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Digest
from images.shipped.mods.manifest import Manifest

DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$", re.MULTILINE)
NOT_MEASURED = "\u2013"
LARGE_GB, CONTEXT, MACHINES = 75, 32_768, (1, 2, 4, 8)
"""Whose weights a second machine may have to share, and what the table of clusters asks of them."""
SCHEMAS: dict[str, type[BaseModel]] = {
    "bench.schema.json": BenchResult,
    "compile.schema.json": CompileSettings,
    "matrix.schema.json": Matrix,
    "mod.schema.json": Manifest,
    "plan.schema.json": Plan,
}


def write_digest(project: Project, plan: Plan, readme: Path) -> Digest | None:
    """Put the plan's image digest into the README and return it; None while a layer has never been built."""
    if (image := KnownLayers(project.known_layers).image(plan)) is None:
        return None
    write_changed({readme: DIGEST.sub(image.digest, readme.read_text("utf-8"))})
    return image.digest


def with_tables(root: Path) -> dict[Path, str]:
    matrix = load_matrix(root / "matrix.yaml")
    guides, published = read_guides(root), load_published(root)
    first = select_one(matrix, "")
    document = _model(matrix, first)
    settings = Preview(root, describe_image(matrix, first, document), document).markdown()
    settings = re.sub("a (?:whole )?number from ", "", settings)  # a table of 50 rows need not repeat it
    codes = ((str(code), meaning) for code, meaning in guides.exit_codes.items())
    troubles = ((trouble.symptom, trouble.remedy) for trouble in guides.troubles)
    tables = {
        "docs/serving.md": {
            "settings": settings,
            "codes of images": markdown_table(codes, "code", "meaning"),
            "troubles": markdown_table(troubles, "symptom", "reason and remedy"),
        },
        "docs/errors.md": {"exit codes": _exit_codes()},
        "docs/models.md": {
            "uses": models_by_use(matrix, published),
            "facts": model_facts(matrix),
            "versions": kept_versions(matrix) + newer_versions(Project(root)),
        },
        "docs/cluster.md": {"fits": fits_on_machines(root, matrix)},
        "README.md": {"tags": best_by_use(matrix, published)},
    }
    pages = {}
    for name, parts in tables.items():
        text = (root / name).read_text("utf-8")
        for mark, table in parts.items():
            text = replace_between(text, mark, table)
        pages[root / name] = text
    return pages


def fits_on_machines(root: Path, matrix: Matrix) -> str:
    """Return the table of large models: how many users with a long context each fit on 1 to 8 machines together."""
    rows = []
    for name, model in matrix.models.items():
        cell = select_one(matrix, name)
        memory = matrix.archs[cell.arch].memory
        if not memory or not model.memory or model.memory.weights_gb < LARGE_GB:
            continue
        document = _model(matrix, cell)
        preview = Preview(root, describe_image(matrix, cell, document), document)
        machine = program_memory.Machine(memory.total, memory.free, memory.unified)
        users = []
        for nodes in MACHINES:
            joined = {"NODE_RANK": "0", "HEAD_ADDRESS": "192.0.2.1"} if nodes > 1 else {}
            start = StartMemory.of(preview.start({"NODES": str(nodes), **joined}))
            users.append(start.fit(machine, CONTEXT, users=sys.maxsize).users if start else 0)
        rows.append((f"`{name}`", *(str(count or "no") for count in users)))
    return markdown_table(rows, "model", *map(str, MACHINES))


def _exit_codes() -> str:
    kinds = sorted(FactoryError.__subclasses__(), key=lambda kind: kind.exit_code)
    rows = ((str(kind.exit_code), (kind.__doc__ or "").partition("\n")[0]) for kind in kinds)
    return markdown_table(rows, "code", "meaning")


def best_by_use(matrix: Matrix, published: PublishedFigures) -> str:
    """Return the table of the first model to try for each use; what needs two Sparks stands by itself."""
    glances = {name: glance(matrix, name, published) for name in matrix.models}
    alone = [
        Candidate(name, model.good_for, glances[name].tools == "on", glances[name].slowest, hard_score(published, name))
        for name, model in matrix.models.items()
        if model.sparks == 1
    ]
    first = {use: glances[names[0]] for use in USES if (names := ranked(use, alone))}
    if pairs := [glances[name] for name, model in matrix.models.items() if model.sparks > 1]:
        first["two Sparks"] = min(pairs, key=lambda pair: pair.rank)
    rows = ((use, model.tag, model.speed, model.memory, model.quality) for use, model in first.items())
    return markdown_table(rows, "for", "tag", "tokens/s", "memory", "quality")


def models_by_use(matrix: Matrix, published: PublishedFigures) -> str:
    """Return the table of tags to choose from: what calls tools first, then by published speed."""
    glances = sorted((glance(matrix, name, published) for name in matrix.models), key=lambda model: model.rank)
    rows = (
        (model.tag, model.uses, model.tools, model.images, model.context, model.memory, model.speed, model.quality)
        for model in glances
    )
    return markdown_table(rows, "tag", "good for", "tools", "images", "context", "memory", "tokens/s", "quality")


def model_facts(matrix: Matrix) -> str:
    """Return the table of what each tag serves, downloads and drafts with, by which servers, under which licence."""
    rows = []
    for name, model in matrix.models.items():
        drafters = usable_drafters(matrix, select_one(matrix, name))
        size = model.memory and (model.memory.download_gb or model.memory.weights_gb)
        table = f" + {model.memory.table_gb:.0f} GB on the disk" if model.memory and model.memory.table_gb else ""
        servers = (title for server, title in TITLES.items() if model.range_of(server))
        row = (
            f"`{name}`",
            model.repo or "a random model, without a GPU",
            f"{size:.0f} GB {model.weights}{table}" if size else model.weights,
            f"{drafters[0].method} ({drafters[0].tokens})" if drafters else "none",
            ", ".join(servers),
            model.licence or "see its card" if model.repo else "-",
        )
        rows.append(row)
    return markdown_table(rows, "tag", "serves", "weights", "drafter", "by", "licence")


@dataclass(frozen=True)
class Glance:
    """What a user asks about a model first; all of it follows from its default settings, or was published by others."""

    tag: str
    uses: str
    tools: str
    images: str
    context: str
    takes: float  # gigabytes of a machine's memory, as the memory check of the images counts; 0 without a GPU
    each: str
    slowest: float  # tokens per second for one user on the model's own arch, drafted as the image does
    speed: str  # a range, since it depends on the text
    quality: str

    @property
    def rank(self) -> tuple[bool, float]:
        """Where it stands in a list to choose from; of several speeds the slowest counts."""
        return self.tools != "on", -self.slowest

    @property
    def memory(self) -> str:
        return f"{self.takes:.0f} GB{self.each}" if self.takes else "-"


def kept_versions(matrix: Matrix) -> str:
    """Return the table of older versions: what they are kept for, until when, and what is wrong with them."""
    faults: dict[str, dict[str, None]] = {}
    for cell in buildable(matrix):
        faults.setdefault(cell.version, {}).update(dict.fromkeys(known_faults(matrix, cell)))
    rows = (
        (version_title(name), str(kept.until), kept.reason, "; ".join(faults.get(name, ())) or "none")
        for name, kept in matrix.kept.items()
    )
    return markdown_table(rows, "version", "kept until", "for", "known faults")


def newer_versions(project: Project) -> str:
    """Say of each release after the default one why it is not the default."""
    versions, default = project.matrix.vllm, project.matrix.defaults.vllm
    releases = [name for name, version in versions.items() if name == version.release]
    newer = [name for name in releases if versions[name].version > versions[default].version]
    reasons = {name: reason for name in newer if (reason := reason_no_default(project, name))}
    return "".join(f"\n\n{version_title(name)} is not the default: {reason}." for name, reason in reasons.items())


def glance(matrix: Matrix, name: str, published: PublishedFigures) -> Glance:
    model, cell = matrix.models[name], select_one(matrix, name)
    settings = image_environment(describe_image(matrix, cell, _model(matrix, cell)))
    tools = settings.get("ENABLE_AUTO_TOOL_CHOICE") == "1" and "TOOL_CALL_PARSER" in settings
    limit = json.loads(settings.get("LIMIT_MM_PER_PROMPT", "{}")).get("image")
    images = {None: "unknown", False: "no", True: "off" if limit == 0 else "on"}[model.reads_images]
    memory = matrix.archs[cell.arch].memory
    total = memory.total / 1e9 if memory else 0
    takes = total * float(settings.get("GPU_MEMORY_UTILIZATION", 0))
    longest = model.memory.context if model.memory else 0
    context = int(settings.get("MAX_MODEL_LEN", longest))
    speeds = speeds_of(reported_of(model, name, published), drafted=bool(usable_drafters(matrix, cell)))
    alone = (speed for speed in speeds.get(gpu_of(matrix, name, cell.arch), ()) if speed.users == 1)
    speed = next(alone, None)
    return Glance(
        f"`{name}`" + (f" ({model.remark})" if model.remark else ""),
        ", ".join(model.good_for),
        "on" if tools else "off",
        images,
        _thousands(context) + (f" of {_thousands(longest)}" if context < longest else ""),
        takes,
        " each" if model.sparks > 1 else "",
        speed.counts if speed else 0,
        speed.rounded + (f" ({speed.otherwise})" if speed.otherwise else "") if speed else NOT_MEASURED,
        ", ".join(map(str, published.quality(name))) or NOT_MEASURED,
    )


def _thousands(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens >= 1024 else str(tokens)  # noqa: PLR2004 - as models are described


def _model(matrix: Matrix, cell: Cell) -> dict[str, Any]:
    """Describe a model by matrix.yaml alone, so that the tables change only with the matrix."""
    model = matrix.models[cell.model]
    drafters = usable_drafters(matrix, cell)
    return {
        "model": model.repo or str(model.generated),
        "drafters": [drafter.model_dump(mode="json", exclude_none=True) for drafter in drafters],
        "serve": serve_document(model, cell),
        "server": cell.server,
    }


def start_picture(root: Path) -> str:
    return timeline_file({start.about.replace("`", ""): start.steps for start in load_starts(root)})


def schemas(folder: Path) -> dict[Path, str]:
    return {folder / name: json.dumps(model.model_json_schema(), indent=2) + "\n" for name, model in SCHEMAS.items()}


def write_changed(texts: Mapping[Path, str], *, check: bool = False) -> list[Path]:
    """Write the files that do not hold these texts yet, or with `check` only return their paths."""
    stale = {path: text for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text}
    for path, text in stale.items() if not check else ():
        write_text(path, text)
    return list(stale)
