"""The model of a plan: frozen, JSON-serialisable values that determine every byte of an image.

The configuration and the manifest of an image are pure functions of the plan and the digests of its layers, so the
digest of an image is known without the blobs.
"""

from collections.abc import Iterable, Sequence
from operator import not_
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from imagefactory.oci.format import CREATED, LAYER_FORMAT
from imagefactory.oci.image import CONFIG_TYPE, LAYER_TYPE, MANIFEST_TYPE, Blob, Image
from imagefactory.project.cells import Cell, KernelOrigin
from imagefactory.store.digests import Sha256, canonical_json, checksum, sha256_of
from images.shipped.mods.manifest import Mod

PLAN_FORMAT: Final = 1

WheelKind = Literal["wheel", "pure-bundle", "platform-bundle"]
LayerKind = Literal["base", WheelKind, "bytecode", "serve", "mod", "model", "toolkit"]
InputKind = Literal["wheel", "deb", "checkout"]

LeftPaths = dict[str, tuple[str, ...]]
"""For each wheel, the paths that are not installed from it: another wheel installs them, or they are left out."""

_OMIT_WHEN_EMPTY: Final = Field(exclude_if=not_)  # leaves it out of the JSON, and so of the layer's key


class _Value(BaseModel):
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")


class Input(_Value):
    """An input file of a layer."""

    name: str
    sha256: Sha256

    @property
    def kind(self) -> InputKind:
        """Where it is to be had: on a package index or in a wheelhouse, on a Debian mirror, or in this checkout."""
        return "wheel" if self.name.endswith(".whl") else "deb" if self.name.endswith(".deb") else "checkout"


class Environment(_Value):
    """The virtual environment of an image; its path is the same on every arch, so pure-Python layers are shared."""

    python: str
    venv: str

    @property
    def interpreter(self) -> str:
        return f"{self.venv}/bin/python3"

    @property
    def site(self) -> str:
        return f"{self.venv}/lib/python{self.python}/site-packages"


class BaseSettings(Environment):
    """Settings of the Debian base, which includes the empty virtual environment."""

    platform: str


class SecondName(_Value):
    """A second name and version of a distribution."""

    name: str
    version: str


class SlimSettings(_Value):
    """What is taken out of libraries: the GPU code that a chip cannot load, by a version of the rule."""

    chip: str  # the chip's compute capability
    rule: int


class WheelSettings(Environment):
    """Settings of a layer of wheels."""

    without: Annotated[LeftPaths, _OMIT_WHEN_EMPTY] = {}
    rehash: Annotated[tuple[str, ...], _OMIT_WHEN_EMPTY] = ()
    """Wheels with a wrong RECORD, whose hashes are computed again."""
    second_name: Annotated[SecondName | None, _OMIT_WHEN_EMPTY] = None
    slim: Annotated[SlimSettings | None, _OMIT_WHEN_EMPTY] = None


class ModLink(_Value):
    """A mod of a chain, reduced to what determines its effect."""

    manifest: dict[str, Any]
    files: dict[str, str]

    @property
    def mod(self) -> Mod:
        return Mod.from_data({"manifest": self.manifest, "files": self.files})


class ModSettings(Environment):
    """Settings of a mod's layer: the mod, the mods applied before it, and the wheels they change."""

    chain: tuple[ModLink, ...]
    wheels: dict[str, str]  # the file name of each distribution's wheel
    without: LeftPaths
    slim: Annotated[SlimSettings | None, _OMIT_WHEN_EMPTY] = None
    """As in the layers of these wheels, whose RECORD the mods change."""

    @property
    def mods(self) -> list[Mod]:
        return [link.mod for link in self.chain]


class ServeSettings(_Value):
    """Settings of the serve layer: the paths of its files and links, and the CUDA compiler if the image has one."""

    files: dict[str, str]
    toolkit: Annotated[Environment | None, _OMIT_WHEN_EMPTY] = None
    links: Annotated[dict[str, str], _OMIT_WHEN_EMPTY] = {}


class BytecodeSettings(Environment):
    """Settings of a layer of bytecode: what it is compiled from, and by which Python."""

    package: str  # the version of Debian's package of Python, which compiles it
    without: Annotated[LeftPaths, _OMIT_WHEN_EMPTY] = {}
    files: Annotated[dict[str, str], _OMIT_WHEN_EMPTY] = {}
    """The paths of the serve program's files in the image, by their paths in the checkout."""
    mods: Annotated[ModSettings | None, _OMIT_WHEN_EMPTY] = None  # the mods whose changed files are compiled


class ModelSettings(_Value):
    """Settings of a model's layer: the contents of model.json and settings.json."""

    model: dict[str, Any]
    description: dict[str, Any]


_Kind = TypeVar("_Kind", bound=LayerKind)
_Settings = TypeVar("_Settings", bound=_Value)


class _Layer(_Value, Generic[_Kind, _Settings]):
    """A layer: its inputs and settings, and the key that covers them."""

    kind: _Kind
    name: str
    key: Sha256
    inputs: tuple[Input, ...]
    settings: _Settings
    download: int  # bytes of its inputs
    unpacked: int  # approximate size on disk, in bytes

    @classmethod
    def of(
        cls,
        kind: _Kind,
        name: str,
        inputs: Iterable[Input],
        settings: _Settings,
        *,
        download: int = 0,
        unpacked: int = 0,
    ) -> Self:
        inputs = tuple(inputs)
        # Neither the name nor the sizes, which do not affect the layer's bytes.
        key = checksum(
            {
                "format": LAYER_FORMAT,
                "kind": kind,
                "inputs": [[file.name, file.sha256] for file in inputs],
                "settings": settings.model_dump(mode="json"),
            }
        )
        return cls(
            kind=kind,
            name=name,
            key=key,
            inputs=inputs,
            settings=settings,
            download=download,
            unpacked=unpacked,
        )


class BaseLayer(_Layer[Literal["base"], BaseSettings]):
    """The Debian base."""


class WheelLayer(_Layer[WheelKind, WheelSettings]):
    """One big wheel, or a bundle of small ones."""


class ServeLayer(_Layer[Literal["serve"], ServeSettings]):
    """The program that starts vLLM."""


class ModLayer(_Layer[Literal["mod"], ModSettings]):
    """The changes of a mod."""


class BytecodeLayer(_Layer[Literal["bytecode"], BytecodeSettings]):
    """Compiled Python: of the modules of wheels that a server imports, or of the serve program and mods."""


class ModelLayer(_Layer[Literal["model"], ModelSettings]):
    """The description of the model."""


class ToolkitLayer(_Layer[Literal["toolkit"], Environment]):
    """The CUDA compiler of a toolchain image."""


Layer = Annotated[
    BaseLayer | WheelLayer | BytecodeLayer | ServeLayer | ModLayer | ModelLayer | ToolkitLayer,
    Field(discriminator="kind"),
]


class ImageConfig(_Value):
    """The image's configuration for container engines."""

    env: dict[str, str]
    entrypoint: tuple[str, ...]
    command: tuple[str, ...]
    healthcheck: dict[str, object] = {}
    labels: dict[str, str]
    user: str = "root"
    working_dir: str = "/"
    exposed_ports: tuple[str, ...] = ()
    stop_signal: str = "SIGTERM"
    created: str = CREATED


class Plan(_Value):
    """Everything that determines an image."""

    format: Literal[1] = PLAN_FORMAT
    layer_format: Literal[3] = LAYER_FORMAT
    target: str
    model: str
    version: str
    arch: str
    platform: str
    kernels: KernelOrigin
    key: Sha256
    layers: tuple[Layer, ...]
    config: ImageConfig
    notes: tuple[str, ...] = ()  # remarks that do not affect the image: mods that were left out, with reasons

    @property
    def cell(self) -> Cell:
        return Cell(self.model, self.version, self.arch, self.platform)

    @property
    def mods(self) -> list[Mod]:
        chains = [layer.settings for layer in self.layers if isinstance(layer, ModLayer)]
        return chains[-1].mods if chains else []


def make_image(plan: Plan, blobs: Sequence[Blob]) -> Image:
    config = canonical_json(_config(plan, blobs))
    manifest = {
        "schemaVersion": 2,  # the image specification allows no other
        "mediaType": MANIFEST_TYPE,
        "config": {"mediaType": CONFIG_TYPE, "digest": f"sha256:{sha256_of(config)}", "size": len(config)},
        "layers": [{"mediaType": LAYER_TYPE, "digest": blob.digest, "size": blob.size} for blob in blobs],
        "annotations": {
            key: value for key, value in plan.config.labels.items() if key.startswith("org.opencontainers.image.")
        },
    }
    return Image(plan.platform, config, canonical_json(manifest), tuple(blobs))


def _config(plan: Plan, blobs: Sequence[Blob]) -> dict[str, object]:
    settings = plan.config
    system, _, machine = plan.platform.partition("/")  # in Go's spelling, as the image specification wants them
    return {
        "architecture": machine,
        "os": system,
        "created": settings.created,
        "config": {
            "Env": [f"{name}={value}" for name, value in sorted(settings.env.items())],
            "Entrypoint": list(settings.entrypoint),
            "Cmd": list(settings.command),
            "Labels": dict(sorted({**settings.labels, "imagefactory.plan": plan.key}.items())),
            "User": settings.user,
            "WorkingDir": settings.working_dir,
            "ExposedPorts": {port: {} for port in settings.exposed_ports},
            "StopSignal": settings.stop_signal,
            # Not in the image specification, but Docker and podman read it.
            **({"Healthcheck": settings.healthcheck} if settings.healthcheck else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [blob.diff_id for blob in blobs]},
        "history": [
            {
                "created": settings.created,
                "created_by": f"imagefactory {layer.kind} {layer.name}",
                "comment": f"layer key {layer.key}",
            }
            for layer in plan.layers
        ],
    }
