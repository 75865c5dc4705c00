"""Recipes of other launchers become entries of matrix.yaml; what they say beyond that is accounted for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imagefactory.build.recipes.importing import ImportedRecipe, import_recipe
from imagefactory.build.recipes.recipe_file import KNOWN, read_recipe
from imagefactory.build.start.prepare import prepare
from imagefactory.errors import FactoryError
from imagefactory.errors.matrix import DuplicateKeyError, YamlSyntaxError
from imagefactory.errors.recipes import RecipeCommandError, RecipeFormatError, RecipeNotImportableError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell, buildable
from imagefactory.matrix.served_model import Drafter, ServedModel
from imagefactory.servers.known import server_of
from tests.fixtures.checkouts import REPOSITORY

PROJECT = Project(REPOSITORY)
IMAGE = "ghcr.io/somebody/spark-vllm@sha256:" + "cd" * 32
EUGR = """\
recipe_version: "1"
name: A Model NVFP4
description: it is served
model: somebody/Model-NVFP4
container: vllm-node
solo_only: true
mods: [mods/fix-it]
build_args: [--tf5]
defaults: {port: 8000, host: 0.0.0.0, tensor_parallel: 1, max_model_len: 32768, tokens: 3}
env: {VLLM_MARLIN_USE_ATOMIC_ADD: 1, VLLM_NO_SUCH_VARIABLE: 1, HF_TOKEN: abc, HOME_OF: $HOME}
command: |
  vllm serve somebody/Model-NVFP4 \\
    --host {host} --port {port} -tp {tensor_parallel} \\
    --max-model-len {max_model_len} \\
    --attention-backend FLASHINFER \\
    --moe-backend marlin --async-scheduling \\
    --enable-auto-tool-choice --tool-call-parser qwen3_xml \\
    --reasoning-parser no_such_parser \\
    --no-such-flag 1 \\
    --limit-mm-per-prompt '{{"image": 0}}' \\
    --speculative-config '{{"method":"qwen3_5_mtp","num_speculative_tokens":{tokens},"moe_backend":"triton"}}'
"""
SPARKRUN = """\
recipe_version: "2"
model: somebody/Model-FP8
model_revision: 0123456789012345678901234567890123456789
runtime: vllm
container: somebody/image:latest
min_nodes: 1
max_nodes: 1
defaults: {port: 8000, gpu_memory_utilization: 0.8, max_model_len: 65536, tool_call_parser: hermes,
           trust_remote_code: true, enforce_eager: false, kv_cache_dtype: fp8}
metadata: {quantization: fp8, model_vram: 30.5, kv_vram_per_token: 0.000032768}
pre_exec: ["pip install something"]
invented: 1
"""


def imported(folder: Path, text: str, name: str = "") -> ImportedRecipe:
    path = folder / "recipe.yaml"
    path.write_text(text, "utf-8")
    return import_recipe(PROJECT, read_recipe(path), name)


def test_eugr_recipe_becomes_an_entry(tmp_path: Path) -> None:
    found = imported(tmp_path, EUGR)
    assert found.name == "a-model-nvfp4"
    assert yaml.safe_load(found.text()) == {found.name: found.entry}
    assert found.entry == {
        "repo": "somebody/Model-NVFP4",
        "vllm": found.entry["vllm"],
        "weights": "nvfp4",
        "drafters": [
            {
                "repo": "somebody/Model-NVFP4",
                "method": "mtp",
                "tokens": 3,
                "config": {"moe_backend": "triton"},
            }
        ],
        "serve": {
            "max_model_len": 32768,
            "attention_backend": "flashinfer",
            "enable_auto_tool_choice": True,
            "tool_call_parser": "qwen3_xml",
            "limit_mm_per_prompt": {"image": 0},
            "flags": {"moe_backend": "marlin", "async_scheduling": True},
            "env": {"VLLM_MARLIN_USE_ATOMIC_ADD": "1"},
        },
    }


def test_account_names_everything_that_has_no_counterpart(tmp_path: Path) -> None:
    account = imported(tmp_path, EUGR).account
    subjects = [line.partition(": ")[0] for line in account]
    assert subjects == [
        "--reasoning-parser no_such_parser",
        "--no-such-flag 1",
        "VLLM_NO_SUCH_VARIABLE=1",
        "HF_TOKEN",
        "HOME_OF=$HOME",
        "vllm >=0.19.1",
        "memory",
        "container vllm-node",
        "mods mods/fix-it",
        "build_args --tf5",
    ]
    assert not any("abc" in line for line in account)


def test_sparkrun_recipe_without_a_command_is_read_from_its_defaults(tmp_path: Path) -> None:
    found = imported(tmp_path, SPARKRUN, "mine")
    assert found.name == "mine"
    assert found.entry["serve"] == {
        "gpu_memory_utilization": 0.8,
        "max_model_len": 65536,
        "tool_call_parser": "hermes",
        "trust_remote_code": True,
        "kv_cache_dtype": "fp8",
    }
    # Images reckon with 16-bit values.
    assert found.entry["memory"] == {"weights_gb": 30.5, "kv_bytes_per_token": 65536, "context": 65536}
    subjects = " ".join(found.account)
    for part in ("not pinned", "pip install something", "invented", "model_revision 0123"):
        assert part in subjects


def test_sglang_recipe_describes_the_second_server(tmp_path: Path) -> None:
    text = """\
recipe_version: "2"
model: somebody/Model-NVFP4
runtime: sglang
container: somebody/image@sha256:0
command: |
  sglang serve --model-path {model} --context-length 4096 --disable-radix-cache --speculative-algorithm DFLASH
  --speculative-draft-model-path somebody/Draft --speculative-num-draft-tokens 16 --mem-fraction-static 0.7
""".replace("DFLASH\n", "DFLASH \\\n")
    entry = imported(tmp_path, text).entry
    serve = {"max_model_len": 4096, "enable_prefix_caching": False, "gpu_memory_utilization": 0.7}
    assert entry["serve_on"] == {"sglang": serve}
    assert entry["drafters"][0] == {
        "repo": "somebody/Draft",
        "method": "dflash",
        "tokens": 15,
        "sglang": entry["sglang"],
    }


def test_range_begins_with_the_first_version_that_has_all_flags(tmp_path: Path) -> None:
    newer = EUGR.replace("--async-scheduling", "--linear-backend marlin")
    assert imported(tmp_path, newer).entry["vllm"] == ">=0.24.0"
    newest = EUGR.replace("--moe-backend marlin", "--moe-backend b12x")
    assert imported(tmp_path, newest).entry["vllm"] == ">=0.32.0"


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve {model} && rm -rf /",
        "vllm serve {model}; reboot",
        "vllm serve {model} | tee log",
        "vllm serve $(cat model)",
        "vllm serve `cat model`",
        'vllm serve "$MODEL"',
        "vllm serve {model} > /dev/sda",
        "pip install x\nvllm serve {model}",
        "vllm serve {model} # and more",
    ],
)
def test_command_that_needs_a_shell_is_refused(tmp_path: Path, command: str) -> None:
    with pytest.raises(RecipeCommandError):
        imported(tmp_path, yaml.safe_dump({**yaml.safe_load(SPARKRUN), "command": command}))


def test_quoted_characters_of_a_shell_are_only_text(tmp_path: Path) -> None:
    command = "vllm serve {model} --served-model-name 'a; b && $c'"
    entry = imported(tmp_path, yaml.safe_dump({**yaml.safe_load(SPARKRUN), "command": command})).entry
    assert entry["serve"]["served_model_name"] == "a; b && $c"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("just a text", RecipeFormatError),
        ("recipe_version: '3'\nmodel: a/b\n", RecipeFormatError),
        ("recipe_version: '1'\nname: x\n", RecipeFormatError),
        ("recipe_version: '2'\nmodel: a/b\ndefaults: 1\n", RecipeFormatError),
        ("recipe_version: '2'\nmodel: [a]\n", RecipeFormatError),
        ("recipe_version: '2'\nmodel: a/b\nmodel: c/d\n", DuplicateKeyError),
        ("recipe_version: '2'\nmodel: &a a/b\nname: *a\n", YamlSyntaxError),
        ("recipe_version: '1'\nname: x\ncontainer: y\ncommand: vllm serve {{x}\n", FactoryError),
        (
            "recipe_version: '1'\nname: x\ncontainer: y\ncommand: 'vllm serve a/b --port {port}'\n",
            RecipeFormatError,
        ),
        ("recipe_version: '2'\nmodel: a/b\nruntime: llama-cpp\n", RecipeNotImportableError),
        ("recipe_version: '2'\nmodel: a/b\ncommand: llama-server -m x\n", RecipeNotImportableError),
        ("recipe_version: '2'\nmodel: a/b\nmin_nodes: 2\n", RecipeNotImportableError),
        ("recipe_version: '2'\nmodel: a/b\ncluster_only: true\n", RecipeNotImportableError),
        ("recipe_version: '2'\nmodel: a/b:Q4_K_M\n", RecipeNotImportableError),
        ("recipe_version: '2'\nmodel: /models/x\n", RecipeNotImportableError),
        ("recipe_version: '2'\nmodel: a/b\nname: " + "x" * 1_000_001, RecipeFormatError),
        ("recipe_version: '2'\nmodel: a/b\ncommand: \"vllm serve 'a/b\"\n", RecipeFormatError),
    ],
)
def test_what_is_no_recipe_or_cannot_be_served_is_refused(
    tmp_path: Path, text: str, kind: type[FactoryError]
) -> None:
    with pytest.raises(kind):
        imported(tmp_path, text)


def test_value_of_the_wrong_kind_is_left_out(tmp_path: Path) -> None:
    text = EUGR.replace("{max_model_len}", "32k").replace("--async-scheduling", "--max-num-seqs")
    found = imported(tmp_path, text)
    assert not {"max_model_len", "max_num_seqs"} & set(found.entry["serve"])
    assert [line for line in found.account if "wrong kind" in line] == [
        "--max-model-len 32k: the value is missing, or of the wrong kind",
        "--max-num-seqs: the value is missing, or of the wrong kind",
    ]


def test_value_out_of_bounds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeFormatError, match="no model can have") as refused:
        imported(tmp_path, SPARKRUN.replace("gpu_memory_utilization: 0.8", "gpu_memory_utilization: 1.8"))
    assert "gpu_memory_utilization" in refused.value.why


def test_setting_bounds_the_range_too(tmp_path: Path) -> None:
    # The flag is older than the package in images.
    text = EUGR.replace("--async-scheduling", "--load-format instanttensor")
    assert imported(tmp_path, text).entry["vllm"] == ">=0.32.0"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text('a/{}$ -"1;', max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["port", "A", "b"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = sorted(KNOWN["2"])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from([EUGR, SPARKRUN]), st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3))
def test_any_recipe_is_imported_or_refused(tmp_path: Path, text: str, changes: dict[str, object]) -> None:
    document = yaml.safe_load(text) | changes
    with suppress(FactoryError):
        assert imported(tmp_path, yaml.safe_dump(document)).entry["repo"]


def exported() -> list[tuple[Cell, str]]:
    default = PROJECT.matrix.defaults
    cells = (cell for cell in buildable(PROJECT.matrix) if cell.arch == default.arch)
    return [
        (cell, style)
        for cell in cells
        if cell.version in {default.vllm, "sglang-0.5.21"}
        for style in server_of(cell).recipes
    ]


@pytest.mark.parametrize(("cell", "style"), exported(), ids=str)
def test_our_own_recipes_come_back_as_the_same_settings(cell: Cell, style: Any, tmp_path: Path) -> None:
    found = imported(tmp_path, prepare(PROJECT, cell, IMAGE, given={}, environment={}).recipe(style))
    model = PROJECT.matrix.models[cell.model]
    shapes = model.shapes(cell.server, cell.arch)
    ours = {key: value for shape in shapes for key, value in shape.by_name().items()}
    entry = ServedModel.model_validate({"vllm": ">=0", **found.entry})
    theirs = entry.shapes(cell.server, cell.arch)[0].by_name()
    if cell.server == "sglang":
        # The values have SGLang's names.
        assert theirs.pop("attention_backend") == ours.pop("attention_backend").removesuffix("_attn")
    assert theirs == ours
    assert entry.repo == model.repo
    assert [one.model_dump(exclude={"vllm", "sglang"}) for one in entry.drafters] == [
        one.model_dump(exclude={"vllm", "sglang"}) | _spelled(cell, one) for one in model.drafters[:1]
    ]
    # A file of a mod is in the image because of the mod.
    refused = [line for line in found.account if line.startswith(("--", "drafting")) and "/mods/" not in line]
    assert refused == []
    if style == "sparkrun":
        assert entry.weights == model.weights


def _spelled(cell: Cell, drafter: Drafter) -> dict[str, str]:
    renamed = cell.server == "sglang" and drafter.attention_backend == "flash_attn"
    return {"attention_backend": "fa4"} if renamed else {}
