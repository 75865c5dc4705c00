"""The program behind `./inv`: Invoke's, with failures reported like those of the commands."""

from __future__ import annotations

import gc
import inspect
import os
import re
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from invoke.collection import Collection
from invoke.config import Config
from invoke.exceptions import Exit, ParseError
from invoke.parser import Parser
from invoke.parser.argument import Argument
from invoke.parser.context import ParserContext
from invoke.program import Program
from invoke.util import helpline

from imagefactory.cli import (  # noqa: F401 - their commands register
    answers,
    bench,
    ci,
    images,
    kernels,
    matrix,
    mods,
    offline,
    pair,
    publishing,
    repository,
    trust,
)
from imagefactory.cli.command import COMMANDS
from imagefactory.cli.failures import in_words, prepare_streams
from imagefactory.errors import UsageError, did_you_mean

GROUPS: Final = {
    "images": "Images on this machine",
    "pair": "Two Sparks",
    "offline": "A machine without a network",
    "matrix": "What to build",
    "mods": "Mods",
    "publishing": "Publishing",
    "bench": "Benchmarks",
    "answers": "The same answers",
    "kernels": "Kernels and compiled wheels",
    "trust": "Licences, keys and attestations",
    "repository": "This checkout",
    "ci": "What the workflows call",
}
"""The modules with commands, with what people use first in front."""


def collection(root: Path) -> Collection:
    namespace = Collection(*(task for group, task in COMMANDS if not group))
    for name in dict.fromkeys(group for group, _ in COMMANDS if group):
        namespace.add_collection(Collection(*(task for group, task in COMMANDS if group == name)), name)
    namespace.configure({"checkout": str(root)})
    return namespace


def main(namespace: Collection) -> None:
    gc.set_threshold(50_000)  # imports make objects that stay: looking through them takes a tenth of a start
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # there are none, and looking takes time
    FactoryProgram(name="inv", binary="./inv", namespace=namespace, version="from a checkout").run()


class FactoryProgram(Program):
    """Invoke's program; `build MODEL` means `build --target MODEL`."""

    def core_args(self) -> list[Argument]:
        # Invoke's others are for shell commands that tasks run, and ours run none: `--dry publish` would publish.
        used = {"complete", "debug", "help", "list", "list-depth", "list-format", "print-completion-script", "version"}
        return [argument for argument in super().core_args() if argument.name in used | {"write-pyc"}]

    def run(self, argv: list[str] | None = None, exit: bool = True) -> None:  # noqa: ARG002 - we always exit
        prepare_streams()
        root = Path(self.namespace.configuration()["checkout"] if self.namespace else ".")
        try:
            with in_words("the command line", root):
                self._parse(argv)
                self.execute()
        except Exit as ending:
            if ending.message:
                print(ending.message, file=sys.stderr)
            sys.exit(ending.code)

    def _parse(self, argv: list[str] | None) -> None:
        writes_no_bytecode = sys.dont_write_bytecode
        try:
            self.config = Config(lazy=True)  # without the user's files: no setting of Invoke matters here
            self.parse_core(argv)
            # Invoke forbids bytecode, and compiling our modules at every start would take a second.
            sys.dont_write_bytecode = writes_no_bytecode
            self.parse_collection()
            self.parse_tasks()
            self.parse_cleanup()
        except (ParseError, ValueError) as error:
            raise self._explained(error) from None

    def parse_tasks(self) -> None:
        """Read the commands; `COMMAND --help` asks for help also where Invoke would read it as an argument."""
        line = self._with_groups(self.core.unparsed)
        if line[:1] == ["help"]:
            line = [*line[1:], "--help"] if line[1:] else []
        if line and line[0] in self._bare_groups and set(line[1:]) <= {"-h", "--help"}:
            self.args["list"].value = line[0]
            line = []
        position = next((index for index, word in enumerate(line) if word in {"-h", "--help"}), 0)
        commands = [word for word in line[:position] if word in self.collection.task_names]
        if commands:
            self.args["help"].value = commands[-1]
        self.core.unparsed = [] if commands else self._with_targets(line)
        super().parse_tasks()

    @property
    def _bare_groups(self) -> set[str]:
        """The groups whose name alone is no command."""
        return {name for name, group in self.collection.collections.items() if not group.default}

    def print_task_help(self, name: str) -> None:
        context = self.parser.contexts[name]
        words = [_shown(str(argument.name)) for argument in context.positional_args if argument.kind is not list]
        if "--target" in context.flags and not words:
            words = ["[TARGET]" if context.flags["--target"].kind is str else "[TARGET …]"]
        print("Usage: ./inv", self._called(name), *words, "[OPTIONS]", end="\n\n")
        print(inspect.getdoc(self.collection[name]), end="\n\n")
        if rows := [(_with_value(names, context), text) for names, text in context.help_tuples()]:
            self.print_columns(rows)
        self.list_root = name.partition(".")[0]
        if self.list_root in self.collection.collections:
            self.list_flat()

    def _called(self, name: str) -> str:
        """Return a command's name as people write it: a group's default by the group's name."""
        group, _, command = name.partition(".")
        groups = self.collection.collections
        return group if group in groups and groups[group].default == command else name

    def print_help(self) -> None:
        print("Usage: ./inv COMMAND [TARGET …] [OPTIONS]; `./inv COMMAND --help` explains a command\n")
        self.list_tasks()
        print("Options of ./inv itself, which come before the command:")
        rows = self.initial_context.help_tuples()
        self.print_columns([row for row in rows if "--write-pyc" not in row[0]])  # Invoke asks for it, and we do not

    def list_flat(self) -> None:
        """List the commands by what they are for, with those that people use first in front."""
        for module, title in GROUPS.items():
            rows = [
                (f"{group}.{name}" if group and not task.is_default else group or name, helpline(task))
                for group, task in COMMANDS
                if task.body.__module__.endswith(f".{module}") and self.list_root in {None, group}
                for name in [self.collection.transform(task.name)]
            ]
            if rows:
                print(f"{title}:")
                self.print_columns(rows)

    def _with_groups(self, line: list[str]) -> list[str]:
        """Join a group and its command, which may be written apart: `pair up` means `pair.up`."""
        names = set(self.collection.task_names)
        for index in range(len(line) - 1):
            group, word = line[index : index + 2]
            joined = f"{group}.{word}"
            # A word that a group does not have is joined, too, so that the error suggests those that it has.
            unknown = index == 0 and group in self._bare_groups and not word.startswith("-")
            if (joined in names and group not in names) or unknown:
                return [*line[:index], joined, *line[index + 2 :]]
        return line

    def _with_targets(self, line: list[str]) -> list[str]:
        """Put `--target` before words that can only be targets."""
        contexts = {name: each for each in self.collection.to_contexts() for name in (each.name, *each.aliases)}
        words: list[str] = []
        command: ParserContext | None = None
        is_value = False
        for word in line:
            if is_value:
                is_value = False
            elif word in contexts:
                command = contexts[word]
            elif word.startswith("-"):
                is_value = bool(command and word in command.flags and command.flags[word].takes_value)
            elif (
                command
                and "--target" in command.flags
                and all(argument.kind is list for argument in command.positional_args)
            ):
                words.append("--target")
            words.append(word)
        return words

    def _make_parser(self) -> Parser:
        parser = super()._make_parser()
        for context in parser.contexts.values():
            for argument in context.args.values():
                if argument.kind is list:
                    argument.raw_value = None  # else `build --target` would build the default target
        return parser

    def _explained(self, error: Exception) -> UsageError:
        context: Any = getattr(error, "context", None)
        why = str(error) or type(error).__name__
        missing = re.search(r"did not receive required positional arguments: (.*)", why, re.DOTALL)
        if missing and context:
            return _missing(context, re.findall(r"'([^']+)'", missing[1]))
        unknown = re.fullmatch(r"No idea what '(.*)' is!", why, re.DOTALL)
        if unknown:
            why = self._unknown(unknown[1], context) or why
        if valueless := re.fullmatch(r"Flag <Argument: (\w+).*> needed value and was not given one!", why):
            why = f"--{valueless[1].strip('_').replace('_', '-')} needs a value."
        return UsageError(
            "bad-command-line",
            "The command line cannot be understood.",
            where=f"the command {self._called(context.name)}" if context and context.name else "the command line",
            why=why,
            fix="`./inv --list` shows all commands, `./inv COMMAND --help` explains one.",
        )

    def _unknown(self, word: str, context: ParserContext | None) -> str:
        """Say what may be meant by a word that Invoke does not know; of commands, only those that are near."""
        if word.startswith("-"):
            near = [*{*(context.flags if context else ()), *self.initial_context.flags}]
        else:
            names = sorted({"help", *map(str, self.collection.task_names)})
            near = [name for name in names if name.endswith(f".{word}")] or get_close_matches(word, names, cutoff=0.5)
        if near:
            return f"No idea what '{word}' is! {did_you_mean(word, near)}"
        if context and context.name:
            return f"{self._called(context.name)} takes no further word, and '{word}' is no command."
        return ""


def _with_value(names: str, context: ParserContext) -> str:
    """Show that an option takes a value also if it can be repeated, which Invoke does not."""
    *short, long = names.split(", ")
    is_list = context.flags[long.partition("=")[0].replace("[no-]", "")].kind is list
    return ", ".join([*(f"{name} STRING" for name in short), f"{long}=STRING"]) if is_list else names


def _missing(context: ParserContext, names: list[str]) -> UsageError:
    """Say what a command lacks, in the words of its help."""
    words = " ".join(_shown(name) for name in names)
    usage = " ".join(_shown(str(argument.name)) for argument in context.positional_args)
    needs = "; ".join(f"{_shown(name)} is {context.args[name].help or 'missing'}" for name in names)
    return UsageError(
        "bad-command-line",
        f"`./inv {context.name}` needs {words}.",
        where=f"the command {context.name}",
        why=f"{needs}.",
        fix=f"Run `./inv {context.name} {usage}`; `./inv {context.name} --help` explains it.",
    )


def _shown(name: str) -> str:
    """Return what stands for an argument on the command line; Python's keywords end in an underscore here."""
    return name.strip("_").upper()
