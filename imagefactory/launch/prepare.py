"""Prepares `./inv run`: the image to start, its settings and mods, and the command, compose file or recipe for it."""

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from imagefactory.assemble.engines.docker.daemon import image_id, load
from imagefactory.assemble.images_here import built_layouts
from imagefactory.errors import BuildError, EngineError, RegistryError, TrustError, UsageError
from imagefactory.launch.companions import add_companions
from imagefactory.launch.docker_run import (
    HUB_CACHE,
    TOKEN,
    Launch,
    compose_document,
    compose_text,
    docker_run,
    find_key_file,
    pinned,
    shell_line,
)
from imagefactory.launch.preview import Preview
from imagefactory.launch.recipes import recipe_document, recipe_text
from imagefactory.mods.choose import find_mod
from imagefactory.oci.registry.repository import Repository
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.plan.serve.description import Served, describe_cell
from imagefactory.project.cells import Cell
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.servers.server import KEY_SETTINGS
from imagefactory.serve_program import FAIL
from imagefactory.store.digests import Digest
from imagefactory.store.http import Retry
from imagefactory.store.progress import Say, size
from images.shipped.mods.manifest import IMAGE_FILES, NewFile

UNKNOWN: Final = "sha256:" + "0" * 64
"""Stands for the image until settings are accepted: what is wrong with them is said before one is looked for."""


@dataclass(frozen=True)
class Start:
    """A start that the serve program has accepted."""

    launch: Launch
    served: Served
    command: tuple[str, ...]  # what the container will run

    def of(self, image: str) -> "Start":
        return replace(self, launch=replace(self.launch, image=pinned(image)))

    def line(self, *, detach: bool = True) -> list[str]:
        return docker_run(self.launch, detach=detach)

    def shell(self, *, detach: bool = True) -> str:
        return shell_line(self.line(detach=detach))

    def compose(self, profiles: Sequence[str] = (), image_of: Callable[[str], str] = str) -> str:
        """Return a compose file, with the services of profiles; `image_of` returns an image of others by name."""
        document = compose_document(self.launch)
        add_companions(document, self.launch, profiles, image_of)
        return compose_text(document)

    def recipe(self, style: str) -> str:
        served = self.served
        return recipe_text(recipe_document(style, self.launch, served.model, self.command, served.extra))


def prepare(
    project: Project,
    cell: Cell,
    image: str,
    *,
    given: Mapping[str, str],
    environment: Mapping[str, str],
    models: str = HUB_CACHE,
    mods: Sequence[str] = (),
    limits: bool = True,
) -> Start:
    """Prepare a start; refuse settings that the image would refuse, and write the API key to a file.

    The key is among the settings or in the user's environment. The container applies `mods` when it starts.
    """
    served = describe_cell(project, cell, project.wheel_lock(cell).kernels)
    names = [str(setting["name"]) for setting in served.description["settings"]]
    mounts, of_mods = runtime_mods(project, cell, mods, names)
    if TOKEN in given:
        raise UsageError(
            "bad-setting",
            f"{TOKEN} is not a setting.",
            where="the --set option",
            why="Commands and compose files show settings to everyone.",
            fix=f"Run `export {TOKEN}=...` first: the container then gets it by name.",
        )
    given = with_settings(of_mods, given)
    folder = project.build_folder(cell).parent / "run" / cell.slug
    key_file = find_key_file(folder, given, environment)
    settings = {name: value for name, value in given.items() if name not in KEY_SETTINGS}
    with_key = settings | ({"VLLM_API_KEY_FILE": str(key_file)} if key_file else {})
    program = Preview(project.root, served.description, served.model)
    preview = program.dry_run(with_key)
    for check in preview["checks"]:
        # Flags are the same on every machine, unlike its GPU and memory.
        if check["name"] == "flags" and check["result"] == FAIL:
            raise program.refused(f"{check['detail']}.", check)
    # Whoever else reads them, such as an older image, may know no 32k.
    numbers = {name: str(value) for name, value in preview["numbers"].items() if value is not None}
    settings |= {name: value for name, value in numbers.items() if name in settings}
    if preview["secrets"]:
        raise TrustError(
            "key-not-passed",
            "A setting contains a key, token or password.",
            where="the --set option",
            why="Commands, compose files and recipes show it to everyone.",
            fix=f"Set the variable VLLM_API_KEY for the server's key, {TOKEN} for a token.",
        )
    launch = Launch(
        cell,
        pinned(image),
        served.description,
        settings,
        key_file,
        models,
        mounts,
        with_token=bool(environment.get(TOKEN)),
        with_limits=limits,
    )
    return Start(launch, served, tuple(preview["command"]))


def settings_alone(matrix: Matrix, cell: Cell, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings; refuse to start a model for two machines on one if nobody said how to reach the other."""
    if matrix.models[cell.model].sparks > 1 and not {"NODES", "HEAD_ADDRESS"} & given.keys():
        raise UsageError(
            "bad-setting",
            f"{cell.model} is served by two Sparks.",
            where=str(cell),
            why="One has no room for it, and each needs the other's address.",
            fix=f"Run `./inv pair up {cell.model} --with spark2`; --print shows both starts.",
        )
    return given


def with_settings(of_mods: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of mods and of the user, whose own win; arguments are joined."""
    # The user's come last: of an option that is given twice, a server takes the last.
    extra = " ".join(filter(None, (part.get("EXTRA_ARGS", "") for part in (of_mods, given))))
    return {**of_mods, **given, **({"EXTRA_ARGS": extra} if extra else {})}


def settings_from(words: Sequence[str], option: str = "--set") -> dict[str, str]:
    for word in words:
        if not re.match(r"[A-Z][A-Z0-9_]*=", word):
            name, equals, _ = word.partition("=")  # what follows may be a secret
            raise UsageError(
                "bad-setting",
                f"{name + equals + ('…' if equals else '')!r} is not a setting.",
                where=f"the {option} option",
                why="It is not written as NAME=VALUE.",
                fix=f"Write, for example, {option} MAX_MODEL_LEN=32768.",
            )
    return dict(word.split("=", 1) for word in words)  # a value may contain =


def published_reference(project: Project, cell: Cell, say: Say) -> str:
    """Return a cell's image as registry and digest; raise an error if the registry does not have it.

    The digest comes from the record of layers, or from its layout. A registry that does not answer decides nothing.
    """
    registry = project.matrix.require_registry()
    image = KnownLayers(project.known_layers).image(make_plan(project, cell))
    if image is not None:
        digest = image.digest
    else:
        [(_, layout, _)] = built_layouts(project, [cell.full_target], one=True)
        digest = layout.manifest_digest()
    reference = f"{registry}@{digest}"
    if missing_images(registry, [digest], say):
        here = "load" if (project.build_folder(cell) / "index.json").exists() else "build"
        then = "" if here == "load" else f", then `./inv load --target {cell.full_target}`"
        raise BuildError(
            "no-image",
            f"{cell} is not published.",
            where=reference,
            why="The registry does not have this digest, and neither has Docker: nothing could start it.",
            fix=f"Run `./inv {here} --target {cell.full_target}`{then}; or publish it (`./inv publish`).",
        )
    return reference


def missing_images(registry: str, digests: Sequence[Digest], say: Say) -> list[Digest]:
    """Return the images that a registry lacks; one that does not answer is believed to have all."""
    try:
        with Repository.open(registry, retry=Retry(attempts=1)) as repository:
            return [digest for digest in digests if repository.resolve(digest) is None]
    except RegistryError as error:
        say(f"what {registry} has is not known: {error.what} {error.why}")
        return []


def loaded_image(project: Project, cell: Cell) -> str | None:
    """Return the id of the image that was built for a cell and loaded into Docker; None if either is missing."""
    try:
        [(_, layout, name)] = built_layouts(project, [cell.full_target], one=True)
        loaded = image_id(name)
    except (BuildError, EngineError):
        return None
    # Daemons with containerd's image store use the manifest's digest.
    return loaded if loaded in {layout.config_digest(), layout.manifest_digest()} else None


def image_to_show(project: Project, cell: Cell, say: Say) -> str:
    """Return an image that the printed command can start: the one in Docker, else the published one."""
    loaded = loaded_image(project, cell)
    if loaded is None and project.matrix.has_no_registry:
        built_layouts(project, [cell.full_target], one=True)  # says how to build it
        raise BuildError(
            "no-image",
            f"Docker does not have the image of {cell}.",
            where=project.build_folder(cell),
            why="It was built but not loaded, or changed since; and no registry is set to pull it from.",
            fix=f"Run `./inv load --target {cell}`.",
        )
    return loaded or published_reference(project, cell, say)


def image_to_run(project: Project, cell: Cell, say: Say) -> str:
    """Return the image to start: the one built here, loaded if Docker lacks it; else the published one."""
    if loaded := loaded_image(project, cell):
        return loaded
    image = KnownLayers(project.known_layers).image(make_plan(project, cell))
    built = (project.build_folder(cell) / "index.json").exists()
    if image is not None and not project.matrix.has_no_registry and not built:
        reference = f"{project.matrix.effective_registry}@{image.digest}"
        with Repository.open(reference) as repository:
            if repository.resolve(image.digest):
                return reference
    [(_, layout, name)] = built_layouts(project, [cell.full_target], one=True)
    say(f"loading {name} into Docker: {size(layout.size())}")
    return load(layout, name)


def make_room(container: str, say: Say) -> None:
    """Remove a container of ours that has the name and ended; raise an error if one runs."""
    template = '{{.State.Status}} {{index .Config.Labels "imagefactory.plan"}}'
    try:
        done = _docker("container", "inspect", "--format", template, container)
    except OSError:
        return  # there is no docker, as the run will say
    state, _, plan = done.stdout.strip().partition(" ")
    if state in {"running", "restarting", "paused"}:
        raise EngineError(
            "container-exists",
            f"The container {container} is {state}.",
            where="docker",
            why="`./inv run` gives each image's container the same name, so that it is found again.",
            fix=f"To replace it, run `docker rm -f {container}` first; `docker logs {container}` shows its output.",
        )
    if plan and state in {"created", "exited", "dead"} and not _docker("rm", container).returncode:
        say(f"removed the container {container} of an earlier run, which was {state}")


def _docker(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *words], capture_output=True, text=True, check=False)  # noqa: S603, S607


PLACE = "/mods"  # where containers look for mods


def runtime_mods(
    project: Project, cell: Cell, names: Sequence[str], setting_names: Sequence[str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the mounts and settings by which a container applies mods when it starts.

    `setting_names` are the settings that the image knows. Raise an error if a mod is not for the cell's version.
    """
    version = project.matrix.versions[cell.version].version
    chosen = [find_mod(project.mods, name, "the --mod option") for name in dict.fromkeys(names)]
    applied: list[str] = []
    mounts: dict[str, str] = {}
    settings: dict[str, str] = {}
    extra: list[str] = []
    folder = project.root / "mods"
    for mod, variant in [(mod, mod.needed_variant(version)) for mod in chosen]:
        beside = [
            change for change in variant.changes if isinstance(change, NewFile) and change.add.startswith(IMAGE_FILES)
        ]
        if len(beside) == len(variant.changes):
            # A server's options are checked before mods are applied, and may name these files.
            mounts |= {str(folder / mod.name / change.source): change.add for change in beside}
        else:
            applied.append(mod.name)
        settings |= mod.manifest.settings.env
        for flag, value in mod.manifest.settings.flags.items():
            if flag.upper() in setting_names:
                settings[flag.upper()] = value
            else:
                extra += [f"--{flag.replace('_', '-')}", value]
    if applied:
        mounts[str(folder)] = PLACE
        settings["MODS"] = ",".join(applied)
    if extra:
        settings["EXTRA_ARGS"] = shlex.join(extra)
    return mounts, settings
