"""Checks the answers of a server, so that a fast broken one does not win."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from typing import Final

from imagefactory.bench.endpoint import Endpoint
from imagefactory.bench.result import SanityCheck

_PROMPT: Final = "Name three rivers, and say in one sentence where each of them ends."
_TOKENS: Final = 48
_JUDGED: Final = 40
"""Shorter answers are not judged: yes and 42 are answers too."""
_MOST_ODD: Final = 0.05
_MOST_OF_ONE_WORD: Final = 0.5


def check_repeatable(endpoint: Endpoint, model: str) -> SanityCheck:
    """Ask the same three times at temperature 0, and compare the last two; the first fills the cache of prefixes."""
    _, second, third = (endpoint.answer(model, _PROMPT, _TOKENS) for _ in range(3))
    name = "the same prompt gives the same answer"
    if not second.strip():
        return SanityCheck(name=name, outcome="failed", detail="the answer is empty")
    if second == third:
        return SanityCheck(name=name, outcome="passed")
    return SanityCheck(name=name, outcome="failed", detail=f"{second[:80]!r}, then {third[:80]!r}")


def check_answers(texts: Iterable[str], *, generated: bool) -> list[SanityCheck]:
    """Check that measured answers are neither empty nor garbage; random weights write nothing but garbage."""
    texts = list(texts)
    empty = sum(not text.strip() for text in texts)
    checks = [_check("no answer is empty", empty, len(texts), "")]
    name = "no answer is garbage"
    if generated:
        return [*checks, SanityCheck(name=name, outcome="not-applicable", detail="the weights are random")]
    bad = [text for text in texts if looks_broken(text)]
    return [*checks, _check(name, len(bad), len(texts), bad[0] if bad else "")]


def looks_broken(text: str) -> bool:
    """Return whether a text has undecodable or control characters, or repeats one word."""
    text = text.strip()
    if len(text) < _JUDGED:
        return False
    odd = sum(
        character == "\ufffd"
        or (unicodedata.category(character) in {"Cc", "Cn", "Co"} and character not in "\n\t\r")
        for character in text
    )
    words = text.split()
    most = Counter(words).most_common(1)[0][1] / len(words)
    few = len(words) == 1 and len(set(text)) < len(text) / 8
    return odd / len(text) > _MOST_ODD or (len(words) >= 10 and most > _MOST_OF_ONE_WORD) or few  # noqa: PLR2004


def _check(name: str, bad: int, total: int, example: str) -> SanityCheck:
    if not total:
        return SanityCheck(name=name, outcome="not-applicable", detail="there are no answers")
    if not bad:
        return SanityCheck(name=name, outcome="passed")
    detail = f"{bad} of {total}" + (f", such as {example[:80]!r}" if example else "")
    return SanityCheck(name=name, outcome="failed", detail=detail)
