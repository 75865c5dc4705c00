"""Says why an entry of matrix.yaml does not hold a flag of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from imagefactory.build.recipes.command_line import json_value
from imagefactory.locks.server_flags import FlagLock
from imagefactory.matrix.server_names import version_title
from imagefactory.servers.setting import Setting

ONE_NODE: Final = (
    "--tensor-parallel-size",
    "--tp-size",
    "--tp",
    "--pipeline-parallel-size",
    "--pp-size",
    "--data-parallel-size",
    "--distributed-executor-backend",
    "--nnodes",
)
NEVER: Final = {
    **dict.fromkeys(ONE_NODE, "images serve on one GPU"),
    **dict.fromkeys(("--api-key", "--hf-token"), "keys are never imported"),
    "--revision": "`invoke lock --models` pins revisions",
}
_KINDS: Final[dict[str, tuple[type, ...]]] = {"whole": (int,), "fraction": (int, float), "counts": (dict,)}


def reason_unfit(known: FlagLock | None, flag: str, value: object, setting: Setting | None) -> str:
    """Return why the entry does not hold a flag; empty if it does. `known` are the newest version's flags."""
    return next(_reasons(known, flag, value, setting), "")


def _reasons(known: FlagLock | None, flag: str, value: object, setting: Setting | None) -> Iterator[str]:
    text = "" if isinstance(value, bool) else str(value)
    if flag in NEVER:
        yield NEVER[flag]
    if not flag.startswith("--"):
        yield "short flags have no counterpart"
    if known is not None and not known.has(flag):
        yield f"{version_title(known.version)} has no such flag"
    if value is False and setting is None:
        yield "an entry cannot switch a flag off"
    if (value is True and known is not None and not known.is_switch(flag)) or not _fits(setting, value):
        yield "the value is missing, or of the wrong kind"
    if text.endswith((".py", ".jinja")):
        yield "the file is not in images; a mod can add it"
    if known is not None and not known.accepts(flag, text):
        yield f"{version_title(known.version)} does not accept this value"
    if setting is not None and setting.choices and text.lower() not in setting.choices:
        yield f"the setting {setting.name} does not offer this value"


def _fits(setting: Setting | None, value: object) -> bool:
    """Whether a value is of a setting's kind."""
    wanted = _KINDS.get(setting.kind, ()) if setting is not None else ()
    found = json_value(value)
    return not wanted or (isinstance(found, wanted) and not isinstance(found, bool))
