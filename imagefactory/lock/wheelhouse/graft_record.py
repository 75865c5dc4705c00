"""Reads from a grafted wheel which of its files were compiled, and which published wheel has the others."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final
from zipfile import BadZipFile, ZipFile

from pydantic import ValidationError

from imagefactory.errors import InputError
from imagefactory.lock.wheelhouse.keep import CompileInputs
from imagefactory.project.locks.files import Graft
from imagefactory.store.digests import sha256_of

FORMAT: Final = 1
RECORD: Final = "imagefactory.json"
"""The file in dist-info that says it."""


def published_source(sha256: str) -> dict[str, str]:
    """Return how the sources of a compile name the published wheel that it takes something from."""
    return {"published": f"wheel:{sha256}"}


def read_graft(wheel: Path, inputs: CompileInputs) -> Graft:
    """Return what a grafted wheel says about its files; raise an error if that is not true."""
    try:
        with ZipFile(wheel) as archive:
            place = next(name for name in archive.namelist() if name.endswith(f".dist-info/{RECORD}"))
            record = json.loads(archive.read(place))
            graft = Graft.model_validate(record["graft"])
            wrong = [
                file.path for file in graft.replaced if sha256_of(archive.read(file.path)) != file.sha256
            ]
    except StopIteration:
        raise _wrong(wheel, f"It has no {RECORD}.") from None
    except (OSError, BadZipFile, KeyError, TypeError, ValueError, ValidationError) as error:
        raise _wrong(wheel, f"Its {RECORD} cannot be read: {type(error).__name__}.") from None
    if wrong:
        raise _wrong(wheel, f"{', '.join(wrong)} is not the file that its {RECORD} names.")
    if (
        record.get("key") != inputs.key
        or not published_source(graft.sha256).items() <= inputs.sources.items()
    ):
        raise _wrong(wheel, f"Its {RECORD} is about another compile.")
    return graft


def graft_of(wheel: Path) -> Graft | None:
    """Return what a wheel says about itself, unchecked; None if it is no graft."""
    with ZipFile(wheel) as archive, suppress(StopIteration, KeyError, TypeError, ValueError):
        place = next(name for name in archive.namelist() if name.endswith(f".dist-info/{RECORD}"))
        return Graft.model_validate(json.loads(archive.read(place))["graft"])
    return None


def _wrong(wheel: Path, why: str) -> InputError:
    return InputError(
        "wrong-wheel",
        f"{wheel.name} does not say which of its files were compiled.",
        where=wheel,
        why=why,
        fix="Remove it from the wheelhouse, and compile it again.",
    )
