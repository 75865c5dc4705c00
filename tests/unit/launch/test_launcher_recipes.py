"""Recipes for other launchers, read back as those launchers read them."""

import shlex
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from imagefactory.launch.docker_run import Launch
from imagefactory.launch.preview import Preview
from imagefactory.launch.recipes import Format, recipe_document, recipe_text
from imagefactory.project.matrix import Matrix
from imagefactory.project.targets import select
from tests.fixtures.failures import raises

IMAGE = "ghcr.io/somebody/spark-vllm@sha256:" + "cd" * 32
TARGETS = ("gemma4-31b", "gpt-oss-120b")
"""One with a drafter, whose configuration has braces, and one without."""
Images = Callable[..., Preview]


def export(style: Format, preview: Preview, matrix: Matrix, image: str = IMAGE) -> dict[str, Any]:
    cell = select(matrix, [preview.description["image"]["target"]])[0]
    launch = Launch(cell, image, preview.description)
    env = matrix.models[cell.model].serve.env
    document = yaml.safe_load(recipe_text(recipe_document(style, launch, preview.model, preview.command(), env)))
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("target", TARGETS)
def test_eugr_recipe_renders_to_our_command(served_image: Images, real_matrix: Matrix, target: str) -> None:
    preview = served_image(target)
    document = export("eugr", preview, real_matrix)
    assert document["recipe_version"] == "1"
    assert {"name", "container", "command"} <= set(document)
    # Its runner uses str.format, so literal braces are doubled.
    rendered = shlex.split(document["command"].format(**document["defaults"]).replace("\\\n", " "))
    assert rendered == [*preview.command(), "--host", "0.0.0.0", "--port", "8000", "-tp", "1"]  # noqa: S104


@pytest.mark.parametrize("target", TARGETS)
def test_sparkrun_recipe_pins_image_and_revision(served_image: Images, real_matrix: Matrix, target: str) -> None:
    preview = served_image(target, revision="0" * 40)
    document = export("sparkrun", preview, real_matrix)
    assert document["recipe_version"] == "2"
    assert document["model_revision"] == "0" * 40
    assert document["container"] == IMAGE
    command = document["command"]
    for name, value in document["defaults"].items():
        command = command.replace(f"{{{name}}}", str(value))
    assert shlex.split(command.replace("\\\n", " "))[: len(preview.command())] == preview.command()
    assert document["metadata"]["model_vram"] == 24.0


def test_a_recipe_for_sglang_names_its_runtime_and_its_flags(served_image: Images, serving_matrix: Matrix) -> None:
    preview = served_image("gemma4-31b@sglang-0.5.21")
    document = export("sparkrun", preview, serving_matrix)
    assert (document["runtime"], document["runtime_version"]) == ("sglang", "0.5.21")
    assert document["defaults"]["max_model_len"] == 16384
    rendered = document["command"]
    for name, value in document["defaults"].items():
        rendered = rendered.replace(f"{{{name}}}", str(value))
    words = shlex.split(rendered.replace("\\\n", " "))
    expected = [word for word in preview.command() if word not in {"--host", "0.0.0.0", "--port", "8000"}]  # noqa: S104
    assert words == [*expected, "--host", "0.0.0.0", "--port", "8000", "--tp-size", "1"]  # noqa: S104


def test_an_image_without_digest_and_sglang_for_a_launcher_of_vllm_get_no_recipe(
    served_image: Images, serving_matrix: Matrix
) -> None:
    with raises("unpinned-image"):
        export("sparkrun", served_image("gemma4-31b"), serving_matrix, image="spark-vllm:latest")
    with raises("unknown-name", match="Unknown launcher for SGLang 'eugr'"):
        export("eugr", served_image("gemma4-31b@sglang-0.5.21"), serving_matrix)
