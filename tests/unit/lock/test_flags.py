"""Flags read from the sources of servers: small packages written the way that theirs are."""

from __future__ import annotations

import pytest

from imagefactory.lock import drift
from imagefactory.lock.flag_records import (
    FlagLock,
    flag_lock,
    flags_made_from,
    read_sglang,
    read_vllm,
    recorded_version,
)
from imagefactory.lock.python_source import Sources
from imagefactory.project.locks.files import LockedSource, SourceLock
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.failures import raises

VLLM = {
    "vllm/engine/arg_utils.py": """
from vllm.config import KernelConfig, LoadConfig

class EngineArgs:
    @staticmethod
    def add_cli_args(parser):
        load_kwargs = get_kwargs(LoadConfig)
        group = parser.add_argument_group("load")
        group.add_argument("--load-format", **load_kwargs["load_format"])
        group.add_argument("--eager", "-e", **load_kwargs["eager"])
        kernel_kwargs = get_kwargs(KernelConfig)
        backend = kernel_kwargs["moe_backend"]
        group.add_argument("--moe-backend", **backend)
        group.add_argument("--attention-backend", **kernel_kwargs["attention"])
        group.add_argument("--mode", choices=["a", "b"])
        group.add_argument("--headless", action="store_true")
        group.add_argument("--lora", action=argparse.BooleanOptionalAction)
        group.add_argument("--caching", **{**load_kwargs["eager"], "default": None})
""",
    "vllm/config/__init__.py": """
from vllm.config.kernel import KernelConfig
from vllm.config.load import LoadConfig
""",
    "vllm/config/kernel.py": """
from enum import Enum
from typing import Literal

Fast = Literal["cutlass"]
MoEBackend = Literal["auto", Fast, "marlin"]

class Backend(Enum):
    FLASH = "one"
    TRITON = "two"

class KernelConfig:
    moe_backend: MoEBackend = "auto"
    attention: Backend | None = None
""",
    "vllm/config/load.py": """
from typing import TYPE_CHECKING, Any
if TYPE_CHECKING:
    from vllm.model_executor.model_loader import LoadFormats
else:
    LoadFormats = Any

class LoadConfig:
    load_format: str | LoadFormats = "auto"
    eager: bool = False
""",
    "vllm/model_executor/model_loader/__init__.py": 'LoadFormats = Literal["auto", "hf"]',
    "vllm/config/speculative.py": """
class SpeculativeConfig:
    method: Literal["mtp", "dspark"] | None = None
    tokens: int = 1
""",
    "vllm/entrypoints/openai/cli_args.py": """
class BaseArgs:
    host: str | None = None

class FrontendArgs(BaseArgs):
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
""",
    "vllm/tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("a", "A"), "mistral": ("b", "B")}',
    "vllm/envs.py": 'environment_variables: dict[str, object] = {"VLLM_ONE": lambda: 1}',
}
SGLANG = {
    "sglang/srt/server_args.py": """
from sglang.srt.arg_groups.fields.model import Model

def _parsers():
    module = find()
    if module is not None:
        return list(module.Names)
    from sglang.srt.names import NAMES
    return list(NAMES)

class ServerArgs:
    def add_cli_args(parser):
        choices = _parsers()
        parser.add_argument("--tool-call-parser", choices=["auto"] + choices)
        parser.add_argument("--old", action=DeprecatedStoreTrueAction)
""",
    "sglang/srt/arg_groups/fields/model.py": """
from sglang.srt.choices import LOAD

class Model(Struct):
    model_path: A[str, Arg(help="x", aliases=["--model"])]
    load_format: A[str, Arg(help="x", choices=LOAD)] = "auto"
    dtype: A[Literal["auto", "half"], "x"] = "auto"
    eager: A[bool, "x"] = False
    hidden: A[bool, Arg(help="x", no_cli=True)] = False
    renamed: A[int, Arg(help="x", cli_name="--other")] = 1
    internal: int = 1
""",
    "sglang/srt/choices.py": 'LOAD = ["auto", *["pt"]]',
    "sglang/srt/names.py": 'NAMES = ["qwen", "glm"]',
    "sglang/srt/environ.py": "class Envs:\n    SGLANG_ONE = EnvBool(False)\n",
}


@pytest.mark.parametrize("place", ["launchers", "common"])
def test_the_flags_of_the_api_server_are_found_wherever_a_release_has_them(place: str) -> None:
    moved = {path.replace("/openai/", f"/{place}/"): text for path, text in VLLM.items()}
    assert read_vllm(Sources(moved.get)).flags == read_vllm(Sources(VLLM.get)).flags


def test_vllm_flags_come_from_the_fields_of_its_configuration_if_it_has_them() -> None:
    found = read_vllm(Sources(VLLM.get))
    assert found.flags == {
        "--load-format": ("auto", "hf"),
        "--eager": (),
        "-e": (),
        "--moe-backend": ("auto", "cutlass", "marlin"),
        "--attention-backend": ("FLASH", "TRITON"),
        "--mode": ("a", "b"),
        "--headless": (),
        "--lora": (),
        "--caching": (),
        "--host": (),
        "--enable-auto-tool-choice": (),
        "--tool-call-parser": ("hermes", "mistral"),
        "--speculative-config.method": ("dspark", "mtp"),
        "--speculative-config.tokens": (),
    }
    assert found.switches == {*("--eager", "-e", "--headless", "--lora", "--caching", "--enable-auto-tool-choice")}
    assert found.variables == {"VLLM_ONE"}
    for read in (read_vllm, read_sglang):
        assert set(read(Sources(lambda _: None)).flags) <= {"--model-type"}


def test_sglang_flags_come_from_annotated_fields_and_from_calls() -> None:
    found = read_sglang(Sources(SGLANG.get))
    assert found.flags == {
        "--model-path": (),
        "--model": (),
        "--load-format": ("auto", "pt"),
        "--dtype": ("auto", "half"),
        "--eager": (),
        "--other": (),
        "--tool-call-parser": ("auto", "glm", "qwen"),
        "--old": (),
        "--model-type": ("auto", "diffusion", "llm"),
    }
    assert found.switches == {"--eager", "--old"}
    assert found.variables == {"SGLANG_ONE"}


def test_record_is_stale_once_its_wheel_changes(locked_checkout: Checkout) -> None:
    project = Project(locked_checkout.root)
    sources = tuple(
        LockedSource(name="vllm", version=version, file=f"vllm-{version}-x.whl", sha256=number * 64, size=1)
        for version, number in (("1.0", "1"), ("2.0", "2"))
    )
    made_from = drift.sources_made_from(project.matrix)
    SourceLock(made_from=made_from, sources=sources).write(SourceLock.path(project.locks))
    project = Project(locked_checkout.root)
    name, expected = next(iter(flags_made_from(project).items()))
    path = FlagLock.path(project.locks, name)
    flag_lock(name, expected, VLLM.get).write(path)
    assert "--moe-backend" in FlagLock.read(path).flags
    assert path in drift.check_locks(project, drift.expected_locks(project))
    flag_lock(name, dict.fromkeys(expected, "f" * 64), VLLM.get).write(path)
    with raises("lock-drift", match="disagreement"):
        drift.check_locks(project, drift.expected_locks(project))


def test_versions_of_one_release_share_a_record() -> None:
    real_project = Project(REPOSITORY)
    assert recorded_version(real_project, "0.32.0-b12x") == "0.32.0"
    assert recorded_version(real_project, "0.28.0-graft") == "0.28.0"
    assert recorded_version(real_project, "nightly") == "nightly"
