"""The command line: unknown commands, options and values end with a message and an exit code."""

from __future__ import annotations

from typing import Any

import pytest

from imagefactory.commands.collection import collection
from imagefactory.errors.commands import InternalError, OptionError, UsageError
from imagefactory.errors.matrix import UnknownNameError
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.inv import Inv, check_failure

CONTEXTS: dict[str, Any] = {str(context.name): context for context in collection(REPOSITORY).to_contexts()}
REQUIRED = {
    name: [argument.name for argument in context.positional_args if argument.kind is not list]
    for name, context in CONTEXTS.items()
}
OPTIONS = [
    (name, flag, argument)
    for name, context in CONTEXTS.items()
    for flag, argument in context.flags.items()
    if flag.startswith("--")
]
SWITCHES = {name: flag for name, flag, argument in OPTIONS if not argument.takes_value}
ODD = {
    "blank": " ",
    "newline": "\n",
    "escape": "\x1b[31m\x07",
    "surrogate": "\udcff\udc80",
    "very long": "x" * 5000,
    "dash": "-",
    "unicode": "模型…",
    "format": "%s{0}",
    "glob of nothing": "nosuch*",
    "open bracket": "[",
    "many parts": "a/b/c/d/e",
    "empty part": "big@",
}
NUMBERS = [
    ("build", "--workers"),
    ("push", "--workers"),
    ("compile", "--jobs"),
    ("clean", "--older-than"),
    ("clean", "--larger-than"),
    ("prune", "--staging"),
    ("prune", "--nightlies"),
    ("prune", "--keep"),
    ("ci.status", "--broken"),
]
NO_NUMBERS = ["abc", "-3", "-0.5", "nan", "inf", "-inf", "1e400", "9" * 5000, "٣", "0x10", "1,5", "None"]


def with_arguments(name: str) -> list[str]:
    """Return a command with something for each argument that it requires."""
    return [name, *("x" for _ in REQUIRED[name])]


def test_every_command_and_option_has_a_help_text() -> None:
    tasks = collection(REPOSITORY)
    assert [name for name in CONTEXTS if not tasks[name].__doc__] == []
    assert [f"{name} {flag}" for name, flag, argument in OPTIONS if not argument.help] == []


@pytest.mark.parametrize("name", CONTEXTS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_explains_itself(inv: Inv, name: str, flag: str) -> None:
    for line in ([name, flag], [*with_arguments(name), flag]):
        done = inv(*line)
        assert done.returncode == 0
        assert f" {name} " in done.stdout.splitlines()[0]


def test_a_word_after_a_command_is_a_target(inv: Inv) -> None:
    named = inv("targets", "--json", "-t", "big/gpu", "--target=tiny").stdout
    assert inv("targets", "--json", "big/gpu", "tiny").stdout == named
    assert inv("targets", "-t", "big/gpu", "tiny", "--json").stdout == named
    assert named.count('"model"') == 2
    assert inv("targets", "big/gpu", "--json", "targets", "tiny", "--json").stdout.count("[") == 2
    assert "no command 'big'" in inv.fails(UsageError, "doctor", "big")


@pytest.mark.parametrize("name", CONTEXTS)
def test_every_command_refuses_an_unknown_option(inv: Inv, name: str) -> None:
    assert "--no-such-option" in inv.fails(UsageError, *with_arguments(name), "--no-such-option")


@pytest.mark.parametrize("name", [name for name, required in REQUIRED.items() if required])
def test_every_command_names_a_missing_argument(inv: Inv, name: str) -> None:
    assert REQUIRED[name][0].replace("_", "-") in inv.fails(UsageError, name)


@pytest.mark.parametrize(
    ("name", "flag"), [(name, flag) for name, flag, argument in OPTIONS if argument.takes_value]
)
def test_every_option_that_takes_a_value_requires_one(inv: Inv, name: str, flag: str) -> None:
    assert "needs a value" in inv.fails(UsageError, name, flag)


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_refuses_a_value(inv: Inv, name: str) -> None:
    inv.fails(UsageError, *with_arguments(name), f"{SWITCHES[name]}=surplus")


@pytest.mark.parametrize(
    "line",
    [
        ["bilud"],
        ["--no-such-option"],
        ["doctor", "surplus"],
        ["ci.nothing"],
        ["--help", "bilud"],
        ["--list", "nosuch"],
        ["--list-depth", "abc", "--list"],
        ["--command-timeout", "abc", "plan"],
        ["--config"],
        ["--print-completion-script", "nosuch"],
        ["--complete", "--", "inv 'unclosed"],
        ["--list", "--list-format", "json", "--list-depth", "1"],
        ["\udcff"],
        ["模型"],
        ["x" * 5000],
        ["-"],
        [""],
        ["plan", "--target=big", "-"],
    ],
    ids=repr,
)
def test_command_lines_that_make_no_sense_are_usage_errors(inv: Inv, line: list[str]) -> None:
    inv.fails(UsageError, *line)


def test_typos_get_the_nearest_name_as_a_suggestion(inv: Inv) -> None:
    assert "Did you mean build?" in inv.fails(UsageError, "bilud")
    assert "--target" in inv.fails(UsageError, "build", "--traget", "x")
    assert "flat" in inv.fails(OptionError, "--list", "--list-format", "flt")
    assert "Did you mean 2.0?" in inv.fails(UnknownNameError, "plan", "--target", "big@2.1")


@pytest.mark.parametrize(
    "line", [["--list"], ["--help"], ["--help", "build"], ["build", "--help"], ["--version"], []], ids=repr
)
def test_help_lists_and_the_version_succeed(inv: Inv, line: list[str]) -> None:
    assert inv(*line).returncode == 0


@pytest.mark.parametrize(("name", "option"), NUMBERS)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: value[:9])
def test_numeric_options_refuse_other_values(inv: Inv, name: str, option: str, value: str) -> None:
    needs = ["{}"] if name == "ci.status" else []
    assert option in inv.fails(OptionError, name, *needs, f"{option}={value}")


@pytest.mark.parametrize("name", [name for name, flag, _ in OPTIONS if flag == "--target"])
@pytest.mark.parametrize("odd", ["glob of nothing", "surrogate", "many parts"])
def test_every_command_refuses_unknown_targets(inv: Inv, name: str, odd: str) -> None:
    done = inv(*with_arguments(name), f"--target={ODD[odd]}")
    check_failure(done)
    assert 10 <= done.returncode < 126
    assert done.returncode != InternalError.exit_code


@pytest.mark.parametrize("odd", ODD)
def test_odd_names_are_unknown_names(inv: Inv, odd: str) -> None:
    inv.fails(UnknownNameError, "plan", f"--target={ODD[odd]}")
    inv.fails(UnknownNameError, "compile", f"--vllm={ODD[odd]}")
    inv.fails(UnknownNameError, "mods.diff", ODD[odd] if odd != "dash" else "nosuch")
    inv.fails(UnknownNameError, "audit", "big", f"--arch={ODD[odd]}")
