"""The command line: unknown commands, options and values end with a message and an exit code."""

import pytest

from imagefactory.cli.program import collection
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.inv import Inv

COMMANDS = collection(REPOSITORY)
CONTEXTS = COMMANDS.to_contexts()


def test_every_command_and_option_has_a_help_text() -> None:
    for context in CONTEXTS:
        assert COMMANDS[context.name].__doc__, context.name
        assert [flag for flag, argument in context.flags.items() if not argument.help] == [], context.name
        assert "-h" not in context.flags, context.name


@pytest.mark.parametrize("line", ["mods.new --help", "mods.new x -h", "--help mods.new"])
def test_a_command_explains_itself_wherever_help_is_asked_for(inv: Inv, line: str) -> None:
    done = inv(*line.split())
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "Usage: ./inv mods.new NAME [OPTIONS]"


def test_help_says_what_a_command_and_its_options_take(inv: Inv) -> None:
    said = inv("plan", "--help").stdout
    assert said.startswith("Usage: ./inv plan [TARGET …] [OPTIONS]\n")
    assert inv("bench", "--help").stdout.startswith("Usage: ./inv bench [TARGET] [OPTIONS]\n"), "as it was typed"
    assert "--target=STRING " in said, "also of an option that can be repeated"
    assert "Push compiled wheels" in inv("wheels.push", "--help").stdout, "which has no options"


def test_a_word_after_a_command_is_a_target(inv: Inv) -> None:
    named = inv("targets", "--json", "-t", "big/gpu", "--target=tiny").stdout
    assert inv("targets", "--json", "big/gpu", "tiny").stdout == named
    assert inv("targets", "-t", "big/gpu", "tiny", "--json").stdout == named
    assert named.count('"model"') == 2
    assert inv("targets", "big/gpu", "--json", "targets", "tiny", "--json").stdout.count("[") == 2
    for word in ("answers", "answers.measure"):  # a group's default command, by both names
        assert "big/nope" in inv.fails("unknown-name", word, "big/nope")
    assert "bench takes no further word, and 'tiny'" in inv.fails("bad-command-line", "bench", "big", "tiny")
    assert "'big'" in inv.fails("bad-command-line", "doctor", "big")
    assert "doctor takes no further word" in inv.fails("bad-command-line", "doctor", "xyzzy")
    assert "Known" not in inv.fails("bad-command-line", "xyzzy")


@pytest.mark.parametrize(
    "line",
    [
        ["bilud"],
        ["plan", "--no-such-option"],
        ["mods.new"],  # without its argument
        ["build", "--target"],  # without a value
        ["plan", "--json=surplus"],
        ["--list-depth", "abc", "--list"],
        ["--dry", "targets"],  # of Invoke, whose tasks run shells; ours would do all the same
        ["\udcff"],
    ],
    ids=lambda line: repr(line)[:40],
)
def test_command_lines_that_make_no_sense_are_usage_errors(inv: Inv, line: list[str]) -> None:
    inv.fails("bad-command-line", *line)


def test_a_missing_argument_is_asked_for_in_the_words_of_the_help(inv: Inv) -> None:
    said = inv.fails("bad-command-line", "explain", "--target", "big")
    assert "`./inv explain` needs PATH." in said
    assert "PATH is a file in the image, such as" in said
    assert "needs FIRST SECOND" in inv.fails("bad-command-line", "answers.compare")
    one_missing = inv.fails("bad-command-line", "answers.compare", "tiny")
    assert "needs SECOND" in one_missing
    assert "Run `./inv answers.compare FIRST SECOND`" in one_missing
    assert "Run `./inv upgrade FROM`" in inv.fails("bad-command-line", "upgrade")  # in Python, `from` is a keyword
    assert "--target needs a value." in inv.fails("bad-command-line", "build", "--target")
    assert "--with needs a value." in inv.fails("bad-command-line", "pair", "up", "--with")


def test_audit_takes_a_target_by_name_or_by_option_and_says_what_has_no_gpu(inv: Inv) -> None:
    for words in (["tiny/cpu"], ["--target", "tiny/cpu"]):
        said = inv.fails("not-auditable", "audit", *words)
        assert "cpu has no GPU" in said
        assert "or --arch: gpu." in said
    assert "Nothing is named" in inv.fails("bad-option", "audit")


def test_typos_get_the_nearest_name_as_a_suggestion(inv: Inv) -> None:
    assert "Did you mean build?" in inv.fails("bad-command-line", "bilud")
    assert "Did you mean pair.logs?" in inv.fails("bad-command-line", "logs")
    assert "tiny. `./inv targets` lists all." in inv.fails("unknown-name", "plan", "nosuch")
    assert "Did you mean --target" in inv.fails("bad-command-line", "build", "--traget", "x")
    setting = ("run", "--print", "--image=x@sha256:" + "0" * 64, "--set=MAX_NUM_SEQ=1")
    assert "Did you mean MAX_NUM_SEQS" in inv.fails("bad-setting", *setting)
    assert "Did you mean 2.0?" in inv.fails("unknown-name", "plan", "--target", "big@2.1")


@pytest.mark.parametrize("value", ["abc", "-3", "nan", "9" * 5000, "\u0663", "1_0", "0", "1.5"], ids=repr)
def test_numeric_options_refuse_other_values(inv: Inv, value: str) -> None:
    assert "--workers" in inv.fails("bad-option", "build", f"--workers={value}")


@pytest.mark.parametrize(
    "odd", [" ", "\x1b[31m\x07", "\udcff", "x" * 5000, "nosuch*", "[", "a/b/c/d/e", "big@"], ids=repr
)
def test_odd_names_are_unknown_names(inv: Inv, odd: str) -> None:
    inv.fails("unknown-name", "plan", f"--target={odd}")
    inv.fails("unknown-name", "audit", "big", f"--arch={odd}")


def test_commands_are_listed_by_use_and_those_of_workflows_last(inv: Inv) -> None:
    assert [inv(*line).returncode for line in ([], ["--help"], ["--list"], ["--version"])] == [0, 0, 0, 0]
    text = inv().stdout
    names = ("build", "run", "mods.check", "publish", "bench", "ci.plan")
    places = [text.index(f"\n  {name} ") for name in names]
    assert places == sorted(places)
    assert text.index("\n  ci.") < text.index("--print-completion-script")
    assert text == inv("help").stdout
    listed = inv("--list").stdout
    defaults = {"bench.run", "answers.measure", "models.limits", "news.releases"}  # listed as their groups
    assert {f"\n  {context.name} " in listed for context in CONTEXTS if context.name not in defaults} == {True}
    assert "--print-completion-script" not in listed
    assert "build" not in inv("--list", "mods").stdout
    assert inv("help", "plan").stdout == inv("plan", "--help").stdout
    # A group that is a command explains its options.
    assert inv("bench", "--help").stdout == inv("bench.run", "--help").stdout
    assert "measure this running server instead" in inv("bench", "--help").stdout


@pytest.mark.parametrize("group", ["ci", "keys", "mods", "pair", "recipes", "wheels"])
def test_the_name_of_a_group_lists_its_commands(inv: Inv, group: str) -> None:
    listed = inv("--list", group)
    assert listed.stdout.count(f"\n  {group}.") == sum(name.startswith(f"{group}.") for name in COMMANDS.task_names)
    for line in ((group,), (group, "--help"), ("help", group)):
        done = inv(*line)
        assert (done.returncode, done.stdout) == (0, listed.stdout), line
    assert f"Did you mean {group}." in inv.fails("bad-command-line", group, "nosuch")


def test_help_on_a_command_of_a_group_lists_the_others(inv: Inv) -> None:
    assert "\n  bench.compare " in inv("bench", "--help").stdout
    assert "\n  pair.down " in inv("pair", "up", "--help").stdout
    assert "\n  pair.down " not in inv("build", "--help").stdout
