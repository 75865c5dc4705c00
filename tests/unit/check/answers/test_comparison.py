"""Answers are judged by how far they are apart, beside the noise of two starts; a record says it in a line."""

import gzip
import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from imagefactory.check.answers.comparison import Change, Figures, change, figures, judge, refuse_other_dummies
from imagefactory.check.answers.record import AnswersRecord, judged
from imagefactory.check.answers.result import (
    AnswersResult,
    Continuation,
    Outcome,
    Window,
    sglang_places,
    sglang_written,
    vllm_places,
    vllm_written,
    window_of,
)
from imagefactory.check.bench.result import BenchMachine, BoundTo, GpuUse
from imagefactory.publish.answers import compact
from tests.fixtures.failures import raises

TOKENS = [5, 6, 7]
PLACES = [{6: math.log(0.5), 7: math.log(0.25)}, {7: math.log(0.75), 5: math.log(0.2)}]


def measured(places: list[dict[int, float]] = PLACES, bound: Mapping[str, object] | None = None) -> AnswersResult:
    known = {"target": "m@0.32.0/cpu/amd64", "server": "vllm", "server_version": "0.32.0", "model": "m"} | {
        "model_revision": "a"
    }
    return AnswersResult(
        panel=1,
        started=datetime(2026, 1, 1, tzinfo=UTC),
        bound=BoundTo.model_validate(known | dict(bound or {})),
        machine=BenchMachine(platform="linux/amd64", kernel="6", cpus=2, memory=1),
        windows=(window_of("code", TOKENS, places),),
    )


SHORTER = measured().model_copy(
    update={"windows": (Window(kind="code", tokens=(5, 6), own=(-1.0,), top=({6: -1.0},)),)}
)


def test_equal_answers_are_nowhere_apart() -> None:
    assert figures(measured(), measured()) == Figures(2, 0.0, 0.0, 1.0, 0.0, 1.0)


def test_figures_are_those_of_the_definition() -> None:
    other = [{6: math.log(0.25), 7: math.log(0.5)}, PLACES[1]]
    found = figures(measured(), measured(other))
    # 0.5 log(0.5 / 0.25) + 0.25 log(0.25 / 0.5) + 0.25 log(0.25 / 0.25), at one of two places
    assert found.divergence == pytest.approx(0.25 * math.log(2) / 2)
    assert found.same_choice == 0.5
    assert found.difference == pytest.approx(math.log(2) / 2)
    assert found.perplexity == pytest.approx(math.sqrt(2))


def test_sides_without_a_likely_token_in_common_are_far_apart() -> None:
    other = [{6: -30.0, 9: math.log(0.9)}, PLACES[1]]
    ours = [{6: math.log(0.5)}, PLACES[1]]
    assert figures(measured(ours), measured(other)).divergence > 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 800.0, 1e308, -1e308], ids=repr)
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_no_log_probability_is_a_change(value: float, count: int) -> None:
    good, bad = measured(), measured([*({6: value, 7: value, 5: value} for _ in range(count)), *PLACES[count:]])
    bad = AnswersResult.from_json(bad.to_json(), "a file")  # what was wrong is wrong after writing, too
    for left, right in ((good, bad), (bad, good), (bad, bad)):
        between = figures(left, right)
        assert between.unsound == count
        assert all(math.isfinite(number) for number in vars(between).values() if isinstance(number, float))
        verdict, why = judge("code", between, figures(good, good))
        assert verdict == "changed"
        assert f"in {count} places" in why
    assert judge("nothing", figures(bad, bad), None)[0] == "changed"


def test_a_continuation_that_is_no_number_is_a_change() -> None:
    between = figures(written([1], {1: -0.1}), written([1], {1: math.nan}))
    assert judge("code", between, figures(measured(), measured()))[0] == "changed"


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        ({}, "nothing"),
        ({"digest": f"sha256:{'1' * 64}"}, "code"),
        ({"server_version": "0.28.0"}, "kernels"),
        ({"settings": {"ATTENTION_BACKEND": "flashinfer"}}, "kernels"),
        ({"target": "m@0.32.0/h100/amd64"}, "kernels"),
        ({"settings": {"EXTRA_ARGS": "--moe-backend triton"}}, "kernels"),
        ({"settings": {"EXTRA_ARGS": """--speculative-config '{"method": "ngram"}'"""}}, "drafter"),
        ({"settings": {"EXTRA_ARGS": "--speculative-config {} --moe-backend triton"}}, "kernels"),
        ({"settings": {"DFLASH_DRAFTER": "z-lab/draft"}}, "drafter"),
        ({"settings": {"QUANTIZATION": "fp8"}}, "formats"),
        ({"model_revision": "b"}, "formats"),
        ({"model_revision": ""}, "nothing"),
        ({"settings": {"MODEL_PATH": "/models/other"}}, "formats"),
    ],
)
def test_what_changed_decides_how_far_apart_is_too_far(bound: dict[str, object], expected: str) -> None:
    assert change(measured(), measured(bound=bound)) == expected


def test_a_folder_is_the_model_whatever_the_image_was_made_for() -> None:
    first, second = (measured(bound={"model": name, "settings": {"MODEL_PATH": "/models/m"}}) for name in "ab")
    assert change(first, second) == "nothing"


def apart(divergence: float, other: float = 0.0) -> Figures:
    return Figures(100, divergence, divergence, 1 - other, 0.0, 1.0)


@pytest.mark.parametrize(
    ("what", "found", "noise", "verdict"),
    [
        ("code", apart(0), apart(0), "same"),
        ("code", apart(5e-8), apart(0), "changed"),
        ("code", apart(5e-6), apart(2e-6), "same"),
        ("code", apart(0, 0.01), apart(0), "changed"),
        ("code", apart(1e-2), apart(1e-2), "cannot tell"),
        ("kernels", apart(1e-3), apart(0), "same"),
        ("kernels", apart(1e-2), apart(0), "changed"),
        ("kernels", apart(0), None, "cannot tell"),
        ("formats", apart(0), apart(0), "changed"),
        ("drafter", replace(apart(0), partings=1, widest=0.2), apart(0), "same"),
        ("drafter", replace(apart(0), partings=1, widest=0.5), apart(0), "changed"),
        ("drafter", replace(apart(0), partings=1, widest=0.5), replace(apart(0), widest=0.2), "same"),
        ("kernels", replace(apart(0), partings=1, widest=0.5), apart(0), "same"),
        ("code", replace(apart(0), chance=0.03), apart(0), "changed"),
    ],
)
def test_the_verdict_follows_noise_and_floor(what: Change, found: Figures, noise: Figures | None, verdict: str) -> None:
    assert judge(what, found, noise)[0] == verdict


def test_another_chat_template_is_a_change() -> None:
    one, other = (measured().model_copy(update={"chat": chat}) for chat in ((1, 2), (1, 3)))
    assert judge("code", figures(one, other), apart(0)) == (
        "changed",
        "a chat becomes other tokens: the chat template differs",
    )
    assert figures(one, measured()).same_chat  # one of them does not say


def written(tokens: list[int], *places: dict[int, float]) -> AnswersResult:
    one = Continuation(kind="code", tokens=tuple(tokens), top=places)
    return measured().model_copy(update={"continuations": (one,)})


@pytest.mark.parametrize(
    ("tokens", "places", "partings", "widest"),
    [
        ([5, 6], [{5: -0.1}, {6: -0.9, 7: -1.0}], 0, 0.0),
        # They part at the first token, and what follows does not count.
        ([4, 7], [{4: -0.2, 5: -0.3}, {7: -0.1}], 1, 0.4),
        ([5, 7], [{5: -0.1}, {7: -0.9, 6: -1.0}], 1, 0.1),
        # What the first side finds likely is not among the second's.
        ([5, 7], [{5: -0.1}, {7: -0.9}], 1, math.log(1e12) - 0.9),
        ([5], [{5: -0.1}], 1, math.log(1e12)),
    ],
)
def test_continuations_are_compared_until_they_part(
    tokens: list[int], places: list[dict[int, float]], partings: int, widest: float
) -> None:
    first = written([5, 6], {5: -0.1, 4: -0.5}, {6: -0.9, 7: -1.0})
    found = figures(first, written(tokens, *places))
    assert (found.continuations, found.partings) == (1, partings)
    assert found.widest == pytest.approx(widest)


@pytest.mark.parametrize(
    ("first", "second", "chance"),
    [("111111", "000000", 1 / 32), ("11111", "00000", 1 / 16), ("1110", "0001", 0.625), ("10", "10", 1.0)],
)
def test_scenarios_are_paired(first: str, second: str, chance: float) -> None:
    def outcomes(passed: str) -> AnswersResult:
        listed = tuple(Outcome(name=str(number), passed=one == "1") for number, one in enumerate(passed))
        return measured().model_copy(update={"behaviour": 1, "outcomes": listed})

    found = figures(outcomes(first), outcomes(second))
    assert found.chance == pytest.approx(chance)
    assert found.only_first == tuple(
        str(n) for n, pair in enumerate(zip(first, second, strict=True)) if pair == ("1", "0")
    )
    assert figures(outcomes(first), measured()).scenarios == 0


def test_other_tokens_are_not_compared() -> None:
    with raises("incomparable", "other tokens"):
        figures(measured(), SHORTER)


def test_both_servers_are_read_alike() -> None:
    ours = {"choices": [{"prompt_logprobs": [None, {"6": {"logprob": -1.0}, "7": {"logprob": -2.0}}]}]}
    theirs = {
        "meta_info": {
            "input_token_logprobs": [[None, 5, None], [-1.0, 6, None]],
            "input_top_logprobs": [None, [[-2.0, 7, None]]],
        }
    }
    assert vllm_places(ours) == sglang_places(theirs) == [{6: -1.0, 7: -2.0}]
    top = {"token_id:6": -1.0, "token_id:7": -2.0}
    wrote = {"choices": [{"token_ids": [6], "logprobs": {"top_logprobs": [top]}}]}
    written = {"output_token_logprobs": [[-1.0, 6, None]], "output_top_logprobs": [[[-1.0, 6, None], [-2.0, 7, None]]]}
    assert vllm_written(wrote) == sglang_written({"meta_info": written}) == ([6], [{6: -1.0, 7: -2.0}])


def test_a_server_that_leaves_something_out_is_not_measured() -> None:
    with pytest.raises(ValueError, match="left out"):
        window_of("code", [5, 9], [{6: -1.0}])


BASE = measured(bound={"digest": f"sha256:{'1' * 64}"})
NEAR = measured([{6: math.log(0.51), 7: math.log(0.25)}, PLACES[1]])
"""As far away as other kernels may be."""
RECORD = AnswersRecord(
    digest=f"sha256:{'2' * 64}",
    plan_key="3" * 64,
    target="m@0.32.0/gb10/arm64",
    panel=1,
    started=datetime(2026, 11, 17, tzinfo=UTC),
    verdict="cannot tell",
    why="it was not measured",
    base=f"sha256:{'1' * 64}",
)
SPARK = BenchMachine(
    platform="linux/arm64", kernel="6", cpus=20, memory=1, gpus=(GpuUse(name="NVIDIA GB10", driver="1"),)
)
COMPARED = "compared with sha256:111111111111, measured on linux/amd64, 2026-11-17"


@pytest.mark.parametrize(
    ("result", "base", "other_kernels", "line"),
    [
        (measured(), None, False, "answers measured on linux/amd64, 2026-11-17; there was nothing to compare with"),
        (measured(), BASE, False, "same answers as sha256:111111111111, measured on linux/amd64, 2026-11-17"),
        (NEAR, BASE, True, "same answers as sha256:111111111111, measured on linux/amd64, 2026-11-17"),
        (NEAR, BASE, False, f"answers changed: KL 1.5e-04 is above 1.0e-08; {COMPARED}"),
        (
            SHORTER,
            BASE,
            False,
            f"answers changed: the same texts became other tokens: tokenizer or context length differ; {COMPARED}",
        ),
    ],
)
def test_the_verdict_is_one_line(
    result: AnswersResult, base: AnswersResult | None, *, other_kernels: bool, line: str
) -> None:
    assert judged(RECORD, result, base=base, again=result, other_kernels=other_kernels).line == line


DUMMY = {"settings": {"LOAD_FORMAT": "dummy"}}


@pytest.mark.parametrize(
    ("first", "second", "other"),
    [
        (DUMMY, DUMMY | {"server_version": "0.33.0"}, True),
        (DUMMY, DUMMY | {"server": "sglang"}, True),
        (DUMMY, DUMMY | {"server_version": "0.32.0-native"}, False),
        ({}, {"server_version": "0.33.0"}, False),
    ],
)
def test_each_release_generates_other_weights(
    first: dict[str, object], second: dict[str, object], *, other: bool
) -> None:
    # vLLM 0.32.0 and 0.33.0 with the same shape were 28 nats apart.
    left, right = measured(bound=first), measured(bound=second)
    assert (judged(RECORD, right, base=left, again=right).verdict == "first") is other
    with raises("incomparable", "generates other weights") if other else nullcontext():
        refuse_other_dummies(left.bound, right.bound)


def test_a_line_names_gpus_the_reason_and_what_failed() -> None:
    changed = RECORD.model_copy(update={"verdict": "changed", "why": "KL", "machine": SPARK, "accepted": "new weights"})
    assert changed.line == (
        "answers changed: new weights (KL); compared with sha256:111111111111, measured on NVIDIA GB10, 2026-11-17"
    )
    assert RECORD.line.startswith("cannot tell whether answers changed: it was not measured; compared with sha256:111")
    assert RECORD.line.endswith("tried on 2026-11-17")


def test_what_is_attached_says_the_same_as_what_was_measured() -> None:
    certain = measured([{6: -1.1920928955078125e-07, 7: -15.942384719848633}, {7: -0.30000001192092896}])
    read = AnswersResult.model_validate_json(gzip.decompress(compact(certain)))
    assert figures(certain, read).divergence < 1e-12
    assert read.bound == certain.bound
