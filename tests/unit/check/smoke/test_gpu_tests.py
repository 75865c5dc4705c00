"""The tests of the levels container and gpu, with fake servers that log what the serve program would."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from imagefactory.check.smoke.levels import test_gpu as smoke
from imagefactory.check.smoke.levels.test_container import unexplained
from imagefactory.project.servers.known import SERVERS
from images.serve.program import watch
from images.serve.program.servers.vllm import SERVER as VLLM

MARLIN = "Your GPU does not have native support for FP4 computation but FP4 quantization is being used."


class Served:
    """A server with a log, and metrics that change with every request."""

    def __init__(self, log: list[str], metrics: Iterator[str] | None = None) -> None:
        chosen = VLLM.choices(log)
        lines = watch.report(chosen, drafting=True)
        self.container = SimpleNamespace(log="\n".join(f"[serve] {line}" for line in lines))
        self.metrics = metrics

    def get(self, path: str) -> Any:
        assert path == "/metrics"
        assert self.metrics is not None
        return SimpleNamespace(content=next(self.metrics).encode())

    def post(self, path: str, body: dict[str, object]) -> Any:
        assert path == smoke.CHAT
        self.asked = body
        answer = {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}
        return SimpleNamespace(status_code=200, json=lambda: answer)


def applies(condition: bool, reason: str) -> None:  # noqa: FBT001
    assert condition, reason


LOG = [
    "Using TRITON_ATTN backend out of potential backends: ['TRITON_ATTN']",
    "Using FLASH_ATTN backend out of potential backends: ['FLASH_ATTN']",
]
INTENDED = {"ATTENTION_BACKEND": "triton_attn", "DRAFT_ATTENTION_BACKEND": "flash_attn"}


def check_backends(served: Served, intended: dict[str, str]) -> None:
    smoke.test_the_intended_backends_are_used(served, intended, SERVERS["vllm"], applies)  # type: ignore[arg-type]


def test_the_intended_backends_pass_and_others_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check_backends(Served(LOG), INTENDED)
    check_backends(Served(LOG), {"ATTENTION_BACKEND": "auto"})
    check_backends(Served(LOG[:1]), {**INTENDED, "DFLASH_DRAFTER": "off"})
    monkeypatch.setattr(smoke, "PATIENCE", 0)
    for log, fault in (
        (LOG[1:], "model attention by FLASH_ATTN, intended: triton_attn"),
        ([], "does not say"),
        ([*LOG, MARLIN], "FP4 runs through Marlin"),
    ):
        with pytest.raises(AssertionError, match=fault):
            check_backends(Served(log), INTENDED)


def metrics(*counts: tuple[int, int, int]) -> Iterator[str]:
    for drafts, drafted, accepted in counts:
        yield (
            f'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}\n'
            f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}\n'
            f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}\n'
        )


def drafting(*counts: tuple[int, int, int]) -> dict[str, object]:
    figures: dict[str, object] = {}
    smoke.test_drafts_are_accepted(
        Served(LOG, metrics(*counts)),  # type: ignore[arg-type]
        "model",
        {"DFLASH_DRAFTER": "somebody/drafter"},
        VLLM,
        applies=applies,
        record_property=figures.__setitem__,
    )
    return figures


def test_acceptance_excludes_earlier_requests_and_a_useless_drafter_is_found() -> None:
    assert drafting((10, 150, 0), (20, 300, 60)) == {"draft_acceptance": 0.4}
    for after, words in (((20, 300, 5), "5 of 150 drafted tokens"), ((10, 150, 0), "nothing was drafted")):
        with pytest.raises(AssertionError, match=words):
            drafting((10, 150, 0), after)


def test_generated_weights_answer_and_may_say_anything() -> None:
    figures: dict[str, object] = {}
    served: Any = Served(LOG)
    smoke.test_the_model_serves((served, 30.0), "model", {"LOAD_FORMAT": "dummy"}, figures.__setitem__)
    with pytest.raises(AssertionError, match="it says"):
        smoke.test_the_model_serves((served, 30.0), "model", {}, figures.__setitem__)
    smoke.test_tokens_per_second_are_measured(served, "model", {"LOAD_FORMAT": "dummy"}, figures.__setitem__)
    assert served.asked["ignore_eos"]
    generated = {"DFLASH_DRAFTER": "somebody/drafter", "LOAD_FORMAT": "dummy"}
    with pytest.raises(AssertionError, match="by chance"):
        smoke.test_drafts_are_accepted(
            served, "model", generated, VLLM, applies=applies, record_property=figures.__setitem__
        )


HELP = """usage: server serve [-h] --model-path PATH [--dtype {auto,half}]
                    [--port PORT] [--trust-remote-code]
options:
  --port PORT, --listen PORT
                        Where to listen.
"""


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("server serve --model-path a --dtype half --port 1 --trust-remote-code", []),
        ("server serve --model-type llm --listen 1", []),
        ("server serve --dtype float8", ["--dtype float8"]),
        ("server serve --ports 1 --dtype auto", ["--ports"]),
    ],
)
def test_flags_and_values_that_the_help_lacks_are_found(command: str, wrong: list[str]) -> None:
    assert unexplained(command.split(), HELP) == wrong
