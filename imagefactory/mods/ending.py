"""Ends the range of a mod before a release: one that has the change, or that the mod does not fit."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.version import Version

from imagefactory.mods.compatibility import variants_for
from imagefactory.store.atomic import write_text
from images.shipped.mods.manifest import MANIFEST, Mod


def end_before(mods: Path, mod: Mod, release: str, *, upstream: bool) -> None:
    """Let the variants that cover a release end before it; `upstream` also notes that the release has the change."""
    path = mods / mod.name / MANIFEST
    text = path.read_text("utf-8")
    for versions in {variant.versions for variant in variants_for(mod, Version(release))}:
        named = rf"""(\bversions: *)(["']?){re.escape(versions)}\2(?=[\s,}}])"""
        text = re.sub(named, rf'\1"{versions},<{release}"', text)
    if upstream:
        text = re.sub(
            r"^needed_when:.*\n(?:[ -].*\n)*", rf'\g<0>\nupstreamed_in: "{release}"\n', text, flags=re.MULTILINE
        )
    write_text(path, text)
