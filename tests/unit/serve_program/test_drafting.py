"""Tests what is reported of drafts: acceptance, by position too, and a drafter that never drafts."""

import pytest

from images.serve.program.drafting import ENOUGH, REPORT_EVERY, Reporter, acceptance, paying_tokens
from images.serve.program.servers.server import Drafts
from images.serve.program.servers.vllm import counters

METRICS = b"""# HELP vllm:spec_decode_num_drafts_total Number of drafts.
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 400.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 187.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 82.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 61.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="2"} 40.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="3"} 4.0
vllm:generation_tokens_total{engine="0",model_name="m"} 287.0
"""
BY_POSITION = (
    "accepted by position: 1 82%, 2 61%, 3 40%, 4 4%; 3 of 4 draft tokens pay "
    "(each adds 5% or more to what a step gives)"
)


def test_acceptance_is_computed_from_the_metrics_by_position_too() -> None:
    now = counters(METRICS)
    assert now == Drafts(100.0, 400.0, 187.0, 287.0, (82.0, 61.0, 40.0, 4.0))
    assert list(acceptance(now)) == ["draft acceptance 47%: 1.9 of 4 tokens per draft (100 drafts)", BY_POSITION]
    assert list(acceptance(now.since(now))) == []
    [low] = acceptance(Drafts(100.0, 1500.0, 30.0))
    assert low.endswith("; DFLASH_DRAFTER=off may be faster for this kind of text")


def test_positions_of_several_engines_add_up_and_their_order_does_not_matter() -> None:
    second = METRICS.replace(b'engine="0"', b'engine="1"')
    lines = (METRICS + second).splitlines(keepends=True)
    assert counters(b"".join(reversed(lines))).positions == (164.0, 122.0, 80.0, 8.0)


@pytest.mark.parametrize(
    ("rates", "paying"),
    [
        ([], 0),
        ([0.04], 0),
        ([0.05], 1),
        ([0.9, 0.09], 1),
        ([0.9, 0.1], 2),
        ([0.8, 0.6, 0.0, 0.5], 2),
    ],
)
def test_a_draft_token_pays_if_it_adds_to_what_a_step_gives_without_it(rates: list[float], paying: int) -> None:
    assert paying_tokens(rates) == paying


def test_only_what_is_new_is_reported_every_ten_minutes() -> None:
    reporter, first = Reporter(), counters(METRICS)
    assert len(list(reporter.look(0.0, first))) == 2
    assert list(reporter.look(1.0, first)) == list(reporter.look(REPORT_EVERY, first)) == []
    more = Drafts(200.0, 800.0, 187.0, 387.0, (82.0, 61.0, 40.0, 4.0))
    assert list(reporter.look(REPORT_EVERY + 1, more)) == []
    acceptance_line, positions = reporter.look(2 * REPORT_EVERY, more)
    assert acceptance_line.startswith("draft acceptance 0%: 0.0 of 4 tokens per draft (100 drafts)")
    assert "0 of 4 draft tokens pay" in positions


def test_a_drafter_that_never_drafts_is_told_once() -> None:
    reporter = Reporter()
    assert list(reporter.look(0.0, Drafts(generated=ENOUGH - 1))) == []
    [line] = reporter.look(5.0, Drafts(generated=ENOUGH))
    assert line.startswith("WARNING: the drafter has drafted nothing for 1,000 tokens")
    assert list(reporter.look(10.0, Drafts(generated=9 * ENOUGH))) == []
    [line] = Reporter().look(0.0, Drafts(1.0, 4.0, 0.0, ENOUGH))
    assert line.startswith("draft acceptance 0%")
