"""`download` and `weights`: what they fetch, verify and say, what interrupts them, and starts without the hub."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from imagefactory.plan.serve.image_paths import program_folder
from images.serve.program import downloading, hub, private_files
from images.serve.program.weights import File, amount, needed, read_list
from tests.fixtures.engines import wait_until
from tests.fixtures.failures import refused
from tests.fixtures.model_hub import COMMIT, ModelHub, change, cut_at, stall
from tests.fixtures.serve_process import finished, written_image
from tests.fixtures.servers import Answer, Asked, endless
from tests.fixtures.serving import READINGS, REPOSITORY, Called, Images, call_program

MODEL, DRAFTER = "google/gemma-4-31B-it", "z-lab/gemma-4-31B-it-DFlash"
WEIGHTS = os.urandom(3_000_000)
SMALL = {"config.json": b'{"vocab_size": 1}', "tokenizer.json": b"{}"}
Call = Callable[..., Called]


@pytest.fixture
def environment(
    served_image: Images, tmp_path: Path, model_hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The variables of an image whose hub has its model and its drafter."""
    monkeypatch.setattr(private_files, "PLACE", str(tmp_path))
    monkeypatch.setattr(hub, "PAUSE", 0.0)
    model_hub.repositories = {
        MODEL: SMALL
        | {
            "model.safetensors": WEIGHTS,
            "original/model.safetensors": b"other",
            "pytorch_model.bin": b"other",
            "sub/code.py": b"code",
        },
        DRAFTER: SMALL | {"model.safetensors": b"drafter"},
    }
    return written_image(served_image("gemma4-31b@0.32.0"), tmp_path) | {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_ENDPOINT": model_hub.url,
        "HF_HUB_DOWNLOAD_TIMEOUT": "10",
        "DFLASH_DRAFTER": DRAFTER,
        "FACTORY_READINGS": str(READINGS / "gb10.json"),
    }


@pytest.fixture
def call(environment: dict[str, str]) -> Call:
    return lambda *arguments, **variables: call_program(arguments, environment | variables)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The model's folder in the cache."""
    return tmp_path / "hf" / "hub" / ("models--" + MODEL.replace("/", "--"))


def process(environment: dict[str, str], *arguments: str, before: str = "") -> subprocess.Popen[str]:
    program = [sys.executable, "-I", "-S", "-B", str(program_folder(REPOSITORY)), *arguments]
    words = ["bash", "-c", f'{before} exec "$@"', "-", *program]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def listed(call: Call, **variables: str) -> dict[str, Any]:
    snapshots = json.loads(call("weights", "--json", **variables).stdout)["snapshots"]
    return {snapshot["repo"]: snapshot for snapshot in snapshots}


def test_download_fetches_what_the_server_reads_once_and_says_where_it_is(
    call: Call, model_hub: ModelHub, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloading, "EVERY", 0.2)
    model_hub.mishap = stall(0.6)
    model_hub.gated = "hf_token"
    variables = {"HF_TOKEN": model_hub.gated}
    ran = call("download", **variables)
    assert ran.returncode == 0, ran.stderr
    folder = repository / "snapshots" / COMMIT
    assert f"{MODEL}@{COMMIT}: complete and verified, in {folder}" in ran.stdout
    assert f"drafter {DRAFTER}@{COMMIT}: 3 files" in ran.stderr
    assert re.search(r"^\[download\] \d+ B of 3.0 MB \(0 %\), \S+ \S+/s", ran.stderr, re.MULTILINE)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {*SMALL, "model.safetensors", "sub/code.py"}
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert not (folder / "sub" / "code.py").readlink().is_absolute()
    assert (repository / "refs" / "main").read_text() == COMMIT
    elsewhere = [asked for asked in model_hub.server.log if asked.path.startswith("/blobs/")]
    assert not [asked for asked in elsewhere if "authorization" in asked.headers]
    fetched = model_hub.served("/blobs/"), model_hub.served("/resolve/")
    monkeypatch.delattr(downloading, "_digest_of")  # what was verified is not hashed again
    assert call("download", **variables).returncode == 0
    assert (model_hub.served("/blobs/"), model_hub.served("/resolve/")) == fetched
    assert "hf_token" not in ran.stdout + ran.stderr


def test_a_pinned_model_that_was_verified_needs_no_hub(
    environment: dict[str, str], served_image: Images, model_hub: ModelHub, tmp_path: Path
) -> None:
    pinned = served_image("gemma4-31b@0.32.0", revision=COMMIT)
    (tmp_path / "share" / "model.json").write_text(json.dumps(pinned.model))
    variables = environment | {"DFLASH_DRAFTER": "off"}
    assert call_program(["download"], variables).returncode == 0
    asked = len(model_hub.server.log)
    assert call_program(["download"], variables).returncode == 0
    assert len(model_hub.server.log) == asked


def test_a_cut_connection_is_resumed(call: Call, model_hub: ModelHub) -> None:
    model_hub.mishap = cut_at(1_000_000, times=2)
    ran = call("download", DFLASH_DRAFTER="off")
    assert ran.returncode == 0, ran.stderr
    assert model_hub.served() == len(WEIGHTS)
    assert "the connection was cut at 1.0 MB of model.safetensors; attempt 2 of 5" in ran.stderr


def test_a_stall_is_named_and_the_next_download_goes_on(call: Call, model_hub: ModelHub) -> None:
    model_hub.mishap = stall(20)
    ran = call("download", DFLASH_DRAFTER="off", HF_HUB_DOWNLOAD_TIMEOUT="0.3")
    assert refused(ran, "stalled")
    assert "no byte in 0.3 s" in ran.stderr
    model_hub.mishap = cut_at(0, times=0)
    assert call("download", DFLASH_DRAFTER="off").returncode == 0


def test_other_bytes_are_refused_and_not_kept(call: Call, model_hub: ModelHub, repository: Path) -> None:
    model_hub.mishap = change
    assert refused(call("download", DFLASH_DRAFTER="off"), "damaged")
    assert not [path for path in repository.rglob("*") if path.is_file() and path.stat().st_size == len(WEIGHTS)]
    assert "model.safetensors" in listed(call)[MODEL]["missing"]


def test_damage_on_the_disk_is_found_and_repaired(call: Call, model_hub: ModelHub, repository: Path) -> None:
    model_hub.mishap = cut_at(1_000_000, times=1000)
    variables = {"DFLASH_DRAFTER": "off"}
    assert call("download", **variables).returncode == 0
    [blob] = [path for path in (repository / "blobs").iterdir() if path.stat().st_size == len(WEIGHTS)]
    left = blob.with_name(f"{blob.name}.0123abcd.incomplete")
    left.write_bytes(b"left by huggingface_hub")
    for name, content in ((blob.name, bytes(len(WEIGHTS))), (f"{blob.name}.incomplete", bytes(1_000))):
        blob.unlink(missing_ok=True)
        blob.with_name(name).write_bytes(content)
        (repository / "imagefactory" / f"{COMMIT}.json").unlink()
        assert call("download", **variables).returncode == 0
        assert blob.read_bytes() == WEIGHTS
    assert not left.exists()


def test_too_little_space_is_named_before_and_during_a_download(
    call: Call, environment: dict[str, str], model_hub: ModelHub, repository: Path
) -> None:
    model_hub.claimed = 10**16
    ran = call("download")
    assert refused(ran, "disk")
    assert "the download needs 7000000" in ran.stderr
    assert model_hub.served() == 0
    model_hub.claimed = 0
    ran2 = finished(process(environment, "download", before="ulimit -f 1000;"))
    assert refused(ran2, "disk")
    assert "Traceback" not in ran2.stderr
    parts = [part.stat().st_size for part in (repository / "blobs").glob("*.incomplete")]
    assert 0 < max(parts) < len(WEIGHTS)
    assert call("download").returncode == 0


def test_two_downloads_at_once_fetch_each_byte_once(environment: dict[str, str], model_hub: ModelHub) -> None:
    asked, waited = Event(), Event()

    def hold(request: Asked, answer: Answer) -> Answer:
        if request.path.startswith("/blobs/"):
            asked.set()
            waited.wait(20)
        return answer

    model_hub.mishap = hold
    first = process(environment, "download")
    assert asked.wait(20)
    second = process(environment, "download")
    assert second.stderr is not None
    assert f"model {MODEL}@{COMMIT}" in second.stderr.readline()
    waited.set()
    ran = [finished(one) for one in (first, second)]
    assert [one.returncode for one in ran] == [0, 0], ran
    assert model_hub.served() == len(WEIGHTS) + len(b"drafter")


def test_a_killed_download_frees_its_lock_and_is_resumed(
    call: Call, environment: dict[str, str], model_hub: ModelHub, repository: Path
) -> None:
    cut, gone = cut_at(2_000_000), Event()

    def cut_then_wait(asked: Asked, answer: Answer) -> Answer:
        if "range" in asked.headers:
            gone.wait(20)
        return cut(asked, answer)

    model_hub.mishap = cut_then_wait
    killed = process(environment | {"DFLASH_DRAFTER": "off"}, "download")
    wait_until(lambda: any(map(is_cut, (repository / "blobs").glob("*.incomplete"))), 20)
    killed.kill()
    assert finished(killed).returncode == -signal.SIGKILL
    gone.set()
    model_hub.mishap = cut_at(0, times=0)
    assert "of unfinished files" in call("weights").stdout
    model_hub.server.log.clear()
    ran = call("download")
    assert ran.returncode == 0, ran.stderr
    assert model_hub.served() <= 1_000_000 + len(b"drafter")


def is_cut(part: Path) -> bool:
    with suppress(FileNotFoundError):  # a small file, by now complete
        return part.stat().st_size == 2_000_000
    return False


@pytest.mark.parametrize(
    ("variables", "name", "words"),
    [
        ({"HF_TOKEN": "hf_wrong"}, "gated", "this token has no access"),
        ({"MODEL": "nobody/nothing"}, "unknown-model", "nobody/nothing"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "no-hub", "refused"),
        ({"HF_ENDPOINT": "http://user:secret@127.0.0.1:9"}, "no-hub", "(hidden)"),
    ],
)
def test_what_the_hub_refuses_is_named(
    call: Call, model_hub: ModelHub, variables: dict[str, str], name: str, words: str
) -> None:
    model_hub.gated = "hf_token" if name == "gated" else ""
    ran = call("download", **variables)
    assert refused(ran, name)
    assert words in ran.stderr
    assert "secret" not in ran.stderr


def siblings(*names: str, **changes: object) -> bytes:
    files = [{"rfilename": name, "size": 1, "blobId": "0" * 40} | changes for name in names]
    return json.dumps({"sha": COMMIT, "siblings": files}).encode()


LIES: dict[str, tuple[Answer, str]] = {
    "endless": (Answer(b"[" + b" " * (hub.LISTING + 1)), "more than"),
    "deep": (Answer(b'{"a":' * 100_000), "not that of a model hub"),
    "size without end": (Answer(siblings("a").replace(b'"size": 1', b'"size": 1e999')), "not that of a model hub"),
    "negative size": (Answer(siblings("a", size=-1)), "not that of a model hub"),
    "NUL": (Answer(siblings("a\0b")), "not that of a model hub"),
    "half a character": (Answer(siblings("a\ud800")), "not that of a model hub"),
    "escape": (Answer(siblings("a\x1b[2J")), "not that of a model hub"),
    "empty name": (Answer(siblings("")), "not that of a model hub"),
    "dot": (Answer(siblings("./a")), "not that of a model hub"),
    "file and folder": (Answer(siblings("config.json", "config.json/x")), "not that of a model hub"),
    "too many": (Answer(siblings(*map(str, range(hub.MOST_FILES + 1)))), "not that of a model hub"),
    "no list": (Answer(b'{"sha": "x", "siblings": 7}'), "not that of a model hub"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_hub_that_lies_is_named(call: Call, model_hub: ModelHub, lie: str) -> None:
    answer, words = LIES[lie]
    model_hub.mishap = lambda asked, true: answer if asked.path.startswith("/api/") else true
    ran = call("download")
    assert refused(ran, "no-hub")
    assert words in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_hub_that_sends_a_byte_now_and_then_is_slow(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "WINDOW", 0.5)
    with endless(b"HTTP/1.1 200 OK\r\n\r\n", b" ", 0.05) as slow:
        assert refused(call("download", HF_ENDPOINT=slow.url), "stalled")


def test_words_of_the_hub_do_not_command_the_terminal(call: Call) -> None:
    head = b"HTTP/1.1 418 \x1b]0;owned\x07\x1b[2J\r\nContent-Length: 0\r\n\r\n"
    with endless(head, b"", 0.05) as teapot:
        ran = call("download", HF_ENDPOINT=teapot.url)
    assert refused(ran, "no-hub")
    assert "\x1b" not in ran.stderr
    assert "owned" in ran.stderr


@pytest.mark.parametrize("where", ["HF_TOKEN", "HF_TOKEN_PATH"])
def test_a_token_of_two_lines_is_refused_and_not_shown(call: Call, tmp_path: Path, where: str) -> None:
    (tmp_path / "token").write_text("my-private-word\nrest-of-it\n")
    given = (tmp_path / "token").read_text() if where == "HF_TOKEN" else str(tmp_path / "token")
    ran = call("download", **{where: given})
    assert refused(ran, "bad-value")
    assert "my-private-word" not in ran.stderr


def test_what_is_complete_needs_no_writing(call: Call, repository: Path) -> None:
    call("download")
    before = {path: path.stat().st_mtime_ns for path in repository.parent.rglob("*")}
    ran = call("download")
    assert "complete and verified" in ran.stdout
    assert {path: path.stat().st_mtime_ns for path in repository.parent.rglob("*")} == before


def test_a_file_that_vanished_meanwhile_is_missed(
    call: Call, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = downloading._Download.run

    def spoiled(self: Any) -> None:
        run(self)
        (repository / "snapshots" / COMMIT / "config.json").unlink()

    monkeypatch.setattr(downloading._Download, "run", spoiled)
    ran = call("download")
    assert refused(ran, "damaged")
    assert "config.json" in ran.stderr


def test_a_revision_that_is_gone_is_named(environment: dict[str, str], served_image: Images, tmp_path: Path) -> None:
    pinned = served_image("gemma4-31b@0.32.0", revision="0" * 40)
    (tmp_path / "share" / "model.json").write_text(json.dumps(pinned.model))
    assert refused(call_program(["download"], environment), "unknown-revision")


def test_a_start_uses_what_is_complete_without_the_hub(call: Call, repository: Path) -> None:
    assert "HF_HUB_OFFLINE" not in call().environment
    call("download")
    ran = call()
    assert ran.environment["HF_HUB_OFFLINE"] == "1"
    assert ran.became[ran.became.index("--served-model-name") + 1] == MODEL
    assert f"{MODEL} and {DRAFTER} complete in" in ran.stderr
    others = {"EXTRA_ARGS": "--enable-lora --lora-modules a=some/adapter"}
    for variables in ({"HF_HUB_OFFLINE": "0"}, others, {"DFLASH_DRAFTER": "another/drafter"}):
        assert call(**variables).environment.get("HF_HUB_OFFLINE", "0") == "0", variables
    config = repository / "snapshots" / COMMIT / "config.json"
    config.unlink()
    assert "HF_HUB_OFFLINE" not in call().environment
    assert "incomplete, lacks config.json" in call("weights").stdout
    config.write_bytes(SMALL["config.json"])
    assert call().environment["HF_HUB_OFFLINE"] == "1"


def test_code_in_another_repository_may_need_the_hub(call: Call, model_hub: ModelHub) -> None:
    elsewhere = json.dumps({"auto_map": {"AutoConfig": "other/code--configuration.Config"}}).encode()
    model_hub.repositories[MODEL]["config.json"] = elsewhere
    call("download", DFLASH_DRAFTER="off")
    assert "HF_HUB_OFFLINE" not in call(DFLASH_DRAFTER="off").environment


def test_weights_lists_what_is_used_and_what_is_not(call: Call, tmp_path: Path) -> None:
    ran = call("weights")
    assert f"{MODEL}: not downloaded" in ran.stdout
    call("download")
    other = tmp_path / "hf" / "hub" / "models--some--other" / "snapshots" / ("1" * 40)
    other.mkdir(parents=True)
    (other / "config.json").write_text("{}")
    found = listed(call)
    assert [found[repo]["used_as"] for repo in (MODEL, DRAFTER, "some/other")] == ["model", "drafter", ""]
    assert [found[repo]["complete"] for repo in (MODEL, DRAFTER, "some/other")] == [True, True, False]
    assert (found[MODEL]["verified"], found["some/other"]["listed"]) == (True, False)
    told = call("weights").stdout.splitlines()
    assert f"model       3.0 MB  {MODEL}@{COMMIT[:12]} (main): complete, verified" in told
    assert f"unused         2 B  some/other@{'1' * 12}: incomplete, lacks tokenizer.json, *.safetensors" in told


def test_a_folder_is_not_downloaded(call: Call, tmp_path: Path, model_hub: ModelHub) -> None:
    ran = call("download", MODEL_PATH=str(tmp_path / "model"), DFLASH_DRAFTER="off")
    assert (ran.returncode, model_hub.server.log) == (0, [])
    assert "is a folder" in ran.stdout
    assert "a folder" in call("weights", MODEL_PATH=str(tmp_path / "model")).stdout


@pytest.mark.parametrize(("path", "digest"), [("../x", "0" * 40), ("/x", "0" * 40), ("x", "../x")])
def test_a_list_that_leads_out_of_the_cache_is_not_believed(tmp_path: Path, path: str, digest: str) -> None:
    (tmp_path / "trees").mkdir()
    file = {"size": 1, "blob_id": digest}
    (tmp_path / "trees" / f"{COMMIT}.json").write_text(json.dumps({"files": {path: file}}))
    assert read_list(tmp_path, COMMIT) is None


def test_mistrals_format_is_vllms_first_choice() -> None:
    files = [File(path, 1, "") for path in ("params.json", "consolidated.safetensors", "model.safetensors", "x.gguf")]
    assert [file.path for file in needed(files, "vllm")] == ["params.json", "consolidated.safetensors"]
    assert len(needed(files, "sglang")) == 3
    assert len(needed(files[3:], "vllm")) == 1
    assert [amount(size) for size in (0, 1500, 2.5e9)] == ["0 B", "1.5 kB", "2.5 GB"]
