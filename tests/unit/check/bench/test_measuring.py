"""Measuring: what is asked of a server, what is made of its answers, and what stays when it fails."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from imagefactory.check.bench import running
from imagefactory.check.bench.endpoint import Endpoint, ServedAs, check_answers, check_repeatable, looks_broken
from imagefactory.check.bench.measuring import (
    Asking,
    Bench,
    fit,
    gpus_in,
    kernels_of,
    measure,
    recording,
    refuse_wrong_answers,
    steps_of,
)
from imagefactory.check.bench.profiles import load_profiles, load_prompts
from imagefactory.check.bench.result import BenchResult
from imagefactory.check.bench.running import (
    Side,
    asked_differences,
    bench_url,
    keeping_log,
    refuse_other_servers,
    run_interleaved,
)
from imagefactory.check.smoke.containers import ContainerError
from imagefactory.check.smoke.subject import Subject
from imagefactory.errors import CheckError
from imagefactory.project.cells import Cell
from imagefactory.project.project import Project
from imagefactory.project.targets import select_one
from imagefactory.store.digests import Digest, Sha256
from tests.fixtures.benchmarks import printed, result
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.servers import Answer, Asked, scripted


def test_the_log_of_a_failed_server_stays_beside_the_result_and_the_error_names_it(tmp_path: Path) -> None:
    server, place = Mock(), tmp_path / "build" / "answers" / "a.json"
    server.container.log = "EngineCore encountered an issue"
    log = place.with_suffix(".log")
    failed = CheckError("bench-incomplete", "No.", where="x", why="Status 500.", fix="Read the server's log.")
    with raises("bench-incomplete") as caught, keeping_log(server, place):
        raise failed
    assert caught.value.fix == "Read the server's log, build/answers/a.log."
    assert log.read_text() == server.container.log
    with (
        pytest.raises(ContainerError, match=r"ended \(the whole log is build/answers/a\.log\)"),
        keeping_log(server, place),
    ):
        raise ContainerError("it ended")
    log.unlink()
    with keeping_log(server, place):
        """A server that does not fail."""
    assert not log.exists()


PROMPTS = load_prompts(REPOSITORY)
SERVED = ServedAs("tiny", "/models/tiny", 256)


def good(asked: Asked) -> Answer:
    """Answer as vLLM does."""
    if asked.headers.get("authorization") != "Bearer key":
        return Answer(b"{}", 401)
    replies: dict[str, Any] = {
        "/v1/models": {"data": [{"id": "tiny", "root": "/models/tiny", "max_model_len": 256}]},
        "/version": {"version": "0.32.0"},
        "/tokenize": {"count": 60 + 40 * ("tools" in json.loads(asked.body or b"{}"))},
        "/v1/chat/completions": {"choices": [{"message": {"content": "an answer"}}]},
    }
    return Answer(json.dumps(replies[asked.path]).encode()) if asked.path in replies else Answer(b"", 404)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with scripted(good) as server:
        yield Endpoint(server.url, "key")


def tool(results: list[Any], ending: str = "") -> list[str]:
    """Return a program that prints results in the tool's place."""
    lines = "".join(f"print(json.dumps({line!r}), flush=True)\n" for line in [{"tool": "vllm bench serve 1"}, *results])
    return [sys.executable, "-c", f"import json, sys\njson.load(sys.stdin)\n{lines}{ending}"]


def measured(count: int) -> list[Any]:
    """Return the results of the warm-up and of some jobs."""
    return [{"result": printed(2 if number else 5)} for number in range(count + 1)]


def bench(name: str = "quick", **settings: str) -> Bench:
    return Bench(Project(REPOSITORY), name, settings, limit=20)


def test_a_server_is_asked_about_itself(endpoint: Endpoint) -> None:
    assert endpoint.models() == SERVED
    assert endpoint.version() == "0.32.0"
    assert endpoint.count_tokens("tiny", "hello") == 60
    assert endpoint.answer("tiny", "hello", 8) == "an answer"


def test_a_server_that_cannot_be_measured_is_explained() -> None:
    for answer, reason in (
        (Answer(b"{}", 401), "refuses the key"),
        (Answer(b"out of memory", 500), "status 500: out of memory"),
        (Answer(b"<html>"), "nonsense: <html>"),
        (Answer(b'{"data": []}'), "nonsense"),
    ):
        with scripted(Mock(return_value=answer)) as server, raises("bench-incomplete", match=reason):
            Endpoint(server.url).models()
    with raises("bench-incomplete", match="cannot be reached"):
        Endpoint("http://127.0.0.1:9").models()


def test_neither_messages_nor_results_have_the_password_of_an_address() -> None:
    endpoint = Endpoint("http://me:secret@127.0.0.1:9")
    assert endpoint.public_address == "http://127.0.0.1:9"
    with raises("bench-incomplete") as caught:
        endpoint.models()
    assert "secret" not in str(caught.value)


def test_a_profile_is_fitted_to_a_short_context(endpoint: Endpoint) -> None:
    profiles = load_profiles(REPOSITORY)
    assert fit(endpoint, SERVED, profiles.named("quick"), PROMPTS).output == 64
    chat = fit(endpoint, SERVED, profiles.named("chat"), PROMPTS)
    assert (chat.output, len(chat.left_out)) == (180, 1)
    with raises("bench-incomplete", match="shorter than every depth"):
        fit(endpoint, SERVED, profiles.named("long"), PROMPTS)
    with raises("bench-incomplete", match="leaves 4 for an answer"):
        fit(endpoint, ServedAs("tiny", "", 80), profiles.named("quick"), PROMPTS)


def test_tools_before_the_prompt_leave_less_for_the_answer(endpoint: Endpoint) -> None:
    profile, body = load_profiles(REPOSITORY).named("chat"), Asking(tools=True).body(REPOSITORY)
    plain, tools = fit(endpoint, SERVED, profile, PROMPTS), fit(endpoint, SERVED, profile, PROMPTS, body)
    assert plain.output - tools.output == 40
    assert plain.tokens_per_character == tools.tokens_per_character


def test_depths_are_filled_with_text_that_shares_no_prefix(endpoint: Endpoint) -> None:
    roomy = ServedAs("tiny", "", 10_000)
    found = fit(endpoint, roomy, load_profiles(REPOSITORY).named("long"), PROMPTS)
    assert found.depths == (4096, 8192)
    jobs = bench("long").jobs(found)[1:]
    assert [job.depth for job in jobs] == [4096, 8192] * 3
    first, second = jobs[0].prompts
    assert first[:8] != second[:8]
    assert len(first) * found.tokens_per_character == pytest.approx(4096, rel=0.05)


def measure_with(endpoint: Endpoint, path: Path, command: list[str]) -> None:
    with recording(path, result(measurements=(), complete=False, why="new")) as record:
        measure(bench(), record, endpoint, command, lambda _: None)


def test_a_whole_run_is_complete_and_its_warm_up_is_not_recorded(endpoint: Endpoint, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    measure_with(endpoint, path, tool(measured(15)))
    found = BenchResult.read(path)
    assert (found.complete, found.why, len(found.measurements)) == (True, "", 15)
    assert found.tools == {"vllm bench serve": "1"}
    assert [check.outcome for check in found.sanity] == ["passed", "passed", "not-applicable"]


def test_what_was_measured_before_a_failure_is_kept(endpoint: Endpoint, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with raises("bench-incomplete", match="the tool ended early: boom"):
        measure_with(endpoint, path, tool(measured(2), "sys.exit('boom')"))
    found = BenchResult.read(path)
    assert (found.complete, len(found.measurements)) == (False, 2)
    assert "boom" in found.why


def test_an_interrupt_keeps_what_was_measured_and_a_killed_run_is_not_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.json"

    def interrupted() -> None:
        with recording(path, result()):
            assert not BenchResult.read(path).complete
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    found = BenchResult.read(path)
    assert (found.complete, found.why, len(found.measurements)) == (False, "it was interrupted", 3)


def test_wrong_answers_are_refused_after_all(tmp_path: Path) -> None:
    check = {"name": "no answer is empty", "outcome": "failed", "detail": "1 of 3"}
    with raises("wrong-answers", match="no answer is empty: 1 of 3"):
        refuse_wrong_answers(result(sanity=(check,)), tmp_path)
    refuse_wrong_answers(result(), tmp_path)


def test_the_steps_of_a_start_come_from_the_log() -> None:
    line = "[serve] start in seconds: checks 0.8, imports 28.5, graphs unknown; ready 69.0; warm-up 0.2\n"
    assert steps_of(f"noise\n{line}noise") == {"checks": 0.8, "imports": 28.5, "ready": 69.0, "warm-up": 0.2}
    assert steps_of("nothing") == {}
    log = "[serve] compiled sampling in 79 s\n[serve] kernels of FlashInfer: sampling absent\nnoise"
    assert kernels_of(log) == ("sampling absent", {"sampling": 79.0})
    assert kernels_of("nothing") == ("", {})


def test_gpus_are_summarised_and_missing_figures_stay_missing() -> None:
    lines = [f"0, NVIDIA GB10, 580.95, [N/A], {power}, {clock}" for power, clock in ((40.1, 2400), (44.1, 2600))]
    [gpu] = gpus_in([*lines, "x"])
    assert (gpu.name, gpu.samples) == ("NVIDIA GB10", 2)
    assert (gpu.memory_mb, gpu.power_w, gpu.clock_mhz) == (None, 42.1, 2500)


class Oracle:
    """A server that gives some answers in turn."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    def answer(self, *_: Any) -> str:
        return self.answers.pop(0)


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [(("a", "b", "b"), "passed"), (("a", "a", "b"), "failed"), (("", " ", " "), "failed")],
)
def test_the_same_prompt_has_to_give_the_same_answer(answers: tuple[str, ...], outcome: str) -> None:
    assert check_repeatable(Oracle(*answers), "model").outcome == outcome  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("the " * 30, True),
        ("!" * 200, True),
        ("\ufffd\ufffd\ufffd and some words that make the text long enough", True),
        ("\x00\x01\x02" * 20, True),
        ("42", False),
        ("The Rhine ends in the North Sea, the Danube in the Black Sea, and both are long rivers.", False),
        ("def merge(a, b):\n\treturn sorted(a + b)  # the simplest way, if not the fastest\n", False),
        ("莱茵河流入北海 多瑙河流入黑海 尼罗河流入地中海 这三条河流都很长 它们流经许多国家和城市", False),
    ],
)
def test_garbage_is_recognised(text: str, broken: bool) -> None:  # noqa: FBT001
    assert looks_broken(text) == broken


def test_empty_answers_and_garbage_fail_a_result_but_random_weights_may_write_garbage() -> None:
    empty, garbage = check_answers(["", "yes", "the " * 30], generated=False)
    assert (empty.outcome, empty.detail) == ("failed", "1 of 3, such as ''")
    assert garbage.outcome == "failed"
    assert garbage.detail.startswith("1 of 3, such as 'the the")
    assert {one.outcome for one in check_answers([], generated=False)} == {"not-applicable"}
    empty, garbage = check_answers(["the " * 30], generated=True)
    assert (empty.outcome, garbage.outcome) == ("passed", "not-applicable")


DIGEST = Digest(f"sha256:{'a' * 64}")
TINY = Cell("tiny", "0.32.0", "cpu", "linux/arm64")


def subject(cell: Cell = TINY) -> Subject:
    return Subject(cell=cell, name="x", digest=DIGEST, config=DIGEST, plan_key=Sha256("c" * 64))


@pytest.mark.parametrize(
    ("left", "right", "asked"),
    [
        ({"MAX_NUM_SEQS": "1"}, {"MAX_NUM_SEQS": "2"}, {"setting MAX_NUM_SEQS"}),
        ({}, {"DFLASH_DRAFTER": "off"}, {"setting DFLASH_DRAFTER", "drafter"}),
    ],
)
def test_settings_may_differ_where_they_were_asked_to(
    left: dict[str, str], right: dict[str, str], asked: set[str]
) -> None:
    assert asked_differences(Side(bench(**left), subject()), Side(bench(**right), subject())) == asked


def test_running_servers_are_measured_in_turn_and_may_be_of_other_images(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def bench_url(_: object, endpoint: Endpoint, *_more: object) -> tuple[BenchResult, Path]:
        asked.append(endpoint.address[-1])
        return result(), Path()

    monkeypatch.setattr(running, "bench_url", bench_url)
    left, right = (Side(bench(), subject(), Endpoint(f"http://127.0.0.1:{port}")) for port in (1, 2))
    lefts, rights = run_interleaved(left, right, 3, lambda _: None)
    assert ("".join(asked), len(lefts), len(rights)) == ("122112", 3, 3)
    assert asked_differences(left, right) == {"image", "server", "mods", "tool"}


def test_profiles_that_need_vllm_refuse_images_of_other_servers() -> None:
    cell = select_one(Project(REPOSITORY).matrix, "gemma4-31b@sglang-0.5.21")
    with raises("bad-option", match="needs an image with vLLM"):
        refuse_other_servers(bench(), cell)
    refuse_other_servers(bench("start"), cell)
    with raises("bad-option", match="needs an image with vLLM"):
        bench_url(bench(), Endpoint("http://127.0.0.1:9"), subject(cell), print)
