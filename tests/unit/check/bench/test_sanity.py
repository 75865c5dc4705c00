"""Answers are checked: a fast broken server does not win."""

from typing import Any

import pytest

from imagefactory.check.bench.endpoint import check_answers, check_repeatable, looks_broken


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
