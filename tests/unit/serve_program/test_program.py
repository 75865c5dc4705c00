"""The program as a process: it becomes the server, passes everything on, and keeps its secrets."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from imagefactory.build.start.preview import Preview
from imagefactory.plan.serve.description import settings_bytes
from imagefactory.plan.serve.image_paths import program_folder
from images.serve.program import health
from images.serve.program.errors import ALL
from images.serve.program.flags import known, unknown
from images.serve.program.readings import read as read_machine
from tests.fixtures.serving import READINGS, REPOSITORY

STAND_IN = """#!{python}
import json, os, sys, time
record = {{"pid": os.getpid(), "arguments": sys.argv[1:], "environment": dict(os.environ)}}
open({record!r}, "w").write(json.dumps(record))
{then}
"""


@pytest.fixture
def start(served_image: Callable[..., Preview], tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start the program of the tiny image, with a stand-in for vLLM that records how it was called."""
    preview = served_image("tiny", model=str(tmp_path / "model"))
    share = tmp_path / "share"
    for folder in (share, tmp_path / "model"):
        folder.mkdir()
    (share / "settings.json").write_bytes(settings_bytes(preview.description))
    (share / "model.json").write_text(json.dumps(preview.model))
    for name in ("config.json", "tokenizer.json"):
        (tmp_path / "model" / name).write_text("{}")

    def run(*arguments: str, then: str = "", **variables: str) -> subprocess.Popen[str]:
        program = tmp_path / "vllm"
        program.write_text(STAND_IN.format(python=sys.executable, record=str(tmp_path / "record"), then=then))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        environment = {
            "PATH": os.defpath,
            "FACTORY_SHARE": str(share),
            "FACTORY_SITE": str(share),
            "FACTORY_VLLM": str(program),
            "PORT": "18998",
            "WARMUP": "0",
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(program_folder(REPOSITORY)), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return run


Start = Callable[..., subprocess.Popen[str]]


def test_the_program_becomes_the_server(start: Start, tmp_path: Path) -> None:
    process = start(then="sys.exit(7)")
    process.communicate(timeout=20)
    record = json.loads((tmp_path / "record").read_text())
    assert record["pid"] == process.pid
    assert record["arguments"][:2] == ["serve", str(tmp_path / "model")]
    assert process.returncode == 7


def test_signals_reach_the_server(start: Start, tmp_path: Path) -> None:
    process = start(then="time.sleep(60)")
    wait_for(tmp_path / "record")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM


def test_the_companion_ends_with_the_server(start: Start, tmp_path: Path) -> None:
    process = start(then="time.sleep(60)")
    wait_for(tmp_path / "record")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    process.kill()
    # It holds our pipes: that they close shows that it is gone.
    process.communicate(timeout=5)


def test_the_key_goes_by_environment_only(start: Start, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret")
    process = start(VLLM_API_KEY_FILE=str(key))
    out, err = process.communicate(timeout=20)
    record = json.loads((tmp_path / "record").read_text())
    assert record["environment"]["VLLM_API_KEY"] == "s3cret"
    assert "VLLM_API_KEY_FILE" not in record["environment"]
    assert "s3cret" not in " ".join(record["arguments"]) + out + err


def test_a_command_that_starts_with_a_model_is_passed_on_unchanged(start: Start, tmp_path: Path) -> None:
    words = ["some/model", "--max-model-len", "99", "--odd=1 2"]
    start(*words, MAX_MODEL_LEN="nonsense").communicate(timeout=20)
    assert json.loads((tmp_path / "record").read_text())["arguments"] == ["serve", *words]


def test_flags_alone_are_added_to_the_recommended_command(start: Start, tmp_path: Path) -> None:
    start("--seed", "7", "--max-model-len", "99").communicate(timeout=20)
    arguments = json.loads((tmp_path / "record").read_text())["arguments"]
    assert arguments[1] == str(tmp_path / "model")
    assert arguments[-2:] == ["--seed", "7"]
    assert arguments[arguments.index("--max-model-len") + 1] == "99"


def test_help_is_vllms(start: Start, tmp_path: Path) -> None:
    start("--help=all").communicate(timeout=20)
    assert json.loads((tmp_path / "record").read_text())["arguments"] == ["serve", "--help=all"]


def test_a_dry_run_starts_nothing(start: Start, tmp_path: Path) -> None:
    process = start("--dry-run", "--json", FACTORY_READINGS=str(READINGS / "no-gpu.json"))
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert json.loads(out)["command"][:2] == ["vllm", "serve"]
    assert not (tmp_path / "record").exists()


def test_a_failed_check_stops_the_start_with_one_message(start: Start, tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").unlink()
    process = start()
    _, err = process.communicate(timeout=20)
    assert process.returncode == 70
    assert err.count("config.json") == 1
    assert "SKIP_CHECKS=model" in err
    assert "Traceback" not in err
    process = start(SKIP_CHECKS="model")
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_check_alone_reports_and_fails(start: Start, tmp_path: Path) -> None:
    process = start("check")
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "ok    model" in out
    (tmp_path / "model" / "tokenizer.json").unlink()
    process = start("check", "--json")
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 70
    assert {finding["name"]: finding["result"] for finding in json.loads(out)}["model"] == "fail"


@pytest.mark.parametrize(
    ("arguments", "variables", "code"),
    [
        (["settings", "--yaml"], {}, 64),
        (["check", "--verbose", "--json"], {}, 64),
        ([], {"FACTORY_SHARE": "/nowhere"}, 78),
        ([], {"FACTORY_VLLM": "/nowhere/vllm"}, 78),
        ([], {"MODS": "some-mod"}, 79),
        ([], {"CHAT_TEMPLATE": "/nowhere/x.jinja"}, 70),
    ],
)
def test_other_mistakes_have_their_exit_codes(
    start: Start, arguments: list[str], variables: dict[str, str], code: int
) -> None:
    process = start(*arguments, **variables)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert "remedy" in err
    assert "Traceback" not in err


def test_mods_are_applied_by_the_module_that_the_image_names(start: Start, tmp_path: Path) -> None:
    module = tmp_path / "hooks" / "apply_at_start.py"
    module.parent.mkdir()
    module.write_text(
        "def apply_mods(names, folder):\n"
        "    if 'bad' in names:\n"
        "        raise RuntimeError('anchor not found')\n"
        f"    open({str(tmp_path / 'applied')!r}, 'w').write(' '.join(names) + ' ' + folder)\n"
    )
    share = tmp_path / "share" / "settings.json"
    described = json.loads(share.read_text())
    described["image"]["mods_module"] = str(module.with_suffix(""))
    share.write_text(json.dumps(described))
    process = start(MODS="one,two", MODS_PATH="/my-mods")
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert (tmp_path / "applied").read_text() == "one two /my-mods"
    process = start(MODS="bad")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 79
    assert "anchor not found" in err


@pytest.fixture
def server() -> Iterator[int]:
    """Serve /health like vLLM does; return the port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        yield serving.server_address[1]
        serving.shutdown()


def test_health_asks_the_port_of_the_settings(
    server: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(health, "NOTE", str(tmp_path / "note"))
    assert health.address({"PORT": str(server)}) == health.Address("127.0.0.1", server)
    assert health.is_well(health.Address("127.0.0.1", server))
    assert not health.is_well(health.Address("127.0.0.1", 1), timeout=1)
    health.leave_note(health.Address("127.0.0.1", server))
    assert health.address({"PORT": "1"}).port == server


def test_the_flags_of_vllm_are_read_from_its_sources(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "arg_utils.py").write_text('group.add_argument("--max-model-len", "-tp", **x)\n')
    (tmp_path / "entrypoints" / "openai").mkdir(parents=True)
    (tmp_path / "entrypoints" / "openai" / "cli_args.py").write_text("class A:\n    api_key: list[str]\n")
    flags = known(str(tmp_path))
    words = ("m", "--max_model_len=1", "--no-api-key", "--api-key.x", "-tp", "--nope", "1", "--help")
    assert unknown(words, flags) == ["--nope"]


def test_this_machine_can_be_read() -> None:
    found = read_machine("/nowhere/at/all")
    assert found.memory_total
    assert found.memory_available
    assert found.disk_free


def test_the_document_lists_every_exit_code() -> None:
    text = (REPOSITORY / "docs" / "serving.md").read_text("utf-8")
    for error in ALL:
        assert f"| {error.exit_code} | {error.meaning} |" in text


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < deadline
        time.sleep(0.05)
