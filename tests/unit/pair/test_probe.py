"""The probe: what it says of a tree and of this machine, and that nothing stops it."""

import ast
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imagefactory.errors import MachineError
from imagefactory.pair import probe_node
from imagefactory.pair.node import PROBE, Node
from imagefactory.pair.weights import HASHING
from tests.fixtures.sparks import BRIDGE, PORT_0, ROCE, WIFI, cabled, description, plant, write


def program(folder: Path, name: str, text: str) -> None:
    write(folder / name, f"#!/bin/sh\n{text}")
    (folder / name).chmod(stat.S_IRWXU)


INFO = {"ServerVersion": "29.0.1", "DockerRootDir": "/nowhere/docker"}


def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, docker: str, smi: str = "echo 580.95.05") -> dict[str, Any]:
    program(tmp_path / "bin", "docker", docker)
    program(tmp_path / "bin", "nvidia-smi", smi)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    ports = cabled(2)
    plant(tmp_path / "root", ports)
    return description(tmp_path / "root", ports)


def test_describes_a_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = json.dumps(INFO | {"Runtimes": {"nvidia": {}, "runc": {}}})
    write(tmp_path / "root/hub/models--some--tiny/snapshots/c0ffee/config.json", "{}")
    node = Node.model_validate(asked(monkeypatch, tmp_path, f"echo '{info}'"))
    assert node.unread == {}
    assert {one.name: one.interface for one in node.roce} == {device: name for name, (device, _) in ROCE.items()}
    assert [one.name for one in node.roce if one.active] == ["roceP2p1s0f0", "rocep1s0f0"]
    first = node.interface(PORT_0[0])
    assert first
    assert [one.name for one in node.port(first)] == ["rocep1s0f0", "roceP2p1s0f0"]
    assert (str(first.address), first.mtu, first.up, first.speed) == ("192.168.177.2/24", 9000, True, 200_000)
    assert [one.name for one in node.interfaces if one.default_route and one.wireless] == [WIFI]
    assert [one.name for one in node.interfaces if one.bridge] == [BRIDGE]
    idle = node.interface("enp1s0f1np1")
    assert idle
    assert (idle.up, idle.speed, idle.address) == (False, None, None)
    assert (node.driver, node.verbs) == ("580.95.05", True)
    assert node.docker
    assert (node.docker.version, node.docker.gpus) == ("29.0.1", True)
    assert node.disks["images"]
    assert node.snapshots == {"models--some--tiny/snapshots/c0ffee": {"config.json": 3}}


@pytest.mark.parametrize(
    ("docker", "reason"),
    [
        ("echo 'permission denied while trying to connect' >&2; exit 1", "permission denied while trying to connect"),
        ('echo \'{"ServerErrors": ["Cannot connect"]}\'', "Cannot connect"),  # before Docker 23 it exits with 0
        ("sleep 60", "docker did not answer within 1 seconds"),
        ("echo garbage", "Expecting value: line 1 column 1 (char 0)"),
    ],
)
def test_a_silent_docker_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, docker: str, reason: str) -> None:
    monkeypatch.setattr(probe_node, "PATIENCE", 1)
    said = asked(monkeypatch, tmp_path, docker, "exit 9")
    assert said["docker"] is said["disks"]["images"] is said["driver"] is None
    assert said["unread"] == {"docker": reason, "driver": "nvidia-smi ended with 9"}


def test_an_empty_tree_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = probe_node.probe(tmp_path, str(tmp_path / "not/there"))
    assert (said["interfaces"], said["roce"], said["verbs"], said["rsync"]) == ([], [], False, False)
    assert said["unread"].keys() == {"addresses", "interfaces", "routes", "docker", "driver"}
    assert said["unread"]["docker"] == "there is no docker on PATH"
    assert said["disks"]["weights"]["free"] > 0
    Node.model_validate(said)


def test_describes_this_machine_from_standard_input(tmp_path: Path) -> None:
    line = [sys.executable, "-I", "-", "--weights", str(tmp_path), "models--a/snapshots/b"]
    text = PROBE.read_text("utf-8")
    done = subprocess.run(line, input=text, capture_output=True, text=True, check=True, timeout=60)
    node = Node.read(f"Welcome!\n{done.stdout}", "here")
    assert (node.host, node.snapshots) == ("here", {"models--a/snapshots/b": {}})
    assert {"127.0.0.1/8"} <= {address for name, address in probe_node._addresses() if name == "lo"}
    assert done.stderr == ""


@pytest.mark.parametrize("answer", ["", "bash: python3: command not found", '{"host": "x"}', "{}", "}"])
def test_another_answer_is_an_error(answer: str) -> None:
    with pytest.raises(MachineError) as failure:
        Node.read(answer, "spark2")
    assert failure.value.name == "no-probe"


@pytest.mark.parametrize("program", [PROBE, HASHING])
def test_is_one_file_of_plain_old_python(program: Path) -> None:
    tree = ast.parse(program.read_text("utf-8"), feature_version=(3, 8))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
