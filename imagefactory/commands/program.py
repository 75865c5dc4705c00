"""The program behind `./inv` and `invoke`; it reports usage errors like every other failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.exceptions import Exit, ParseError
from invoke.exceptions import UnknownFileType as UnknownConfiguration
from invoke.parser import Parser
from invoke.parser.context import ParserContext
from invoke.program import Program

from imagefactory.commands.failures import in_words, prepare_streams
from imagefactory.errors import did_you_mean
from imagefactory.errors.commands import OptionError, UsageError

if TYPE_CHECKING:
    from invoke.collection import Collection

_HELP = "`./inv --list` shows all commands, `./inv --help COMMAND` explains one."
_LISTS = ("flat", "nested", "json")


def _reporting(step: str) -> Callable[..., None]:
    """Return a step of invoke's program that reports failures as messages."""

    def run(program: FactoryProgram, *args: Any) -> None:
        with program._parsing():  # noqa: SLF001 - a method of that class
            getattr(Program, step)(program, *args)

    return run


class FactoryProgram(Program):
    """Invoke's program, with each step reporting failures as messages."""

    parse_core = _reporting("parse_core")
    parse_collection = _reporting("parse_collection")
    update_config = _reporting("update_config")

    def create_config(self) -> None:
        """Read invoke's configuration files."""
        prepare_streams()
        with self._parsing():
            try:
                super().create_config()
            except Exception as error:  # noqa: BLE001 - YAML, JSON or Python code, and none of it ours
                raise UsageError(
                    "Invoke's own configuration cannot be read.",
                    where="~/.invoke.yaml or /etc/invoke.yaml, or .json, .py and .yml",
                    why=f"{type(error).__name__}: {str(error)[:200]}",
                    fix="Fix or remove the file; the factory does not need it.",
                ) from None

    def parse_tasks(self) -> None:
        """Read the commands.

        `COMMAND --help` asks for help also where invoke would read it as an argument, and `build MODEL` means
        `build --target MODEL`.
        """
        line: list[str] = self.core.unparsed
        asked = next((index for index, word in enumerate(line) if word in {"-h", "--help"}), 0)
        commands = [word for word in line[:asked] if word in self.collection.task_names]
        if commands:
            self.args["help"].value = commands[-1]
        self.core.unparsed = [] if commands else self._with_targets(line)
        with self._parsing():
            super().parse_tasks()

    def _with_targets(self, line: list[str]) -> list[str]:
        """Put `--target` before words that can only be targets."""
        contexts = {name: context for context in self.collection.to_contexts() for name in _names(context)}
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
            elif command and _takes_targets(command):
                words.append("--target")
            words.append(word)
        return words

    def parse_cleanup(self) -> None:
        """Act on --list and --help."""
        with self._parsing():
            layout = self.args["list-format"].value
            if layout not in _LISTS:
                raise OptionError(
                    f"There is no format {layout!r} for lists.",
                    where="the --list-format option",
                    why=did_you_mean(layout, _LISTS).capitalize(),
                    fix=f"Choose one of {', '.join(_LISTS)}.",
                )
            super().parse_cleanup()

    def execute(self) -> None:
        """Run the commands."""
        with in_words("the command line", self._root):
            super().execute()

    @property
    def _root(self) -> Path | None:
        """The checkout, once its commands are loaded."""
        commands = getattr(self, "collection", self.namespace)
        return Path(commands.configuration()["checkout"]) if commands else None

    def task_list_opener(self, extra: str = "") -> str:
        """Return the same heading for `./inv --list` and `invoke --list`; invoke has two."""
        about = [f"in {self.list_root}"] if self.list_root else []
        about += [f"depth {self.list_depth}"] if self.list_depth else []
        about += [extra] if extra else []
        return f"Commands ({'; '.join(about)})" if about else "Commands"

    def _make_parser(self) -> Parser:
        parser = super()._make_parser()
        for context in parser.contexts.values():
            for argument in context.args.values():
                if argument.kind is list:
                    argument.raw_value = None  # else a list option at the end of the line would need no value
        return parser

    @contextmanager
    def _parsing(self) -> Iterator[None]:
        with in_words("the command line", self._root):
            try:
                yield
            except ParseError as error:
                raise self._explained(error) from None
            except Exit as ending:
                if ending.message:
                    raise _usage(str(ending.message), _HELP) from None
                raise
            except (ValueError, EOFError, UnknownConfiguration) as error:
                raise _usage(str(error) or type(error).__name__, _HELP) from None

    def _explained(self, error: ParseError) -> UsageError:
        """Turn a parse error into one that names the nearest command or option."""
        text = str(error)
        context: Any = error.context
        name = getattr(context, "name", None)
        if unknown := re.fullmatch(r"No idea what (['\"])(?P<word>.*)\1 is!", text, re.DOTALL):
            word = unknown["word"]
            if word.startswith("-"):
                known = [*(context.flags if context else ()), *self.initial_context.flags]
                where = f"the command {name}" if name else "the command line"
                return _unknown(f"There is no option {word[:100]}.", where, word, known)
            commands = [str(known) for known in self.collection.task_names]
            where = f"what follows the command {name}" if name else "the command line"
            return _unknown(f"There is no command {word[:100]!r}.", where, word, commands)
        if lacking := re.match(r"Flag <Argument: (?P<flag>[\w-]+)", text):
            flag = f"--{lacking['flag'].strip('_').replace('_', '-')}"
            return _usage(f"{flag} needs a value.", f"Write it as {flag}=VALUE. {_HELP}", name)
        return _usage(text.rstrip("!.") + ".", f"`./inv --help {name}` shows them." if name else _HELP, name)


def _names(context: ParserContext) -> list[str]:
    return [str(context.name), *map(str, context.aliases)]


def _takes_targets(command: ParserContext) -> bool:
    return "--target" in command.flags and all(argument.kind is list for argument in command.positional_args)


def _unknown(what: str, where: str, word: str, known: list[str]) -> UsageError:
    return UsageError(what, where=where, why=did_you_mean(word, known).capitalize(), fix=_HELP)


def _usage(why: str, fix: str, command: str | None = None) -> UsageError:
    return UsageError(
        "The command line cannot be understood.",
        where=f"the command {command}" if command else "the command line",
        why=why,
        fix=fix,
    )


def take_over(program: Program) -> None:
    """Turn plain `invoke`, which loads our commands halfway through its steps, into our program."""
    if type(program) is Program:
        prepare_streams()
        program.__class__ = FactoryProgram


def main(namespace: Collection) -> None:
    """Run `./inv`."""
    FactoryProgram(
        name="inv", binary="./inv", binary_names=["inv"], namespace=namespace, version="from a checkout"
    ).run()
