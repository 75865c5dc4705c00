"""What a server makes of the panel: the log-probabilities of fixed tokens, and everything that they are bound to."""

from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, model_validator

from imagefactory.check.bench.result import BenchMachine, BoundTo
from imagefactory.errors import InputError
from imagefactory.project.data import DATA, load_data
from imagefactory.project.locks.files import Document, Frozen

PANEL: Final = Path(DATA, "panel.yaml")
TOP: Final = 20  # the likeliest tokens of each place that are compared; vLLM gives no more by default


class PanelText(Frozen):
    """A text of the panel."""

    kind: str
    text: str


class Panel(Frozen):
    """Texts of several kinds, under a version."""

    version: int
    chat: tuple[dict[str, str], ...]  # messages, for the chat template
    windows: tuple[PanelText, ...]

    @classmethod
    def of(cls, root: Path) -> Self:
        return load_data(root, PANEL.name, cls)


class Measured(Frozen):
    """Numbers as a server gives them: NaN, too. A file that lost it would look sound."""

    model_config = ConfigDict(ser_json_inf_nan="constants")


class Window(Measured):
    """The tokens of a text, and what the server thinks of all but the first."""

    kind: str
    tokens: tuple[int, ...]
    own: tuple[float, ...]  # the log-probability of each token after the first
    top: tuple[dict[int, float], ...]  # the log-probabilities of the likeliest tokens in its place

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if not len(self.tokens) - 1 == len(self.own) == len(self.top):
            raise ValueError("a window needs a log-probability for every token but the first")
        return self


class Continuation(Measured):
    """What the server writes after the first half of a text, always choosing the likeliest token."""

    kind: str
    tokens: tuple[int, ...]
    top: tuple[dict[int, float], ...]  # the log-probabilities of the likeliest tokens in the place of each

    @model_validator(mode="after")
    def _counts_agree(self) -> Self:
        if len(self.tokens) != len(self.top):
            raise ValueError("a continuation needs log-probabilities for every token")
        return self


class Outcome(Frozen):
    """Whether a scenario passed."""

    name: str
    passed: bool
    why: str = ""  # what the answer lacked


class AnswersResult(Document):
    """A measurement of the panel."""

    indent: ClassVar[int | None] = None  # a line for each number would multiply the file

    format: Literal[1] = 1
    panel: int  # the version of the panel
    started: AwareDatetime
    bound: BoundTo
    machine: BenchMachine
    chat: tuple[int, ...] = ()  # the tokens of the panel's chat; empty if the server does not say
    windows: tuple[Window, ...] = Field(min_length=1)
    continuations: tuple[Continuation, ...] = ()
    behaviour: int = 0  # the version of the scenarios; 0 without any
    outcomes: tuple[Outcome, ...] = ()

    @staticmethod
    def unreadable(where: Path | str, why: str) -> InputError:
        fix = "Name a file that `./inv answers` wrote, or measure again."
        return InputError("bad-answers", "The answers cannot be read.", where=where, why=why, fix=fix)


def window_of(kind: str, tokens: list[int], places: list[dict[int, float]]) -> Window:
    """Return the window of what a server said about every token but the first; raise ValueError if it lacks one."""
    if len(places) != len(tokens) - 1 or any(
        token not in place for token, place in zip(tokens[1:], places, strict=False)
    ):
        raise ValueError("the server left out log-probabilities of the prompt")
    values = [place[token] for token, place in zip(tokens[1:], places, strict=True)]
    return Window(kind=kind, tokens=tuple(tokens), own=tuple(values), top=tuple(map(_likeliest, places)))


def _likeliest(place: dict[int, float]) -> dict[int, float]:
    # Ties go to the smaller number, so that both sides cut the list alike.
    return {token: place[token] for token in sorted(place, key=lambda token: (-place[token], token))[:TOP]}


def vllm_places(answer: Any) -> list[dict[int, float]]:  # noqa: ANN401 - JSON
    # Nothing comes before the first token, so it has no log-probability.
    places = answer["choices"][0]["prompt_logprobs"][1:]
    return [{int(token): float(entry["logprob"]) for token, entry in place.items()} for place in places]


def vllm_written(answer: Any) -> tuple[list[int], list[dict[int, float]]]:  # noqa: ANN401 - JSON
    choice = answer["choices"][0]
    # Asked to, vLLM names a token by its number: token_id:17.
    places = [
        {int(token.partition(":")[2]): float(value) for token, value in place.items()}
        for place in choice["logprobs"]["top_logprobs"]
    ]
    return [int(token) for token in choice["token_ids"]], places


def sglang_places(answer: Any) -> list[dict[int, float]]:  # noqa: ANN401 - JSON
    about = answer["meta_info"]
    # Each entry is a log-probability, a token and its text; that of the first token is empty.
    entries, likeliest = about["input_token_logprobs"][1:], about["input_top_logprobs"][1:]
    return [
        {int(token): float(value) for value, token, *_ in (*(top or ()), entry)}
        for entry, top in zip(entries, likeliest, strict=True)
    ]


def sglang_written(answer: Any) -> tuple[list[int], list[dict[int, float]]]:  # noqa: ANN401 - JSON
    about = answer["meta_info"]
    tokens = [int(token) for _, token, *_ in about["output_token_logprobs"]]
    return tokens, [
        {int(token): float(value) for value, token, *_ in place or ()} for place in about["output_top_logprobs"]
    ]
