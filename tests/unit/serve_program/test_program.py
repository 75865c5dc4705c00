"""Runs the serve program as a process."""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from imagefactory.site.guides import read_guides
from images.serve.program import health, own_files
from images.serve.program.errors import EXIT_CODES
from images.serve.program.flags import known, unknown
from images.serve.program.readings import read as read_machine
from images.serve.program.servers.vllm.server import SERVER as VLLM
from tests.fixtures.failures import refused
from tests.fixtures.serve_process import Start, finished, recorded, wait_for
from tests.fixtures.serving import READINGS, REPOSITORY


def test_the_program_becomes_the_server(start: Start, tmp_path: Path) -> None:
    process = start(then="sys.exit(7)")
    assert finished(process).returncode == 7
    assert recorded(tmp_path)["pid"] == process.pid
    assert recorded(tmp_path)["arguments"][:2] == ["serve", str(tmp_path / "model")]


def test_signals_reach_the_server(start: Start, tmp_path: Path) -> None:
    process = start(then="time.sleep(60)")
    wait_for(tmp_path / "record")
    process.send_signal(signal.SIGTERM)
    assert finished(process).returncode == -signal.SIGTERM


def test_the_companion_ends_with_the_server(start: Start, tmp_path: Path) -> None:
    process = start(then="time.sleep(60)")
    wait_for(tmp_path / "record")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 1
    process.kill()
    # The companion holds our pipes, so they close only when it is gone.
    process.communicate(timeout=5)


SERVER = """
import logging
from http.server import BaseHTTPRequestHandler, HTTPServer
log = logging.getLogger("vllm.x")
log.setLevel("INFO")
log.info("non-default args: %s", {})
log.info("Starting to load model %s...", "tiny")
log.info("init engine (%s) took %.2f s", "profile", 0)
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler).serve_forever()
"""


def test_the_companion_reports_the_steps_of_a_start(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    process = start(then=SERVER, PORT=port)
    assert process.stderr is not None
    line = next(line for line in process.stderr if "start in seconds" in line)
    process.kill()
    out, _ = process.communicate(timeout=5)
    assert "unknown" not in line
    assert re.search(r"checks \d+\.\d, imports .* server .*; ready \d+\.\d; warm-up off$", line)
    assert out == ""  # standard output is vLLM's


def test_the_key_reaches_vllm_through_its_environment_only(start: Start, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("s3cret")
    ran = finished(start(VLLM_API_KEY_FILE=str(key)))
    record = recorded(tmp_path)
    assert record["environment"]["VLLM_API_KEY"] == "s3cret"
    assert "VLLM_API_KEY_FILE" not in record["environment"]
    assert "s3cret" not in " ".join(record["arguments"]) + ran.stdout + ran.stderr


def test_a_command_that_starts_with_a_model_is_passed_on_unchanged(start: Start, tmp_path: Path) -> None:
    words = ["some/model", "--max-model-len", "99", "--odd=1 2"]
    finished(start(*words, MAX_MODEL_LEN="nonsense"))
    assert recorded(tmp_path)["arguments"] == ["serve", *words]


def test_flags_alone_are_added_to_the_recommended_command(start: Start, tmp_path: Path) -> None:
    finished(start("--seed", "7", "--max-model-len", "99"))
    arguments = recorded(tmp_path)["arguments"]
    assert arguments[1] == str(tmp_path / "model")
    assert arguments[-2:] == ["--seed", "7"]
    assert arguments[arguments.index("--max-model-len") + 1] == "99"


def test_help_is_passed_on_to_vllm(start: Start, tmp_path: Path) -> None:
    finished(start("--help=all"))
    assert recorded(tmp_path)["arguments"] == ["serve", "--help=all"]


def test_a_dry_run_starts_nothing(start: Start, tmp_path: Path) -> None:
    ran = finished(start("--dry-run", "--json", FACTORY_READINGS=str(READINGS / "no-gpu.json")))
    assert ran.returncode == 0
    assert json.loads(ran.stdout)["command"][:2] == ["vllm", "serve"]
    assert not (tmp_path / "record").exists()


def test_a_failed_check_stops_the_start_with_one_message(start: Start, tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").unlink()
    ran = finished(start())
    assert refused(ran, "model")
    assert ran.stderr.count("config.json") == 1
    assert "SKIP_CHECKS=model" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert finished(start(SKIP_CHECKS="model")).returncode == 0


def test_the_check_command_reports_and_fails(start: Start, tmp_path: Path) -> None:
    ran = finished(start("check"))
    assert ran.returncode == 0
    assert "ok    model" in ran.stdout
    (tmp_path / "model" / "tokenizer.json").unlink()
    ran = finished(start("check", "--json"))
    assert ran.returncode == EXIT_CODES["model"]
    assert {finding["name"]: finding["result"] for finding in json.loads(ran.stdout)}["model"] == "fail"


@pytest.mark.parametrize(
    ("arguments", "variables", "name"),
    [
        (["settings", "--yaml"], {}, "bad-option"),
        (["check", "--verbose", "--json"], {}, "bad-option"),
        ([], {"FACTORY_SHARE": "/nowhere"}, "broken-image"),
        ([], {"FACTORY_VLLM": "/nowhere/vllm"}, "broken-image"),
        ([], {"MODS": "some-mod"}, "mod-failed"),
        ([], {"CHAT_TEMPLATE": "/nowhere/x.jinja"}, "model"),
    ],
)
def test_each_mistake_has_its_exit_code(
    start: Start, arguments: list[str], variables: dict[str, str], name: str
) -> None:
    ran = finished(start(*arguments, **variables))
    assert refused(ran, name)
    assert "remedy" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_mods_are_applied_by_the_images_module(start: Start, tmp_path: Path) -> None:
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
    assert finished(start(MODS="one,two", MODS_PATH="/my-mods")).returncode == 0
    assert (tmp_path / "applied").read_text() == "one two /my-mods"
    ran = finished(start(MODS="bad"))
    assert refused(ran, "mod-failed")
    assert "anchor not found" in ran.stderr


@pytest.fixture
def server() -> Iterator[int]:
    """Serve /health as vLLM does; return the port."""

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


def test_health_uses_the_noted_port_else_the_setting(
    server: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(own_files, "PLACE", str(tmp_path))
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
    flags = known(str(tmp_path), VLLM.argument_files)
    words = ("m", "--max_model_len=1", "--no-api-key", "--api-key.x", "-tp", "--nope", "1", "--help")
    assert unknown(words, flags) == ["--nope"]


def test_this_machine_can_be_read() -> None:
    found = read_machine("/nowhere/at/all")
    assert found.memory_total
    assert found.memory_available
    assert found.disk_free


def test_the_advice_names_every_reason_with_its_exit_code() -> None:
    advice = read_guides(REPOSITORY).exit_codes
    assert advice.keys() == set(EXIT_CODES.values())
    for name, code in EXIT_CODES.items():
        assert f"`{name}`" in advice[code]
