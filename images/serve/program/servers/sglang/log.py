"""Reads SGLang's log and metrics."""

import re
from collections.abc import Iterable

from ...timeline import Moments, timed
from ..server import Choices, LogLines

READ, BEGIN, END, READY = "server_args=", "Load weight begin", "Load weight end", "max_total_num_tokens="
LINES = LogLines(
    telling=("backend by default", "default attention backend", "draft attention backend"),
    steps=(READ, BEGIN, END, READY),
)
_MODEL = re.compile(r"Use (\w+) (?:backend by default|as default attention backend)")
_DRAFT = re.compile(r"draft attention backend to (\w+)")
WORK = re.compile(
    rb"^sglang:(?:(realtime_tokens_total)|num_(?:running|queue)_reqs)(?:\{[^}]*\})? ([0-9.e+-]+)", re.MULTILINE
)
"""Its other counters of tokens grow only as requests end, which a batch of long ones may not do for an hour."""
_METRIC = re.compile(
    rb"^sglang:(spec_verify_calls_total|spec_num_draft_tokens|generation_tokens_total)(?:\{[^}]*\})? ([0-9.e+]+)",
    re.MULTILINE,
)


def moments(lines: Iterable[str], found: Moments) -> Moments:
    for moment, text in timed(lines):
        if text.startswith(READ) and found.imported is None:
            found = found._replace(imported=moment)
        elif text.startswith(BEGIN) and found.loading is None:
            found = found._replace(loading=moment)
        elif text.startswith(END):
            found = found._replace(loaded=moment)
        elif text.startswith(READY):
            found = found._replace(captured=moment)
    return found


def choices(lines: Iterable[str]) -> Choices:
    """Find the attention backends; SGLang does not log those that its flags name."""
    text = "\n".join(lines)
    found = [*_MODEL.findall(text), *_DRAFT.findall(text)]
    return Choices(tuple(dict.fromkeys(found)), (), ())


def drafted(metrics: bytes) -> tuple[float, float, float]:
    """Read the numbers of drafts, drafted tokens and accepted tokens from the metrics.

    Every draft is verified by one call, which gives one token more than it accepts.
    """
    calls = generated = block = 0.0
    for name, value in _METRIC.findall(metrics):
        if name == b"spec_verify_calls_total":
            calls += float(value)
        elif name == b"generation_tokens_total":
            generated += float(value)
        else:
            block = max(block, float(value))
    return calls, calls * max(0.0, block - 1), max(0.0, generated - calls)
