"""The one digest that the README promises: what a build of the first target gives at this commit."""

from __future__ import annotations

import re
from pathlib import Path

from imagefactory.locks.project import Project
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.plan import Plan
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Digest

_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$", re.MULTILINE)


def promised_digests(readme: Path) -> list[str]:
    """List the digests that the README shows."""
    return _DIGEST.findall(readme.read_text("utf-8"))


def write_digest(project: Project, plan: Plan, readme: Path) -> Digest | None:
    """Show what the plan gives; None when some layer was never built, and so nothing can be promised."""
    image = KnownLayers(project.known_layers).image(plan)
    if image is None:
        return None
    text = readme.read_text("utf-8")
    fresh = _DIGEST.sub(image.digest, text)
    if fresh != text:
        write_text(readme, fresh)
    return image.digest
