"""Whatever a user types, sets or breaks: a command ends with four parts and its own exit code, not a traceback."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from imagefactory.commands.collection import collection
from imagefactory.commands.program import main
from imagefactory.errors import FactoryError
from imagefactory.errors.ci import RunFailedError
from imagefactory.errors.commands import InternalError, OptionError, UsageError
from imagefactory.errors.kernels import AuditError
from imagefactory.errors.layers import ImageMissingError
from imagefactory.errors.locks import LockFormatError, LockMissingError
from imagefactory.errors.matrix import MatrixError, UnknownNameError, YamlSyntaxError
from imagefactory.errors.mods import ModManifestError
from imagefactory.errors.registry import BadReferenceError
from imagefactory.errors.serving import SettingRefusedError
from imagefactory.errors.store import OutputError
from imagefactory.errors.supply import SigningError
from imagefactory.errors.system import (
    FileMissingError,
    PathUnusableError,
    UnreadableTextError,
)
from tests.fixtures.checkouts import REPOSITORY, Checkout

PARTS = ["error", "  where", "  why", "  next"]
CONTEXTS: dict[str, Any] = {str(context.name): context for context in collection(REPOSITORY).to_contexts()}
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
    "empty part": "gemma4-31b@",
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


class Inv:
    """Runs the program of `./inv` in this process, on a checkout that is nobody else's."""

    def __init__(
        self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.root = root
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        monkeypatch.chdir(root)
        # No Docker, no git, no index, no registry: what is refused is refused before anybody is asked.
        monkeypatch.setenv("PATH", str(root / "no programs"))
        monkeypatch.setenv("DOCKER_HOST", f"unix://{root}/no-daemon")
        monkeypatch.setenv("PIP_INDEX_URL", (root / "no-index").as_uri())
        monkeypatch.setenv("FACTORY_REGISTRY", "127.0.0.1:9/nobody/nothing")
        monkeypatch.setenv("FACTORY_DEBIAN_MIRROR", str(root / "no-mirror"))

    def __call__(self, *arguments: str) -> tuple[int, str]:
        self._monkeypatch.setattr(sys, "argv", ["inv", *arguments])
        with pytest.raises(SystemExit) as ended:
            main(collection(self.root))
        shown = self._capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, shown.out + shown.err

    def fails(self, kind: type[FactoryError], *arguments: str) -> str:
        """Run a command that has to fail like this; return what it says."""
        code, text = self(*arguments)
        assert code == kind.exit_code, text
        check_words(text)
        return text


def check_words(text: str) -> None:
    """Check that an error is told in its four parts, once."""
    assert "Traceback" not in text
    assert re.findall(r"^(error|  where|  why|  next): +\S", text, re.MULTILINE) == PARTS, text


@pytest.fixture(scope="module")
def shared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout that no test changes."""
    return copy_checkout(tmp_path_factory.mktemp("shared") / "checkout")


def copy_checkout(root: Path) -> Path:
    root.mkdir()
    for name in ("matrix.yaml", "tasks.py"):
        shutil.copy(REPOSITORY / name, root)
    for name in ("locks", "mods", "images"):
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "imagefactory").symlink_to(REPOSITORY / "imagefactory")
    return root


@pytest.fixture
def inv(shared_root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inv:
    return Inv(shared_root, monkeypatch, capsys)


@pytest.fixture
def spoiled(
    factory_checkout: Checkout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Inv:
    """The same on a checkout that a test may spoil."""
    return Inv(factory_checkout.root, monkeypatch, capsys)


# The command line


@pytest.mark.parametrize("name", CONTEXTS)
def test_every_command_refuses_an_unknown_option(inv: Inv, name: str) -> None:
    positional = [argument for argument in CONTEXTS[name].positional_args if argument.kind is not list]
    said = inv.fails(UsageError, name, *("x" for _ in positional), "--no-such-option")
    assert "--no-such-option" in said


@pytest.mark.parametrize("name", [name for name, context in CONTEXTS.items() if context.positional_args])
def test_every_command_says_which_argument_is_missing(inv: Inv, name: str) -> None:
    missing = [argument.name for argument in CONTEXTS[name].positional_args if argument.kind is not list]
    if missing:
        assert missing[0].replace("_", "-") in inv.fails(UsageError, name)


def options_with_values() -> Iterator[tuple[str, str]]:
    """Every option of every command that takes a value."""
    for name, context in CONTEXTS.items():
        for flag, argument in context.flags.items():
            if argument.takes_value and flag.startswith("--"):
                yield name, flag


@pytest.mark.parametrize(("name", "flag"), list(options_with_values()))
def test_every_option_that_takes_a_value_needs_one(inv: Inv, name: str, flag: str) -> None:
    assert "needs a value" in inv.fails(UsageError, name, flag)


def switches() -> Iterator[tuple[str, str]]:
    for name, context in CONTEXTS.items():
        flags = [flag for flag, arg in context.flags.items() if not arg.takes_value and flag.startswith("--")]
        if flags:
            yield name, flags[0]


@pytest.mark.parametrize(("name", "flag"), list(switches()))
def test_a_switch_takes_no_value(inv: Inv, name: str, flag: str) -> None:
    positional = [argument for argument in CONTEXTS[name].positional_args if argument.kind is not list]
    inv.fails(UsageError, name, *("x" for _ in positional), f"{flag}=surplus")


@pytest.mark.parametrize(
    "line",
    [
        ["bilud"],
        ["--no-such-option"],
        ["build", "surplus"],
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
        ["plan", "--target=gemma4-31b", "-"],
    ],
    ids=repr,
)
def test_a_command_line_that_makes_no_sense_says_so(inv: Inv, line: list[str]) -> None:
    inv.fails(UsageError, *line)


def test_mistyped_commands_and_options_are_answered_with_the_nearest(inv: Inv) -> None:
    assert "Did you mean build?" in inv.fails(UsageError, "bilud")
    assert "--target" in inv.fails(UsageError, "build", "--traget", "x")
    assert "flat" in inv.fails(OptionError, "--list", "--list-format", "flt")


def test_what_is_asked_for_on_purpose_succeeds(inv: Inv) -> None:
    for line in (["--list"], ["--help"], ["--help", "build"], ["build", "--help"], ["--version"], []):
        code, text = inv(*line)
        assert code == 0, text


# Options


@pytest.mark.parametrize(("name", "option"), NUMBERS)
@pytest.mark.parametrize("value", NO_NUMBERS, ids=lambda value: value[:9])
def test_what_is_no_number_is_refused_before_anything_starts(
    inv: Inv, name: str, option: str, value: str
) -> None:
    needs = ["{}"] if name == "ci.status" else []
    assert option in inv.fails(OptionError, name, *needs, f"{option}={value}")


@pytest.mark.parametrize(
    "line", [["build", "--workers=0"], ["push", "--workers=1025"], ["prune", "--keep=0"]]
)
def test_numbers_out_of_range_are_refused(inv: Inv, line: list[str]) -> None:
    inv.fails(OptionError, *line)


@pytest.mark.parametrize("name", [name for name, context in CONTEXTS.items() if "--target" in context.flags])
@pytest.mark.parametrize("odd", ["glob of nothing", "surrogate", "newline"])
def test_unknown_targets_are_refused_by_every_command(inv: Inv, name: str, odd: str) -> None:
    positional = [argument for argument in CONTEXTS[name].positional_args if argument.kind is not list]
    code, text = inv(name, *("x" for _ in positional), f"--target={ODD[odd]}")
    assert 10 <= code < 126, text
    assert code != InternalError.exit_code
    check_words(text)


@pytest.mark.parametrize("odd", ODD)
def test_odd_names_are_unknown_names(inv: Inv, odd: str) -> None:
    inv.fails(UnknownNameError, "plan", f"--target={ODD[odd]}")
    inv.fails(UnknownNameError, "compile", f"--vllm={ODD[odd]}")
    inv.fails(UnknownNameError, "mods.diff", ODD[odd] if odd != "dash" else "nosuch")
    inv.fails(UnknownNameError, "audit", "gemma4-31b", f"--arch={ODD[odd]}")


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (FileMissingError, ["mods.check", "--source={missing}"]),
        (PathUnusableError, ["mods.check", "--source={file}"]),
        (PathUnusableError, ["mods.check", "--source=~nosuchuser/vllm"]),
        (PathUnusableError, ["mods.check", f"--source={'x' * 5000}"]),
        (OptionError, ["mods.check", "--source= "]),
        (FileMissingError, ["ci.report-mods", "{missing}"]),
        (PathUnusableError, ["ci.report-mods", "{file}"]),
        (FileMissingError, ["audit", "{missing}.whl"]),
        (FileMissingError, ["audit", "nothing.so"]),
        (AuditError, ["audit", "{folder}"]),
        (UnknownNameError, ["audit", ""]),
        (OutputError, ["build", "--output={file}"]),
        (OutputError, ["build", "--output={file}/below"]),
        (OutputError, ["build", "--output={full}"]),
        (OutputError, ["build", f"--output=/{'x' * 5000}"]),
        (PathUnusableError, ["build", "--output=~nosuchuser/x"]),
        (OutputError, ["export", "{folder}"]),
        (OutputError, ["export", "{missing}/image.tar"]),
        (OutputError, ["export", "{file}/image.tar"]),
        (PathUnusableError, ["export", "~nosuchuser/image.tar"]),
        (OptionError, ["export", " "]),
        (ImageMissingError, ["export", "image.tar"]),
        (PathUnusableError, ["mods.export", "eagle3-marker", "--output=~nosuchuser/x"]),
        (FileMissingError, ["ci.propose", "branch", "title", "{missing}"]),
        (PathUnusableError, ["ci.propose", "branch", "title", "{folder}"]),
        (OutputError, ["ci.refresh", "--body={missing}/body"]),
        (OutputError, ["ci.promote", "--target=tiny/cpu", "--subjects={folder}"]),
        (RunFailedError, ["ci.summary", "--plan={missing}"]),
        (RunFailedError, ["ci.summary", "--plan={folder}"]),
        (SigningError, ["publish", "--key={missing}"]),
        (SigningError, ["publish", "--key={folder}"]),
        (PathUnusableError, ["publish", "--key=~nosuchuser/key"]),
        (SigningError, ["keys.new", "--private={folder}", "--public=p.pem"]),
        (SigningError, ["keys.new", "--private={file}/below", "--public=p.pem"]),
        (PathUnusableError, ["keys.new", "--private=~nosuchuser/x"]),
        (FileMissingError, ["compile", "--source=vllm={missing}"]),
        (UnknownNameError, ["compile", "--source=nothing"]),
        (PathUnusableError, ["run", "--print", "--image=x@sha256:" + "0" * 64, "--models=~nosuchuser"]),
        (SettingRefusedError, ["run", "--print", "--image=x@sha256:" + "0" * 64, "--set=nothing"]),
        (UnknownNameError, ["build", "--engine=dokcer"]),
        (SettingRefusedError, ["build", "--builder=x"]),
        (BadReferenceError, ["verify", "--image=\n"]),
        (RunFailedError, ["ci.status", "no JSON"]),
        (RunFailedError, ["ci.status", "[]"]),
        (RunFailedError, ["ci.status", '{"a": ' * 100_000]),
        (OptionError, ["ci.status", "{}", "--broken=x"]),
        (OptionError, ["targets", "--json", "--excluded"]),
        (OptionError, ["plan", "--json", "--diff"]),
        (OptionError, ["clean", "--everything", "--older-than=3"]),
        (OptionError, ["run", "--print", "--compose"]),
        (OptionError, ["verify", "--target=tiny/cpu", "--image=x"]),
        (OptionError, ["smoke", "--target=tiny/cpu", "--image=x"]),
        (OptionError, ["mods.check", "--json", "--markdown"]),
        (OptionError, ["lock", "--check", "--upgrade=all"]),
        (OptionError, ["prune", "--delete", "--dry-run"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else value.__name__,
)
def test_paths_choices_and_combinations_are_checked_first(
    inv: Inv, tmp_path: Path, kind: type[FactoryError], line: list[str]
) -> None:
    places = {name: tmp_path / name for name in ("file", "folder", "full", "missing")}
    places["file"].write_text("x")
    places["folder"].mkdir()
    places["full"].mkdir()
    (places["full"] / "holiday.jpg").touch()
    for name, path in places.items():
        line = [word.replace(f"{{{name}}}", str(path)) for word in line]
    inv.fails(kind, *line)


# The environment


@pytest.mark.parametrize(
    "case",
    [
        (PathUnusableError, {"FACTORY_CACHE": "{file}"}, ["clean"]),
        (PathUnusableError, {"FACTORY_CACHE": "{file}/below"}, ["build"]),
        (FileMissingError, {"FACTORY_CACHE": "/proc/nothing"}, ["clean"]),
        (PathUnusableError, {"FACTORY_CACHE": "/" + "x" * 5000}, ["plan"]),
        (PathUnusableError, {"FACTORY_CACHE": "~nosuchuser/cache"}, ["targets"]),
        (PathUnusableError, {"FACTORY_CACHE": "~nosuchuser/cache"}, ["plan"]),
        (BadReferenceError, {"FACTORY_REGISTRY": "http://["}, ["catalog"]),
        (BadReferenceError, {"FACTORY_REGISTRY": "\n"}, ["push"]),
        (BadReferenceError, {"FACTORY_REGISTRY": "x" * 5000}, ["history"]),
        (OptionError, {"FACTORY_DEBIAN_MIRROR": "http://["}, ["lock", "--upgrade=bookworm"]),
        (PathUnusableError, {"FACTORY_DEBIAN_MIRROR": "~nosuchuser"}, ["lock", "--upgrade=bookworm"]),
        (PathUnusableError, {"PIP_FIND_LINKS": "~nosuchuser"}, ["lock", "--upgrade=vllm"]),
        (OptionError, {"PIP_FIND_LINKS": "http://["}, ["lock", "--upgrade=vllm"]),
        (SigningError, {"FACTORY_SIGNING_KEY": "-----BEGIN nothing"}, ["publish"]),
        (SigningError, {"FACTORY_SIGNING_KEY": "\udcff"}, ["publish"]),
        (PathUnusableError, {"GITHUB_STEP_SUMMARY": "{folder}"}, ["ci.status", "{}"]),
        (FileMissingError, {"GITHUB_STEP_SUMMARY": "{missing}/x"}, ["ci.status", "{}"]),
        (FileMissingError, {}, ["run", "--image=sha256:" + "0" * 64]),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_variables_that_cannot_be_right_are_named(
    inv: Inv,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    case: tuple[type[FactoryError], Mapping[str, str], list[str]],
) -> None:
    kind, variables, line = case
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for name, value in variables.items():
        monkeypatch.setenv(name, re.sub(r"{(\w+)}", rf"{tmp_path}/\1", value))
    said = inv.fails(kind, *line)
    if "FACTORY_CACHE" in variables:
        assert "FACTORY_CACHE" in said


# The checkout

FOLDER, MISSING = "a folder", "missing"
DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("kind", "path", "content", "line"),
    [
        (YamlSyntaxError, "matrix.yaml", MISSING, ["plan"]),
        (YamlSyntaxError, "matrix.yaml", FOLDER, ["targets"]),
        (MatrixError, "matrix.yaml", b"", ["plan"]),
        (YamlSyntaxError, "matrix.yaml", bytes(range(256)), ["plan"]),
        (YamlSyntaxError, "matrix.yaml", DEEP, ["targets"]),
        (YamlSyntaxError, "images/compile.yaml", FOLDER, ["compile"]),
        (LockMissingError, "locks", MISSING, ["plan"]),
        (LockFormatError, "locks/0.32.0/gb10-linux-arm64.toml", FOLDER, ["plan"]),
        (LockFormatError, "locks/0.32.0/gb10-linux-arm64.toml", b"\xff", ["plan"]),
        (LockFormatError, "locks/0.32.0/gb10-linux-arm64.toml", b"a = " + b"9" * 5000, ["plan"]),
        (LockFormatError, "locks/0.32.0/gb10-linux-arm64.toml", b"a = " + DEEP, ["plan"]),
        (LockFormatError, "locks/layers.toml", FOLDER, ["build"]),
        (LockFormatError, "locks/layers.toml", b"\xff", ["plan"]),
        (LockFormatError, "locks/layers.toml", b"a = " + DEEP, ["push"]),
        (LockFormatError, "locks/licences.toml", FOLDER, ["licences"]),
        (ModManifestError, "mods/eagle3-marker/mod.yaml", MISSING, ["plan"]),
        (ModManifestError, "mods/eagle3-marker/mod.yaml", FOLDER, ["plan"]),
        (YamlSyntaxError, "mods/eagle3-marker/mod.yaml", DEEP, ["mods.check"]),
        (OutputError, "build", b"", ["build"]),
        (OutputError, "build/gemma4-31b-v0.32.0-gb10-arm64", b"", ["build"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_broken_checkout_says_which_file_is_broken(
    spoiled: Inv, kind: type[FactoryError], path: str, content: bytes | str, line: list[str]
) -> None:
    place = spoiled.root / path
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if content == FOLDER:
        place.mkdir()
    elif isinstance(content, bytes):
        place.write_bytes(content)
    assert Path(path).name.partition(".")[0] in spoiled.fails(kind, *line)


@pytest.mark.parametrize(
    ("content", "why"), [(b"\xff", "utf-8"), (b"{", "line 1"), (b'{"a":' * 100_000, "levels")], ids=repr
)
def test_a_file_that_nobody_expected_to_be_damaged_is_named(
    inv: Inv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_bytes(content)

    def read(*_: object) -> object:
        return json.loads(damaged.read_text("utf-8"))

    monkeypatch.setattr("imagefactory.matrix.targets.select", read)
    said = inv.fails(UnreadableTextError, "plan")
    assert str(damaged) in said
    assert why in said


# Our own mistakes


def test_a_mistake_of_ours_leaves_a_report_without_secrets(inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("s3cr3t-from-the-environment and hunter22-on-the-line at https://me:pw@host/")

    monkeypatch.setattr("imagefactory.build.start.prepare.settings_from", broken)
    monkeypatch.setenv("HF_TOKEN", "s3cr3t-from-the-environment")
    image = "x@sha256:" + "0" * 64
    said = inv.fails(
        InternalError, "run", "--print", f"--image={image}", "--set", "VLLM_API_KEY=hunter22-on-the-line"
    )
    assert "KeyError" in said
    assert "/issues" in said
    [path] = (Path(os.environ["FACTORY_CACHE"]) / "reports").iterdir()
    assert str(path) in said
    report = path.read_text("utf-8")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in report
    assert f"--image={image} --set 'VLLM_API_KEY=***'" in report
    assert sys.version.split()[0] in report
    for secret in ("s3cr3t", "hunter22", "me:pw"):
        assert secret not in report + said


def test_a_report_that_cannot_be_written_does_not_hide_the_mistake(
    inv: Inv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FACTORY_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "file"))
    monkeypatch.setattr("imagefactory.matrix.targets.select", lambda *_: 1 / 0)
    assert "could not be written" in inv.fails(InternalError, "plan")


def test_deep_recursion_of_our_own_is_our_mistake_and_that_of_a_text_is_not(
    inv: Inv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def endless(*_: object) -> object:
        return endless()

    monkeypatch.setattr("imagefactory.matrix.targets.select", endless)
    inv.fails(InternalError, "plan")
