"""Runs the serve program as a process."""

import json
import re
import signal
from pathlib import Path

import pytest

from imagefactory.lock.flag_records import ENGINE, FRONTENDS
from imagefactory.site.guides import read_guides
from images.serve.program.errors import EXIT_CODES
from images.serve.program.flags import known, nearest, unknown
from images.serve.program.readings import read as read_machine
from images.serve.program.servers.vllm import SERVER as VLLM
from tests.fixtures.failures import refused
from tests.fixtures.serve_process import SERVES, QuickStart, Start, finished, free_port, recorded, wait_for
from tests.fixtures.serving import READINGS, REPOSITORY, Images


def test_the_program_becomes_the_server(start: Start, tmp_path: Path) -> None:
    process = start(then="sys.exit(7)")
    assert finished(process).returncode == 7
    assert recorded(tmp_path)["parent"] == process.pid, "which stays, to give the server's code"
    assert recorded(tmp_path)["arguments"][:2] == ["serve", str(tmp_path / "model")]
    assert refused(finished(start(venv="/nowhere")), "broken-image")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_signals_reach_the_server_and_the_companion_ends_with_it(
    start: Start, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = start(then="time.sleep(60)")
    wait_for(tmp_path / "record")
    server = recorded(tmp_path)["pid"]
    children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
    assert len(children) == 1
    process.send_signal(number)
    # The companion holds our pipes, so they close only when it and the server are gone.
    process.communicate(timeout=30)
    assert process.returncode == code


LOGS = """
import logging, time
time.sleep(0.5)  # imports take longer than the companion needs to look at the clock
log = logging.getLogger("vllm.x")
log.setLevel("INFO")
log.info("non-default args: %s", {})
log.info("Starting to load model %s...", "tiny")
log.info("init engine (%s) took %.2f s", "profile", 0)
"""


def test_the_companion_reports_the_steps_of_a_start(start: Start) -> None:
    port = str(free_port())
    process = start(then=LOGS + SERVES % 404, PORT=port)
    assert process.stderr is not None
    ready = next(line for line in process.stderr if "ready" in line)
    line = next(line for line in process.stderr if "start in seconds" in line)
    process.kill()
    out, _ = process.communicate(timeout=30)
    assert "unknown" not in line
    assert re.fullmatch(rf"\[serve\] ready: http://localhost:{port}/v1, model \S+, after \d+ s\n", ready)
    assert re.search(r"checks \d+\.\d, imports .* server .*, warm-up off; ready \d+\.\d$", line)
    assert out == ""  # standard output is vLLM's


def test_arguments_are_added_to_the_recommended_command_or_replace_it(quick_start: QuickStart, tmp_path: Path) -> None:
    own = ["some/model", "--max-model-len", "99", "--odd=1 2"]
    assert quick_start(*own, MAX_MODEL_LEN="nonsense").became[1:] == ["serve", *own]
    assert quick_start("--help=all").became[1:] == ["serve", "--help=all"]
    arguments = quick_start("--seed", "7", "--max-model-len", "99").became
    assert arguments[2] == str(tmp_path / "model")
    assert arguments[-2:] == ["--seed", "7"]
    assert arguments[arguments.index("--max-model-len") + 1] == "99"


def test_the_image_explains_itself(quick_start: QuickStart, served_image: Images) -> None:
    for words in (["help"], ["--help"], ["-h"]):
        ran = quick_start(*words)
        assert (ran.returncode, ran.became) == (0, [])
        told = ("settings", "health", "--dry-run", "vllm serve --help", "MAX_MODEL_LEN")
        assert [text for text in told if text not in ran.stdout] == []
        assert max(map(len, ran.stdout.splitlines())) <= 120
        assert "--gpus" not in ran.stdout, "this image needs no GPU"
    assert "--gpus all" in served_image("gemma4-31b").run("help").stdout


@pytest.mark.parametrize(("word", "meant"), [("chekc", "check"), ("setings", "settings"), ("gpt2", "help")])
def test_a_word_that_is_no_command_is_not_served_as_a_model(
    quick_start: QuickStart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, meant: str
) -> None:
    for words in ([word], [word, "--dry-run"], [word, "--port", "1"]):
        ran = quick_start(*words)
        assert refused(ran, "bad-option")
        assert meant in ran.stderr.partition("remedy:")[2]
    monkeypatch.chdir(tmp_path)
    (tmp_path / word).mkdir()
    for model in (f"./{word}", f"some/{word}"):
        assert quick_start(model).became[1:3] == ["serve", model]
    assert refused(quick_start(word), "bad-option"), "a container's / has folders such as run and home"
    (tmp_path / word / "config.json").write_text("{}")
    assert quick_start(word).became[1:3] == ["serve", word]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("serve Serve start up run launch python3", "Leave the word out: the image serves without arguments"),
        ("chat", "curl localhost:8000/v1/chat/completions"),
        ("list ls", "`IMAGE weights`"),
        ("pull", "`IMAGE download`"),
        ("status ps", "`docker exec CONTAINER health`"),
        ("stop", "`docker stop CONTAINER`"),
    ],
)
def test_words_of_other_programs_are_answered(quick_start: QuickStart, words: str, remedy: str) -> None:
    for word in words.split():
        for arguments in ([word], [word, "--dry-run"], [word, "some/model", "--port", "1"]):
            ran = quick_start(*arguments)
            assert refused(ran, "bad-option")
            assert remedy in ran.stderr.partition("remedy:")[2]


def test_the_allocator_of_pytorch_is_described_once(quick_start: QuickStart) -> None:
    variable, own = "PYTORCH_CUDA_ALLOC_CONF", {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"}
    assert quick_start(ALLOCATOR="expandable").environment[variable] == "expandable_segments:True"
    assert quick_start("some/model", ALLOCATOR="expandable").environment[variable] == "expandable_segments:True"
    assert variable not in quick_start(ALLOCATOR="native").environment
    assert variable not in quick_start().environment
    assert quick_start(**own).environment[variable] == own[variable]
    for clash in (own, {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}):
        assert refused(quick_start("check", ALLOCATOR="expandable", **clash), "contradiction")


def test_a_dry_run_starts_nothing(quick_start: QuickStart) -> None:
    ran = quick_start("--dry-run", "--json", FACTORY_READINGS=str(READINGS / "no-gpu.json"))
    assert (ran.returncode, ran.became) == (0, [])
    assert json.loads(ran.stdout)["command"][:2] == ["vllm", "serve"]


def test_a_dry_run_ends_with_the_code_that_the_start_would_end_with(quick_start: QuickStart, tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").unlink()
    for words in (["--dry-run"], ["--dry-run", "--json"], ["check"], []):
        ran = quick_start(*words)
        assert (ran.returncode, ran.became) == (66, [])
    assert quick_start("--dry-run", SKIP_CHECKS="model").returncode == 0


def test_a_refused_dry_run_has_the_parts_of_the_message(quick_start: QuickStart) -> None:
    ran = quick_start("--dry-run", "--json", MAX_NUM_SEQS="many")
    refusal = json.loads(ran.stdout)["refusal"]
    assert (ran.returncode, refusal["exit_code"], refusal["name"]) == (64, 64, "bad-value")
    assert (refusal["setting"], refusal["value"]) == ("MAX_NUM_SEQS", "many")
    assert all(refusal[part] in ran.stderr for part in ("what", "allowed", "remedy"))


def test_this_machine_can_be_read() -> None:
    found = read_machine("/nowhere/at/all")
    assert found.memory_total
    assert found.memory_available
    assert found.disk_free


def test_a_failed_check_stops_the_start_with_one_message(start: Start, tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").unlink()
    ran = finished(start())
    assert refused(ran, "model")
    assert ran.stderr.count("config.json") == 1
    assert "SKIP_CHECKS=model" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert finished(start(SKIP_CHECKS="model", then="sys.exit(5)")).returncode == 5


def test_an_engine_that_dies_gives_a_code_also_where_the_program_is_not_process_1(start: Start) -> None:
    """vLLM ends with 0 then, as if it had been stopped; so under `docker run --init`, in a chroot, with Apptainer."""
    ran = finished(start(then="sys.exit(0)"))
    assert ran.returncode == 1
    assert "[serve] the server ended by itself: code 1" in ran.stderr


def test_the_check_command_reports_and_fails(quick_start: QuickStart, tmp_path: Path) -> None:
    ran = quick_start("check")
    assert ran.returncode == 0
    assert "ok    model" in ran.stdout
    (tmp_path / "model" / "tokenizer.json").unlink()
    ran = quick_start("check")
    assert ran.returncode == EXIT_CODES["model"]
    assert "FAIL  model" in ran.stdout


def test_each_mistake_has_its_exit_code(quick_start: QuickStart) -> None:
    for arguments, variables, name in (
        (["settings", "--yaml"], {}, "bad-option"),
        ([], {"FACTORY_SHARE": "/nowhere"}, "broken-image"),
        ([], {"MODS": "some-mod"}, "mod-failed"),
        ([], {"CHAT_TEMPLATE": "/nowhere/x.jinja"}, "model"),
    ):
        ran = quick_start(*arguments, **variables)
        assert refused(ran, name), variables
        assert "remedy" in ran.stderr
        assert "Traceback" not in ran.stderr


def test_mods_are_applied_by_the_images_module(start: Start, tmp_path: Path) -> None:
    module = tmp_path / "hooks" / "apply_at_start.py"
    module.parent.mkdir()
    module.write_text(
        "def apply_mods(names, folder):\n"
        "    if 'bad' in names:\n"
        "        raise RuntimeError('anchor not found\\n  where: mod.yaml:3\\n  next:  Lengthen it.')\n"
        f"    open({str(tmp_path / 'applied')!r}, 'w').write(' '.join(names) + ' ' + folder)\n"
    )
    share = tmp_path / "share" / "settings.json"
    described = json.loads(share.read_text())
    described["image"]["mods_module"] = str(module.with_suffix(""))
    share.write_text(json.dumps(described))
    finished(start(MODS="one,two", MODS_PATH="/my-mods"))
    assert (tmp_path / "applied").read_text() == "one two /my-mods"
    ran = finished(start(MODS="bad"))
    assert refused(ran, "mod-failed")
    assert "anchor not found\n  where: mod.yaml:3\n  setting: MODS=bad\n" in ran.stderr
    assert ran.stderr.endswith("  remedy:  Lengthen it.\n")


def test_the_flags_of_vllm_are_read_from_its_sources(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "arg_utils.py").write_text('group.add_argument("--max-model-len", "-tp", **x)\n')
    (tmp_path / "entrypoints" / "openai").mkdir(parents=True)
    (tmp_path / "entrypoints" / "openai" / "cli_args.py").write_text("class A:\n    api_key: list[str]\n")
    flags = known(str(tmp_path), VLLM.argument_files)
    words = ("m", "--max_model_len=1", "--no-api-key", "--api-key.x", "-tp", "--nope", "1", "--help")
    assert unknown(words, flags) == ["--nope"]
    assert nearest("--max_model_length", flags) == "--max-model-len"
    assert nearest("--nope", flags) == ""


def test_the_container_reads_flags_wherever_a_release_has_them() -> None:
    """The record of flags is made of these files; one that a container skips makes it refuse the flags in it."""
    files = {f"{name.removeprefix('vllm.').replace('.', '/')}.py" for name in (ENGINE, *FRONTENDS)}
    assert files <= {*VLLM.argument_files}


def test_the_advice_names_every_reason_with_its_exit_code() -> None:
    advice = read_guides(REPOSITORY).exit_codes
    named = {name: code for code, meaning in advice.items() for name in re.findall("`(.*?)`", meaning)}
    assert named == EXIT_CODES
