"""Renders a plan as a Dockerfile that people can read and Docker can run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from imagefactory.assemble.engines.docker.build_context import plan_context
from imagefactory.oci.format import MTIME, VENV
from imagefactory.oci.layout import writing_output
from imagefactory.plan.plan import Layer, Plan
from imagefactory.project.project import Project
from imagefactory.store.atomic import write_text

DOCKERFILE = "Dockerfile"
BASE_IMAGE = "imagefactory/base"
SECOND = 1_000_000_000  # a health check of an image's configuration counts in nanoseconds
INSTALL = "/mnt/uv pip install --require-hashes --no-deps --no-index --find-links /srv"


def render_plan(project: Project, plan: Plan) -> str:
    context = plan_context(project, plan)
    base = plan.layers[0]
    values = {
        "target": plan.target,
        "platform": plan.platform,
        "plan": plan.key,
        "base": {"packages": len(base.inputs), "image": base_image(base), **base.model_dump()},
        "epoch": MTIME,
        "venv": VENV,
        "install": INSTALL,
        "steps": context.steps,
        "copies": context.copies,
        "config": plan.config,
        "labels": dict(sorted((plan.config.labels | {"imagefactory.plan": plan.key}).items())),
        "healthcheck": _healthcheck(plan.config.healthcheck),
    }
    return _fill(project.root, values)


def base_image(base: Layer) -> str:
    """Return the name of the image that holds only the base; its key is the tag."""
    return f"{BASE_IMAGE}:{base.key[:16]}"


def write(project: Project, plan: Plan) -> Path:
    path = project.build_folder(plan.cell) / DOCKERFILE
    with writing_output(path.parent):
        write_text(path, render_plan(project, plan))
    return path


def _fill(root: Path, values: Mapping[str, Any]) -> str:
    environment = Environment(
        loader=FileSystemLoader(root / "images" / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Dockerfiles are not HTML; `quoted` and `json` do what they need
    )
    environment.filters["quoted"] = quoted
    environment.filters["json"] = lambda value: json.dumps(list(value))
    return environment.get_template("Dockerfile.j2").render(values)


def quoted(text: str) -> str:
    """Quote a value of ENV or LABEL so that Docker reads exactly this text."""
    if "\n" in text:
        raise ValueError(f"a Dockerfile cannot hold a value of several lines: {text!r}")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def _healthcheck(check: Mapping[str, Any]) -> str:
    names = {"interval": "Interval", "timeout": "Timeout", "start-period": "StartPeriod"}
    options = [f"--{option}={check[name] // SECOND}s" for option, name in names.items()]
    return f"{' '.join(options)} --retries={check['Retries']} \\\n    CMD {json.dumps(check['Test'][1:])}"
