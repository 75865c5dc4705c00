"""Describes a server and the settings of its images: all that differs between servers on the factory's side.

Everything else is rendered from the settings of a server: settings.json in the image (which the serve program validates
against), the image's environment, the `settings` command, the table in docs/serving.md, compose files, `docker run` and
recipes.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal

from imagefactory.project.matrix import Arch
from imagefactory.project.served_model import Drafter
from imagefactory.project.server_versions import TITLES, ServerVersion

SettingKind = Literal["text", "path", "whole", "fraction", "switch", "choice", "counts", "list", "flags", "secret"]
MOST = 2**31 - 1  # the largest signed number of 32 bits
KEY_SETTINGS = ("VLLM_API_KEY", "VLLM_API_KEY_FILE")  # the API key of any server


@dataclass(frozen=True)
class Setting:
    """A setting of an image; `serve` of a model in matrix.yaml may override its default."""

    name: str
    kind: SettingKind
    description: str
    _: KW_ONLY
    passed: bool = False  # whether the server gets it as a flag
    spelled: str = ""  # the flag, where it does not have the setting's name
    default: str = ""
    server_default: str = ""  # what the server assumes without the flag, which is then left out
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    since: str = ""  # the first version of the server that supports it
    since_of: dict[str, str] = field(default_factory=dict)  # the first version of the server that supports a choice
    unset: str = ""  # the word that stands for no value
    unit: str = ""  # of a number: GB, seconds or share; what else is counted, such as tokens, has none

    @property
    def key(self) -> str:
        """Its name in matrix.yaml, below a model's `serve`."""
        return self.name.lower()

    @property
    def flag(self) -> str:
        """The flag of the server; empty if only the serve program uses the setting."""
        return (self.spelled or f"--{self.key.replace('_', '-')}") if self.passed else ""


def flag(name: str, kind: SettingKind, description: str, unset: str = "") -> Setting:
    """Declare a setting that the server gets as a flag."""
    return Setting(name, kind, description, passed=True, unset=unset)


def whole(name: str, description: str, minimum: int, maximum: int, default: str = "", *, unit: str = "") -> Setting:
    """Declare a number for the serve program."""
    return Setting(name, "whole", description, minimum=minimum, maximum=maximum, default=default, unit=unit)


def limit(name: str, description: str, maximum: int) -> Setting:
    """Declare a number that the server chooses itself unless it is set."""
    return Setting(name, "whole", description, passed=True, minimum=1, maximum=maximum, unset="auto")


def choice(name: str, description: str, others: str, since_of: dict[str, str] | None = None) -> Setting:
    """Declare one of several words, of which the server's default is `auto`."""
    choices, since = ("auto", *others.split()), since_of or {}
    return Setting(name, "choice", description, passed=True, choices=choices, server_default="auto", since_of=since)


@dataclass(frozen=True)
class Server:
    """A program that serves models, published as a Python distribution."""

    name: str  # the key of its versions in matrix.yaml
    distribution: str
    kernel_wheels: tuple[str, ...]
    """The distributions (globs) whose GPU code an image is judged by, besides the server's own."""
    kernel_files: tuple[str, ...]  # where their libraries are below site-packages (globs)
    settings: tuple[Setting, ...]  # those of its images
    refused: Mapping[str, str] = field(default_factory=dict)
    """Settings of other servers that it lacks, with what to do instead."""
    tensor_parallel: str = "--tensor-parallel-size"  # the flag for the number of GPUs that share each layer
    cache: str = ""  # the variable that names its own cache folder
    recipes: tuple[str, ...] = ("sparkrun",)  # the launchers that can start it
    on_cpu: Mapping[str, str] = field(default_factory=dict)
    """The variables with which its images for GPUs serve a tiny model on a CPU; empty if only images for CPUs can."""
    on_gpu: Mapping[str, str] = field(default_factory=dict)
    """The variables with which they serve it on their GPU, for versions without an image for CPUs."""
    checks_model_names: bool = True  # whether it refuses requests for another model
    logs_backends: bool = True  # whether its log says which attention kernels it uses

    @property
    def title(self) -> str:
        return TITLES[self.name]

    def distribution_on(self, arch: Arch) -> str:  # noqa: ARG002 - servers with a distribution per arch need it
        return self.distribution

    def judged_by(self, wheel: str, arch: Arch) -> bool:
        """Return whether the GPU code of a wheel counts in the audit of an image."""
        return any(fnmatchcase(wheel, glob) for glob in (self.distribution_on(arch), *self.kernel_wheels))

    def model_document(self, drafter: Drafter, version: ServerVersion) -> dict[str, Any]:  # noqa: ARG002
        """Return what model.json says about the default drafter, in the server's own terms."""
        return {}

    def in_words_of(self, version: ServerVersion, serve: dict[str, Any], weights: str) -> dict[str, Any]:  # noqa: ARG002
        """Return the settings of a model with weights of a kind, by the names that a version has for their values."""
        return serve

    def start_variables(self, version: ServerVersion, arch: Arch) -> dict[str, str]:  # noqa: ARG002
        """Return variables that make its images on an arch start sooner."""
        return {}
