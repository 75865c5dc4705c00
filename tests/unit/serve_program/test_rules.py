"""Tests the language of rules.json, and that its rules use nothing else."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from images.serve.program import errors, rules
from images.serve.program.image import TITLES

FACTS = rules.Facts(
    {"cache": "fp8_e4m3", "drafter": "z-lab/Gemma-4", "on": True, "off": None, "few": 2, "many": 9},
    {"KV_CACHE_DTYPE"},
    lambda version: version <= "0.21",
)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (["given", "KV_CACHE_DTYPE"], True),
        (["given", "cache"], False),
        (["set", "off"], False),
        (["is", "on", True], True),
        (["is", "off", False], False),
        (["is", "cache", "auto", "fp8_e4m3"], True),
        (["same", "cache", "drafter"], False),
        (["less", "few", "many"], True),
        (["less", "off", "many"], False),
        (["starts", "cache", "int8", "fp8"], True),
        (["contains", "drafter", "gemma-4"], True),
        (["at-least", "0.20"], True),
        (["before", "0.22"], True),
        (["not", ["set", "on"]], False),
        (["all", ["set", "on"], ["set", "off"]], False),
        (["any", ["set", "on"], ["set", "off"]], True),
    ],
)
def test_a_condition_holds_or_not(condition: list[Any], *, holds: bool) -> None:
    assert rules.holds(condition, FACTS) is holds


def test_texts_name_the_facts() -> None:
    rule = {"when": ["set", "few"], "remedy": "Set {few} of {many}."}
    assert list(rules.matching([rule], FACTS)) == [{"remedy": "Set 2 of 9."}]


def _rules() -> Iterator[dict[str, Any]]:
    for document in (rules.common(), *map(rules.of_server, TITLES)):
        for kind in ("contradictions", "refusals", "combinations"):
            yield from document.get(kind, [])


def test_every_rule_names_known_facts_and_every_refusal_is_an_error_with_an_exit_code() -> None:
    for rule in _rules():
        texts = " ".join(str(text) for name, text in rule.items() if name != "when")
        known = {*_words(rule["when"]), "version", "capability", "cache", "drafter"}
        assert set(re.findall(r"\{(\w+)\}", texts)) <= known
    named = {rule["error"] for rule in _rules() if "error" in rule}
    assert named
    assert named <= errors.EXIT_CODES.keys()


def _words(condition: list[Any]) -> Iterator[str]:
    for part in condition:
        yield from _words(part) if isinstance(part, list) else [str(part)]


def test_growing_segments_are_refused_with_a_kv_cache_on_disk_and_doubted_where_they_broke_a_model() -> None:
    values = {"ALLOCATOR": "expandable", "KV_DISK": "/kv", "model": "deepseek-ai/DeepSeek-V4.1", "NODES": 1}
    facts = rules.Facts(values, {"ALLOCATOR"}, lambda _: True)
    assert [rule["against"] for rule in rules.matching(rules.of_server("vllm")["contradictions"], facts)] == ["KV_DISK"]
    [doubted] = rules.matching(rules.of_server("sglang")["combinations"], facts)
    assert (doubted["result"], doubted["setting"]) == ("warn", "ALLOCATOR")
    without = facts._replace(values=values | {"ALLOCATOR": "native"})
    known = [*rules.of_server("vllm")["contradictions"], *rules.of_server("sglang")["combinations"]]
    assert list(rules.matching(known, without)) == []
