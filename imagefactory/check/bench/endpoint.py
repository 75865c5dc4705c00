"""Asks the server under test about itself, and checks that its answers make sense."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import requests

from imagefactory.check.bench.result import SanityCheck
from imagefactory.check.smoke.containers import Container
from imagefactory.errors import CheckError, clean
from imagefactory.store.digests import parse_json
from imagefactory.store.http import Response, ask, new_session, reason_of

_PATIENCE: Final = 300  # seconds to connect, and between two bytes
_LARGEST: Final = 16 * 1024 * 1024  # the longest answer in bytes: a list of models, or 48 tokens
_MOST_TOKENS: Final = 1_000_000_000
_LONGEST_WORD: Final = 1000
_REFUSED: Final = (401, 403)


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server."""

    address: str
    key: str = ""
    container: Container | None = None  # the container of the server, if this run started it

    @property
    def public_address(self) -> str:
        """The address without a name and a password, as messages and results have it."""
        return re.sub("//[^/]*@", "//", self.address)

    def models(self) -> ServedAs:
        document = self.json("GET", "/v1/models")
        try:
            first = document["data"][0]
            name, context = first["id"], _tokens(first.get("max_model_len") or 0)
            return ServedAs(_word(name), _word(first.get("root") or name), context)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise self._odd("/v1/models", document) from None

    def version(self) -> str:
        """Return the server's version, or an empty text if it does not say."""
        try:
            document = self.json("GET", "/version")
        except CheckError:
            return ""
        return clean(str(document.get("version", ""))[:_LONGEST_WORD]) if isinstance(document, dict) else ""

    def count_tokens(self, model: str, prompt: str, more: str = "") -> int | None:
        """Return the tokens of a chat with one message, and what else a request has, or None if it is unknown."""
        try:
            document = self.json("POST", "/tokenize", _chat(model, prompt) | parse_json(more or "{}"))
            return _tokens(document["count"])
        except (CheckError, KeyError, TypeError, ValueError):
            return None

    def answer(self, model: str, prompt: str, tokens: int) -> str:
        path = "/v1/chat/completions"
        document = self.json("POST", path, _chat(model, prompt) | {"max_tokens": tokens, "temperature": 0})
        try:
            message = document["choices"][0]["message"]
            # Servers differ in how they name reasoning; an answer of few tokens may be nothing else.
            parts = (message.get(name) for name in ("reasoning_content", "reasoning", "content"))
            # JSON may hold half a surrogate pair, which UTF-8 cannot.
            return "".join(part for part in parts if part).encode("utf-8", "replace").decode()
        except (KeyError, IndexError, TypeError, AttributeError):
            raise self._odd(path, document) from None

    def death(self) -> str:
        """Describe the end of the server's container, if it has ended."""
        if self.container is None or self.container.is_running:
            return ""
        last = " | ".join(self.container.log.strip().splitlines()[-3:])
        return f". The server ended with code {self.container.exit_code}: {last[-400:]}"

    def json(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            with new_session() as session:
                url, timeout = f"{self.address}{path}", (_PATIENCE, _PATIENCE)
                reply = ask(session, method, url, json=body, headers=headers, timeout=timeout, limit=_LARGEST)
        except requests.RequestException as error:
            slow = isinstance(error, requests.Timeout)
            failed = "does not answer in time" if slow else "cannot be reached, or understood"
            why = f"It {failed} ({reason_of(error)})."
            raise self._failed(path, why, "Check that the server runs and is reachable.") from None
        if reply.status in _REFUSED:
            fix = "Set VLLM_API_KEY to the server's key."
            raise self._failed(path, f"It refuses the key (status {reply.status}).", fix)
        if not reply.ok:
            why = f"It answers with status {reply.status}: {_shown(reply)}"
            raise self._failed(path, why, "Read the server's log.")
        try:
            return parse_json(reply.body)
        except ValueError:
            raise self._odd(path, _shown(reply)) from None

    def _failed(self, path: str, why: str, fix: str) -> CheckError:
        what = "The server cannot be measured."
        return CheckError("bench-incomplete", what, where=f"{self.public_address}{path}", why=why, fix=fix)

    def _odd(self, path: str, answer: object) -> CheckError:
        why = f"It answers nonsense: {clean(str(answer)[:200])}"
        return self._failed(path, why, "Check that it is an OpenAI-compatible server.")


def _shown(reply: Response) -> str:
    return clean(reply.body[:200].decode("utf-8", "replace"))


def _word(value: object) -> str:
    """Return a name that can be sent, stored and printed; raise ValueError for anything else."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= _LONGEST_WORD:
        raise ValueError
    return value


def _tokens(value: object) -> int:
    """Return a number of tokens; raise ValueError if it is none."""
    if not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
        raise ValueError
    return value


def _chat(model: str, prompt: str) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}]}


@dataclass(frozen=True)
class ServedAs:
    """A model as its server names it."""

    name: str
    root: str  # the repository or folder that it was loaded from, which has the tokenizer
    context: int  # tokens of prompt and answer at most; 0 if unknown


_PROMPT: Final = "Name three rivers, and say in one sentence where each of them ends."
_TOKENS: Final = 48
_JUDGED: Final = 40  # shorter answers are not judged: yes and 42 are answers too
_MOST_ODD: Final = 0.05
_MOST_OF_ONE_WORD: Final = 0.5


def check_repeatable(endpoint: Endpoint, model: str) -> SanityCheck:
    """Ask the same three times at temperature 0, and compare the last two; the first fills the cache of prefixes."""
    _, second, third = (endpoint.answer(model, _PROMPT, _TOKENS) for _ in range(3))
    detail = "" if second == third else f"{second[:80]!r}, then {third[:80]!r}"
    detail = detail if second.strip() else "the answer is empty"
    return _check("the same prompt gives the same answer", detail)


def check_answers(texts: Iterable[str], *, generated: bool) -> list[SanityCheck]:
    """Check that measured answers are neither empty nor garbage; random weights write nothing but garbage."""
    texts = list(texts)

    def check(name: str, bad: list[str]) -> SanityCheck:
        if not texts:
            return SanityCheck(name=name, outcome="not-applicable", detail="there are no answers")
        return _check(name, f"{len(bad)} of {len(texts)}, such as {bad[0][:80]!r}" if bad else "")

    garbage = check("no answer is garbage", [text for text in texts if looks_broken(text)])
    if generated:
        garbage = garbage.model_copy(update={"outcome": "not-applicable", "detail": "the weights are random"})
    return [check("no answer is empty", [text for text in texts if not text.strip()]), garbage]


def looks_broken(text: str) -> bool:
    """Return whether a text has undecodable or control characters, or repeats one word."""
    text = text.strip()
    if len(text) < _JUDGED:
        return False
    odd = sum(
        character == "\ufffd" or (unicodedata.category(character) in {"Cc", "Cn", "Co"} and character not in "\n\t\r")
        for character in text
    )
    words = text.split()
    most = Counter(words).most_common(1)[0][1] / len(words)
    # A single word of a few characters that go on and on.
    few = len(words) == 1 and len(set(text)) < len(text) / 8
    return odd / len(text) > _MOST_ODD or (len(words) >= 10 and most > _MOST_OF_ONE_WORD) or few  # noqa: PLR2004


def _check(name: str, detail: str) -> SanityCheck:
    return SanityCheck(name=name, outcome="failed" if detail else "passed", detail=detail)
