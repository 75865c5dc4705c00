"""Explains where a path in an image comes from: its layer, its package and its lock entry."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from imagefactory.errors import UsageError
from imagefactory.lock.wheel_contents import recorded_contents
from imagefactory.oci.format import VENV
from imagefactory.plan.known_layers import read_owners
from imagefactory.plan.make import make_plan
from imagefactory.plan.plan import Layer, WheelLayer
from imagefactory.project.cells import Cell
from imagefactory.project.locks.files import LockedWheel
from imagefactory.project.project import Project
from imagefactory.store.progress import size


@dataclass(frozen=True)
class Ownership:
    """The origin of a path."""

    path: str
    layer: Layer | None  # None for a path that was left out
    owner: str
    lock: Path | None
    version: str
    needed_by: tuple[str, ...]
    whose: str = ""  # who made the file, in a wheel that we compiled
    left_out: str = ""  # why the image does not have the path, although the package does


def explain(project: Project, cell: Cell, path: str) -> Ownership:
    """Find the topmost layer that has a path, and the package that the path came from."""
    path = path.strip("/")
    paths: set[str] = set()
    built = False
    for layer in reversed(make_plan(project, cell).layers):
        owners = read_owners(layer.key, project.store)
        built |= bool(owners)
        paths |= owners.keys()
        if path in owners:
            return _ownership(project, cell, path, layer, owners[path])
    left_out = _left_out(project, cell, path)
    if left_out is not None:
        return left_out
    raise UsageError(
        "path-not-in-image",
        f"Nothing in {cell} owns /{path}.",
        where=str(cell),
        why="No layer that was built here has this path." if built else "The image has not been built here.",
        fix=_nearest(path, paths) if built else f"Run `./inv build --target {cell}` first.",
    )


def _left_out(project: Project, cell: Cell, path: str) -> Ownership | None:
    """Find a path among those that matrix.yaml leaves out; of a whole wheel, if its paths were seen on this machine."""
    lock, inside = project.wheel_lock(cell), path.removeprefix(f"{VENV}/")
    matches: list[tuple[LockedWheel, str]] = [
        (wheel, files.reason) for wheel in lock.wheels for files in wheel.left_out if inside in files.paths
    ]
    for whole in lock.left_out:
        contents = recorded_contents(whole.sha256, python=lock.python, store=project.store)
        matches += [(whole, whole.reason)] if contents and inside in contents.paths else []
    for wheel, reason in matches:
        where = project.wheel_lock_path(cell)
        return Ownership(path, None, wheel.file, where, wheel.version, wheel.needed_by, left_out=reason)
    return None


def _nearest(missing: str, paths: Iterable[str]) -> str:
    """Suggest a path: a file in this folder, the same name elsewhere, or a similar name nearby."""
    inside = min((path for path in paths if path.startswith(f"{missing}/")), default=None)
    if inside is not None:
        return f"Only files have an owner; name a file, such as /{inside}."
    folder, _, name = missing.rpartition("/")
    namesakes = sorted(path for path in paths if path.rpartition("/")[2] == name)
    siblings = {path.rpartition("/")[2]: path for path in paths if path.rpartition("/")[0] == folder}
    near = namesakes or [siblings[name] for name in get_close_matches(name, siblings, n=3)]
    return f"Did you mean {' or '.join(f'/{path}' for path in near[:3])}?" if near else "Check the spelling."


def _ownership(project: Project, cell: Cell, path: str, layer: Layer, owner: str) -> Ownership:
    for wheel in project.wheel_lock(cell).wheels:
        if wheel.file == owner:
            whose = "; ".join(filter(None, (_whose(wheel, path), _slimmed(project, layer, wheel, path))))
            lock = project.wheel_lock_path(cell)
            return Ownership(path, layer, owner, lock, wheel.version, wheel.needed_by, whose)
    for deb in project.base_lock(cell).debs:
        if deb.name == owner:
            return Ownership(path, layer, owner, project.base_lock_path(cell), deb.version, deb.needed_by)
    return Ownership(path, layer, owner, None, "", ())


def _slimmed(project: Project, layer: Layer, wheel: LockedWheel, path: str) -> str:
    slim = layer.settings.slim if isinstance(layer, WheelLayer) else None
    record = project.slim_lock.find(wheel.sha256, slim.chip, slim.rule) if slim else None
    if record is None:
        return ""
    for library in record.libraries:
        if path.endswith(f"/{library.path}"):
            taken = size(sum(library.blanked.values()))
            return (
                f"slimmed for {record.chip} by rule {record.rule}: {taken} of code for "
                f"{', '.join(library.blanked)} overwritten in {library.published[:16]}"
            )
    return ""


def _whose(wheel: LockedWheel, path: str) -> str:
    if wheel.compiled is None:
        return ""
    if wheel.graft is None:
        return f"compiled as {wheel.compiled[:16]}"
    for file in wheel.graft.replaced:
        if path.endswith(f"/{file.path}"):
            return f"compiled as {wheel.compiled[:16]}, in place of the published {file.published[:16]}"
    if re.search(r"\.dist-info/(METADATA|WHEEL|RECORD|imagefactory\.json)$", path):
        return "written for the grafted wheel"
    return f"published in {wheel.graft.file}"
