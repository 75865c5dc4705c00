"""Values of users keep every character in every format: quotes, dollars, percent signs, backslashes, line breaks."""

import re
import shlex
from dataclasses import replace

import pytest
import yaml

from imagefactory.launch.clusters import kubernetes, slurm
from imagefactory.launch.companions import PROFILES, add_companions
from imagefactory.launch.docker_run import Launch, compose, compose_document, docker_run, shell_line
from imagefactory.launch.recipes import llama_swap, quadlet, recipe_document, recipe_text
from tests.fixtures.serving import prepared

NASTY = (
    "it's",
    'say "hi"',
    "a$b ${HOME} $$",
    "100%h",
    "back\\slash",
    "two\nlines",
    "- a: b # c",
    "{x: [1]}",
    "ä\x7f😀",
)


@pytest.fixture(params=NASTY)
def nasty(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tiny() -> Launch:
    return prepared("tiny").launch


@pytest.fixture
def launch(tiny: Launch, nasty: str) -> Launch:
    given = {"SERVED_MODEL_NAME": nasty}
    return replace(tiny, given=given, labels={"said": nasty}, mounts={f"/mods/{nasty}": "/mods"})


def interpolated(text: str) -> str:
    """Return what compose makes of a value if no variable is set."""
    return re.sub(r"\$(?:\$|\{\w+:-([^}]*)\})", lambda found: "$" if found[0] == "$$" else found[1], text)


def test_compose(launch: Launch, nasty: str) -> None:
    service = yaml.safe_load(compose(launch))["services"]["vllm"]
    assert interpolated(service["environment"]["SERVED_MODEL_NAME"]) == nasty
    assert interpolated(service["labels"]["said"]) == nasty
    assert interpolated(service["volumes"][-1]) == f"/mods/{nasty}:/mods:ro"


def test_files_of_companions(launch: Launch, nasty: str) -> None:
    document = compose_document(launch)
    add_companions(document, launch, PROFILES, str)
    config = yaml.safe_load(interpolated(document["configs"]["litellm-1"]["content"]))
    assert [model["model_name"] for model in config["model_list"]] == [nasty]


def test_shell_and_llama_swap(launch: Launch) -> None:
    words = docker_run(launch)
    assert shlex.split(shell_line(words).replace(" \\\n", " ")) == words
    [model] = yaml.safe_load(llama_swap([launch]))["models"].values()
    assert set(docker_run(launch, detach=False)) <= set(shlex.split(model["cmd"].replace(" \\\n", " ")))


def systemd_words(line: str) -> list[str]:
    """Split a line as systemd does: specifiers, then quotes and C's escapes, then variables."""
    escapes = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|(\S+)', line.replace("%%", "%"))
    return [
        re.sub(r"\\(.)", lambda one: escapes[one[1]], quoted or plain).replace("$$", "$") for quoted, plain in found
    ]


def test_quadlet(launch: Launch, nasty: str) -> None:
    if "\n" in nasty:  # no file that systemd mounts can be named like this
        launch = replace(launch, mounts={})
    lines = [line.partition("=") for line in quadlet(launch).splitlines()]
    assert [systemd_words(value) for key, _, value in lines if key == "Environment"] == [[f"SERVED_MODEL_NAME={nasty}"]]
    assert [f"--label=said={nasty}"] in [systemd_words(value) for key, _, value in lines if key == "PodmanArgs"]


@pytest.mark.parametrize("style", ["eugr", "sparkrun"])
def test_recipes(launch: Launch, nasty: str, style: str) -> None:
    command = ["vllm", "serve", "some/model", "--served-model-name", nasty]
    text = recipe_text(recipe_document(style, launch, {"model": nasty}, command, {"A": nasty}))
    recipe = yaml.safe_load(text)
    assert (recipe["model"], recipe["env"]) == (nasty, {"A": nasty})
    line = recipe["command"].replace(" \\\n  ", " ")
    filled = line.format(**recipe["defaults"]) if style == "eugr" else line
    assert shlex.split(filled)[: len(command)] == command


def test_kubernetes(launch: Launch, nasty: str) -> None:
    found = [document for document in yaml.safe_load_all(kubernetes(launch, None)) if document["kind"] == "Deployment"]
    variables = found[0]["spec"]["template"]["spec"]["containers"][0]["env"]
    # Of a dollar it keeps every second.
    assert [entry["value"].replace("$$", "$") for entry in variables if entry["name"] == "SERVED_MODEL_NAME"] == [nasty]


def test_slurm(launch: Launch, nasty: str) -> None:
    assert f"SERVED_MODEL_NAME={nasty}" in shlex.split(slurm(launch, None), comments=True)
