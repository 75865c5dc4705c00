"""`./inv run`: a key that the user gives protects the server, and is shown nowhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.inv import Inv

KEY = "hunter2-hunter2"
OTHER_KEY = "swordfish-swordfish"
IMAGE = "--image=x@sha256:" + "0" * 64
MOUNTED = "/run/secrets/vllm_api_key"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_API_KEY", "VLLM_API_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY)
    return path


def mounted(out: str, *, compose: bool) -> Path:
    """Return the host's file that the container gets as its key."""
    if compose:
        document = yaml.safe_load(out)
        service = document["services"]["vllm"]
        assert service["environment"]["VLLM_API_KEY_FILE"] == MOUNTED
        assert service["secrets"] == ["vllm_api_key"]
        return Path(document["secrets"]["vllm_api_key"]["file"])
    words = out.replace("\\\n", " ").split()
    assert f"VLLM_API_KEY_FILE={MOUNTED}" in words
    [volume] = [word for word in words if word.endswith(f":{MOUNTED}:ro")]
    return Path(volume.partition(":")[0])


@pytest.mark.parametrize(
    ("way", "given", "place"),
    [
        ("--print", "VLLM_API_KEY", "both"),
        ("--print", "VLLM_API_KEY_FILE", "setting"),
        ("--compose", "VLLM_API_KEY", "variable"),
        ("--compose", "VLLM_API_KEY_FILE", "both"),
    ],
)
def test_a_key_protects_the_server(own_inv: Inv, key_file: Path, way: str, given: str, place: str) -> None:
    value = str(key_file) if given.endswith("FILE") else KEY
    options = [] if place == "variable" else ["--set", f"{given}={value}"]
    variables = {} if place == "setting" else {given: value if place == "variable" else OTHER_KEY}
    done = own_inv("run", way, IMAGE, *options, **variables)
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    file = mounted(done.stdout, compose=way == "--compose")
    assert file.read_text() == KEY
    if given == "VLLM_API_KEY":
        assert file.stat().st_mode & 0o777 == 0o600


DOCKER = """#!{python}
import json, os, sys
open({record!r}, "w").write(json.dumps(sys.argv))
"""


def test_docker_gets_the_key_as_a_file_only(locked_checkout: Checkout, tmp_path: Path) -> None:
    docker, record = tmp_path / "docker", tmp_path / "record"
    docker.write_text(DOCKER.format(python=sys.executable, record=str(record)))
    docker.chmod(0o700)
    command = [sys.executable, "tasks.py", "run", IMAGE, "--set", f"VLLM_API_KEY={KEY}"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PATH": f"{tmp_path}:{os.defpath}"}
    ran = subprocess.run(command, cwd=locked_checkout.root, env=environment, text=True, capture_output=True, check=True)
    words = json.loads(record.read_text())
    assert mounted(" ".join(words), compose=False).read_text() == KEY
    assert "host" in words
    assert KEY not in " ".join(words) + ran.stdout + ran.stderr


def test_a_compose_file_without_a_key_hands_on_the_variables_of_its_user(own_inv: Inv) -> None:
    service = yaml.safe_load(own_inv("run", "--compose", IMAGE).stdout)["services"]["vllm"]
    assert [service["environment"][name] for name in ("VLLM_API_KEY", "VLLM_API_KEY_FILE")] == [None, None]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["--set", "VLLM_API_KEY="], {"VLLM_API_KEY": KEY}),
        ([], {"VLLM_API_KEY": ""}),
        ([], {"VLLM_API_KEY": f"{KEY} {KEY}"}),
        ([], {"VLLM_API_KEY_FILE": ""}),
        ([], {"VLLM_API_KEY_FILE": KEY}),
        (["--set", "VLLM_API_KEY_FILE=/nowhere/key"], {}),
        (["--set", f"VLLM_API_KEY={KEY}", "--set", "VLLM_API_KEY_FILE=/dev/null"], {}),
        (["--set", f"EXTRA_ARGS=--api-key {KEY}"], {}),
        (["--set", f"EXTRA_ARGS=--ssl-keyfile-password {KEY}"], {}),
    ],
    ids=str,
)
def test_a_key_that_would_be_lost_or_shown_is_refused(inv: Inv, options: list[str], variables: dict[str, str]) -> None:
    assert KEY not in inv.fails("key-not-passed", "run", "--print", IMAGE, *options, **variables)


def test_a_key_file_without_a_key_is_refused(inv: Inv, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    inv.fails("bad-setting", "run", "--print", IMAGE, VLLM_API_KEY_FILE=str(tmp_path / "empty"))


@pytest.mark.parametrize("style", ["eugr", "sparkrun"])
def test_a_recipe_is_refused_if_its_server_would_be_open_despite_a_key(own_inv: Inv, style: str) -> None:
    line = ("run", f"--recipe={style}", IMAGE)
    assert own_inv(*line).returncode == 0
    assert KEY not in own_inv.fails("key-not-passed", *line, VLLM_API_KEY=KEY)


@pytest.mark.parametrize("setting", [f"vllm_api_key={KEY}", f"HF_TOKEN={KEY}", f"EXTRA_ARGS=--hf-token {KEY} 'x"])
def test_a_refused_setting_is_named_without_its_value(inv: Inv, setting: str) -> None:
    said = inv.fails("bad-setting", "run", "--print", IMAGE, "--set", setting)
    assert setting.partition("=")[0] in said
    assert KEY not in said


@pytest.mark.parametrize("name", ["VLLM_API_KEYS", "VLLM_APIKEY", "SGLANG_API_KEY", "vllm_api_key", "_VLLM_API__TOKEN"])
def test_a_key_under_a_name_that_nothing_reads_is_refused(inv: Inv, name: str) -> None:
    said = inv.fails("key-not-passed", "run", "--print", IMAGE, **{name: KEY})
    assert name in said
    assert KEY not in said
    assert inv("run", "--print", IMAGE, **{name: KEY, "VLLM_API_KEY": OTHER_KEY}).returncode == 0


def test_a_token_is_handed_on_by_name(inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert "HF_TOKEN" not in inv("run", "--print", IMAGE).stdout
    line = inv("run", "--print", IMAGE, HF_TOKEN=KEY).stdout
    assert "  --env HF_TOKEN \\\n" in line
    file = inv("run", "--compose", IMAGE).stdout
    assert yaml.safe_load(file)["services"]["vllm"]["environment"]["HF_TOKEN"] is None
    assert KEY not in line + file
    assert "export HF_TOKEN" in inv.fails("bad-setting", "run", "--print", IMAGE, f"--set=HF_TOKEN={KEY}")


def test_limits_are_raised_for_a_gpu_unless_the_user_cannot(inv: Inv) -> None:
    assert "--ulimit memlock=-1" in inv("run", "--print", IMAGE).stdout
    assert "ulimits" in inv("run", "--compose", IMAGE).stdout
    for options in (["--no-ulimits"], ["--target=tiny/cpu"]):
        assert "ulimit" not in inv("run", "--print", IMAGE, *options).stdout
        assert "ulimit" not in inv("run", "--compose", IMAGE, *options).stdout


def test_without_a_registry_nothing_names_the_placeholder(inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FACTORY_REGISTRY")
    assert "OWNER@" not in inv.fails("no-registry", "run", "--recipe=sparkrun")
    for way in ([], ["--print"], ["--compose"]):
        assert "./inv build --target big@2.0/gpu/arm64" in inv.fails("no-image", "run", *way)


def test_what_is_wrong_with_an_option_is_said_before_an_image_is_looked_for(
    inv: Inv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FACTORY_REGISTRY")
    assert "32kk" in inv.fails("bad-setting", "run", "--print", "--set", "MAX_MODEL_LEN=32kk")
    assert "Unknown launcher" in inv.fails("unknown-name", "run", "--recipe", "nosuch")


def test_other_launchers_get_the_key_as_a_file_and_only_llama_swap_several_targets(own_inv: Inv) -> None:
    for style in ("quadlet", "llama-swap"):
        done = own_inv("run", f"--recipe={style}", IMAGE, VLLM_API_KEY=KEY)
        assert f":{MOUNTED}:ro" in done.stdout
        assert KEY not in done.stdout + done.stderr
    both = ("run", "--target=big", "--target=tiny/cpu")
    assert "Only `--recipe llama-swap`" in own_inv.fails("bad-option", *both, "--print")
    assert "Only `--recipe llama-swap`" in own_inv.fails("bad-option", *both, "--recipe=llama-swap", IMAGE)
    assert "--with needs --compose" in own_inv.fails("bad-option", "run", "--print", IMAGE, "--with=webui")
