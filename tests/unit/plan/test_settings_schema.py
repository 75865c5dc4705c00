"""Everything that is rendered from the settings agrees."""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from imagefactory.assemble.layers.own_layers import serve_entries
from imagefactory.launch.docker_run import Launch, compose, docker_run, pinned, shell_line, write_key_file
from imagefactory.launch.preview import Preview
from imagefactory.oci.entry import EntryKind
from imagefactory.plan.make import serve_layer
from imagefactory.plan.serve.description import Served, describe_cell, describe_image, image_environment
from imagefactory.plan.serve.image_paths import (
    BY_NAME,
    ENTRYPOINT,
    KEY_FILE,
    cache_environment,
    program_folder,
    serve_files,
)
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.served_model import Serve
from imagefactory.project.servers.known import SERVERS
from imagefactory.project.servers.vllm import SCHEMA
from imagefactory.project.targets import select, select_one
from images.serve.program.checks import CHECKS
from images.serve.program.image import Setting
from images.serve.program.main import COMMANDS
from tests.fixtures.failures import raises
from tests.fixtures.serving import REPOSITORY, model_document

NAMES = [setting.name for setting in SCHEMA]
DIGEST = "sha256:" + "ab" * 32
IMAGE = f"ghcr.io/somebody/spark-vllm@{DIGEST}"
MODELS = ("gemma4-31b", "qwen3.5-27b-nvfp4", "qwen3.5-35b-a3b-int4", "qwen3-coder-next-nvfp4", "tiny")
Images = Callable[..., Preview]


def launch(preview: Preview, matrix: Matrix, **options: object) -> Launch:
    cell = select(matrix, [preview.description["image"]["target"]])[0]
    return Launch(cell, IMAGE, preview.description, **options)  # type: ignore[arg-type]


def test_the_matrix_the_serve_program_and_the_descriptions_know_the_same_settings(
    served_image: Images,
) -> None:
    assert set(Serve.model_fields) - {"env", "flags"} <= {setting.key for setting in SCHEMA}
    fields = {key for entry in served_image("gemma4-31b").description["settings"] for key in entry}
    assert fields - {"vllm_default"} <= set(Setting._fields)
    described = next(setting for setting in SCHEMA if setting.name == "SKIP_CHECKS").description
    assert described.partition(": ")[2].rstrip(".").split(", ") == list(CHECKS)


@pytest.mark.parametrize("target", MODELS)
def test_environment_table_and_program_agree_on_every_default(served_image: Images, target: str) -> None:
    preview = served_image(target)
    environment = image_environment(preview.description)
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", preview.markdown(), re.MULTILINE))
    assert list(rows) == list(NAMES)
    for entry in preview.description["settings"]:
        shown = rows[entry["name"]].replace("\\|", "|")
        assert shown == (entry["default"] or entry.get("unset", ""))
        assert environment.get(entry["name"], "") == entry["default"]
    assert "VLLM_API_KEY" not in environment
    # The image's own environment consists of the defaults.
    bare = preview.run("--dry-run", variables=dict.fromkeys(environment, ""))
    assert bare.stdout.splitlines()[0] == preview.run("--dry-run").stdout.splitlines()[0]


def test_docker_run_has_digest_gpu_caches_and_key_file_but_no_key(
    served_image: Images, serving_matrix: Matrix, tmp_path: Path
) -> None:
    preview = served_image("qwen3.5-27b-nvfp4")
    key = write_key_file(tmp_path / "keys", "s3cret")
    assert key.stat().st_mode & 0o777 == 0o600
    words = docker_run(launch(preview, serving_matrix, given={"PORT": "8001"}, key_file=key))
    text = shlex.join(words)
    assert words[-1] == IMAGE
    assert "--gpus all" in text
    assert "--ipc host" in text
    assert "memlock=-1" in text
    assert "--env PORT=8001" in text
    assert f"{key}:{KEY_FILE}:ro" in text
    assert "imagefactory-qwen3.5-27b-nvfp4-v0.32.0-gb10-arm64-abababababab:/var/cache/imagefactory" in text
    assert "s3cret" not in text
    assert shlex.split(shell_line(words).replace("\\\n", " ")) == words


def test_containers_and_services_are_named_after_their_server(served_image: Images, serving_matrix: Matrix) -> None:
    start = launch(served_image("gemma4-31b@sglang-0.5.21"), serving_matrix)
    assert "sglang-gemma4-31b" in docker_run(start)
    service = yaml.safe_load(compose(start))["services"]["sglang"]
    assert "ENABLE_TURBOQUANT" not in service["environment"]
    assert service["environment"]["MAX_MODEL_LEN"] == "${MAX_MODEL_LEN:-16384}"


def test_every_server_keeps_its_caches_in_the_volume() -> None:
    for name, server in SERVERS.items():
        places = cache_environment(server)
        assert places[server.cache] == f"/var/cache/imagefactory/{name}"
        del places["HF_HOME"]
        assert all(path.startswith("/var/cache/imagefactory/") for path in places.values())


@pytest.mark.parametrize(
    ("target", "forks"),
    [("gemma4-31b@0.33.0", True), ("gemma4-31b@0.33.0-native/h100", True), ("gemma4-31b", False), ("tiny/cpu", False)],
)
def test_engines_are_forked_since_that_is_safe(target: str, *, forks: bool) -> None:
    project = Project(REPOSITORY)
    environment = describe_cell(project, select_one(project.matrix, target)).environment()
    assert (environment.get("VLLM_WORKER_MULTIPROC_METHOD") == "fork") is forks


def test_images_fetch_no_code_and_report_no_use(real_matrix: Matrix) -> None:
    for target in ("gemma4-31b", "gemma4-31b@sglang-0.5.21", "tiny"):
        cell = select(real_matrix, [target])[0]
        model = model_document(real_matrix, cell)
        variables = Served(model, describe_image(real_matrix, cell, model), {}).environment()
        assert variables["DO_NOT_TRACK"] == variables["FLASHINFER_NO_DOWNLOAD"] == "1"
        assert variables["FLASHINFER_CUBINS_REPOSITORY"].startswith("file:")


def test_a_cpu_image_runs_without_gpu_options(served_image: Images, serving_matrix: Matrix) -> None:
    start = launch(served_image("tiny"), serving_matrix)
    assert "--gpus" not in docker_run(start)
    assert "deploy" not in yaml.safe_load(compose(start))["services"]["vllm"]


def test_compose_has_the_same_settings_and_the_key_as_a_file(served_image: Images, serving_matrix: Matrix) -> None:
    preview = served_image("gemma4-31b")
    document = yaml.safe_load(compose(launch(preview, serving_matrix, key_file=Path("/x"))))
    service = document["services"]["vllm"]
    assert service["image"] == IMAGE
    assert document["secrets"] == {"vllm_api_key": {"file": "/x"}}
    assert service["environment"].pop("VLLM_API_KEY_FILE") == KEY_FILE
    assert service["environment"].pop("HF_TOKEN") is None
    given = service["environment"].items()
    unfolded = {name: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value) for name, value in given}
    assert unfolded == image_environment(preview.description)


def test_an_image_without_a_digest_and_a_key_of_two_words_are_refused(tmp_path: Path) -> None:
    with raises("unpinned-image"):
        pinned("ghcr.io/somebody/spark-vllm:latest")
    assert pinned(DIGEST) == DIGEST
    with raises("key-not-passed"):
        write_key_file(tmp_path, "two words")


def test_flags_of_mods_beyond_the_settings_reach_the_command(served_image: Images) -> None:
    preview = served_image("gemma4-31b", serve={"moe_backend": "triton", "max_model_len": 4096})
    command = preview.command()
    assert command[command.index("--moe-backend") + 1] == "triton"
    assert command[command.index("--max-model-len") + 1] == "4096"


def test_the_serve_layer_has_python_files_rules_and_a_script_for_docker_exec() -> None:
    files = serve_files(REPOSITORY).values()
    assert "usr/share/imagefactory/serve/__main__.py" in files
    assert "usr/share/imagefactory/serve/hook/sitecustomize.py" in files
    assert "usr/share/imagefactory/serve/program/servers/vllm.json" in files
    others = {path for path in files if not path.endswith((".py", ".json"))}
    assert {f"/{path}" for path in others} == set(BY_NAME.values())
    layer = serve_layer(REPOSITORY)
    entries = list(serve_entries(layer, {file.sha256: REPOSITORY / file.name for file in layer.inputs}))
    assert {entry.path for entry in entries if entry.kind == EntryKind.FILE and entry.mode == 0o755} == others
    links = {Path(entry.path) for entry in entries if entry.kind == EntryKind.SYMLINK}
    assert {path.name for path in links} == set(COMMANDS)
    assert {str(path.parent) for path in links} == {"usr/local/bin"}


def test_a_link_to_the_script_runs_the_command_that_it_is_named_after(tmp_path: Path) -> None:
    script = (program_folder(REPOSITORY) / "by_name.sh").read_text()
    words = script.splitlines()[-1].partition(' "')[0]
    assert words == f"exec {' '.join(ENTRYPOINT)}"
    (tmp_path / "health").write_text(script.replace(words, "exec echo"))
    (tmp_path / "health").chmod(0o755)
    done = subprocess.run([tmp_path / "health", "--x y"], capture_output=True, text=True, check=True)
    assert done.stdout == "health --x y\n"


def test_a_compose_file_reads_no_variable_that_shells_export(served_image: Images, serving_matrix: Matrix) -> None:
    text = compose(launch(served_image("gemma4-31b"), serving_matrix, given={"PORT": "9000"}))
    environment = yaml.safe_load(text)["services"]["vllm"]["environment"]
    assert environment["HOST"] == "${SERVER_HOST:-0.0.0.0}"
    assert environment["PORT"] == "${SERVER_PORT:-9000}"
    assert environment["MODEL"] == "${SERVER_MODEL:-google/gemma-4-31B-it}"
    assert text.startswith("# Needs Docker Compose 2 or later.\nservices:\n")
