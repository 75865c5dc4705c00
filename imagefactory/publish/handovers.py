"""Hand-overs: the job that builds and pushes an image tells later jobs its digest and its layers.

A tag only says what somebody put there. So an image is compared with the record of layers, with what the job that built
it handed on, or with both, before anything tests, signs or tags it.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Literal, Self

from imagefactory.errors import TrustError
from imagefactory.oci.image import Image
from imagefactory.plan.known_layers import KnownLayers, RecordedLayer
from imagefactory.plan.make import locked_plans, make_plan
from imagefactory.plan.plan import Plan, make_image
from imagefactory.project.locks.files import Frozen
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from imagefactory.store.atomic import write_text
from imagefactory.store.digests import Digest, Sha256

_REMEDY = "Run the job that builds the image again. If that does not help, find out who changed the file."


def _bad(what: str, where: str, why: str, fix: str = _REMEDY) -> TrustError:
    return TrustError("bad-handover", what, where=where, why=why, fix=fix)


class Handover(Frozen):
    """What a job says about an image that it built and pushed."""

    format: Literal[1] = 1
    target: str
    plan_key: Sha256
    digest: Digest
    layers: tuple[RecordedLayer, ...]

    @classmethod
    def of(cls, plan: Plan, image: Image) -> Self:
        layers = [
            RecordedLayer(key=layer.key, name=f"{layer.kind} {layer.name}", **asdict(blob))
            for layer, blob in zip(plan.layers, image.layers, strict=True)
        ]
        target = f"{plan.cell}/{plan.cell.machine}"
        return cls(target=target, plan_key=plan.key, digest=image.digest, layers=tuple(layers))

    def image(self, plan: Plan) -> Image:
        """Return the image of a plan with these layers; raise an error if it is not the one described."""
        if [layer.key for layer in self.layers] == [layer.key for layer in plan.layers]:
            image = make_image(plan, [layer.blob for layer in self.layers])
            if Handover.of(plan, image) == self:
                return image
        says = f"It says {self.digest} for the plan {self.plan_key}"
        why = f"{says}; the plan is {plan.key}, or its layers give another image."
        raise _bad(f"The hand-over of {self.target} does not fit the plan.", f"{self.plan_key}.json", why)


def handover_folder(project: Project) -> Path:
    """Return the folder where `push` leaves its hand-overs, and where jobs put those of others."""
    return project.root / "build" / "pushed"


def write_handover(project: Project, plan: Plan, image: Image) -> None:
    path = handover_folder(project) / f"{plan.key}.json"
    write_text(path, Handover.of(plan, image).model_dump_json(indent=1) + "\n")


def read_handovers(project: Project) -> dict[Sha256, Handover]:
    """Read all hand-overs by plan key; raise an error if two of them disagree."""
    found: dict[Sha256, Handover] = {}
    for path in sorted(handover_folder(project).rglob("*.json")):
        try:
            handover = Handover.model_validate_json(path.read_bytes())
        except (OSError, ValueError) as error:
            raise _bad("A hand-over cannot be read.", str(path), str(error).splitlines()[0]) from None
        if found.setdefault(handover.plan_key, handover) != handover:
            why = f"One says {found[handover.plan_key].digest}, the other {handover.digest}."
            fix = "The same plan must give the same image: run `./inv verify`. Nothing was published."
            raise _bad(f"Two jobs handed on different images for {handover.target}.", str(path), why, fix)
    return found


class ExpectedImages:
    """The images that plans must have, by the record of layers and by hand-overs."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._known = KnownLayers(project.known_layers)
        self._handed = read_handovers(project)

    def require_same(self, plan: Plan, found: Digest, where: str) -> Image:
        """Return the image that a plan must have; raise an error if nothing says, or if the registry has another."""
        handed = self._handed.get(plan.key)
        image = self._known.image(plan) if handed is None else self._confirmed(handed, plan)
        if image is None:
            raise TrustError(
                "no-record",
                f"No record or hand-over says which image {plan.target} has.",
                where=where,
                why="Its layers are not on record, and no job that built it handed its digest on.",
                fix="Start the workflow `nightly`, which builds it again and compares; or build and publish it here: "
                f"`./inv publish --target {plan.target}/{plan.cell.machine}`.",
            )
        if found != image.digest:
            raise TrustError(
                "swapped-image",
                f"The registry has another image for {plan.target}.",
                where=where,
                why=f"It is {found}; what was built is {image.digest}.",
                fix="Nothing was signed or tagged. Push the image again. If another one returns, the owner of the "
                "registry has to find out who writes there, and revoke that access.",
            )
        return image

    def record(self) -> str | None:
        """Return the text of handed-on.toml with the layers that were handed on; None without hand-overs."""
        if not self._handed:
            return None
        for handed in self._handed.values():
            cell = select_one(self._project.matrix, handed.target)
            self._confirmed(handed, make_plan(self._project, cell))
        layers = [layer for handed in self._handed.values() for layer in handed.layers]
        needed = {layer.key for plan in locked_plans(self._project) for layer in plan.layers}
        return self._known.with_handed_on(layers, needed)

    def _confirmed(self, handed: Handover, plan: Plan) -> Image:
        image = handed.image(plan)
        for layer in handed.layers:
            recorded = self._known.blob(layer.key)
            if recorded not in (None, layer.blob):
                what = f"The hand-over of {handed.target} contradicts the record."
                why = f"Recorded: {recorded}; handed on: {layer.blob}."
                raise _bad(what, f"layer {layer.name}, key {layer.key}", why)
        return image
