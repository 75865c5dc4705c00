"""The commands: what they print, and how a user's mistake ends."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from invoke.config import Config
from invoke.context import Context

from imagefactory.commands.collection import collection
from imagefactory.errors import FactoryError
from imagefactory.errors.locks import (
    CompileNeededError,
    IndexUnreachableError,
    LockDriftError,
    LockEditedError,
    LockFormatError,
    LockMissingError,
    ModelHubError,
    WheelMissingError,
)
from imagefactory.errors.matrix import (
    DuplicateKeyError,
    ExcludedCellError,
    MatrixError,
    SpecifierError,
    UnknownNameError,
    YamlSyntaxError,
)
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

UNREACHABLE = "http://127.0.0.1:9/simple"
LOCK = Path("0.32.0") / "gb10-linux-arm64.toml"


def run(checkout: Checkout, kind: type[FactoryError], *arguments: str, **env: str) -> str:
    """Run a task that fails in a given way; return what it says."""
    done = checkout.invoke(*arguments, env=env)
    assert done.returncode == kind.exit_code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    parts = re.findall(r"^(error|  where|  why|  next): +\S", done.stderr, re.MULTILINE)
    assert parts == ["error", "  where", "  why", "  next"], done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("    weights: mxfp4", "    wieghts: mxfp4", MatrixError),
        (
            'defaults: {vllm: "0.32.0", arch: gb10}',
            'defaults: {vllm: "0.32.0", arch: gb11}',
            UnknownNameError,
        ),
        ("  gemma4-26b-a4b:", "  gemma4-31b:", DuplicateKeyError),
        ("    repo: openai/gpt-oss-120b", "    repo: {openai/gpt-oss-120b", YamlSyntaxError),
        ('    vllm: ">=0.10.1"', '    vllm: ">>0.10.1"', SpecifierError),
    ],
    ids=["typo in a key", "unknown arch", "duplicate model", "YAML syntax", "wrong specifier"],
)
def test_a_mistake_in_the_matrix_ends_with_its_own_code_and_line(
    factory_checkout: Checkout, old: str, new: str, kind: type[FactoryError]
) -> None:
    factory_checkout.edit_matrix(old, new)
    assert re.search(r"where: matrix\.yaml:\d+\n", run(factory_checkout, kind, "plan"))


def test_an_unknown_version_is_answered_with_the_nearest(factory_checkout: Checkout) -> None:
    said = run(factory_checkout, UnknownNameError, "plan", "--target", "gemma4-31b@0.18")
    assert "Did you mean" in said
    assert "0.19.1" in said


def test_an_excluded_target_says_why(factory_checkout: Checkout) -> None:
    assert "GPU" in run(factory_checkout, ExcludedCellError, "plan", "--target", "tiny/gb10")


def test_a_missing_an_edited_and_a_broken_lock_are_three_failures(factory_checkout: Checkout) -> None:
    path = factory_checkout.locks / LOCK
    text = path.read_text("utf-8")
    path.write_text(text.replace('python = "3.11"', 'python = "3.12"'), "utf-8")
    run(factory_checkout, LockEditedError, "plan")
    path.write_text(text + "]", "utf-8")
    assert f"{path}:{text.count(chr(10)) + 1}" in run(factory_checkout, LockFormatError, "plan")
    path.unlink()
    run(factory_checkout, LockMissingError, "plan")


def test_drift_is_found_by_check_and_names_the_model(factory_checkout: Checkout) -> None:
    assert factory_checkout.invoke("lock", "--check").returncode == 0
    factory_checkout.edit_matrix('    vllm: ">=0.10.1"', '    vllm: ">=0.20"')
    assert "gpt-oss-120b" in run(factory_checkout, LockDriftError, "lock", "--check")


def test_locking_against_a_bad_index_fails_and_leaves_the_lock_alone(
    factory_checkout: Checkout, simple_index: SimpleIndex, wheel_factory: WheelFactory
) -> None:
    before = (factory_checkout.locks / LOCK).read_bytes()
    command = ("lock", "--target", "gemma4-31b", "--upgrade", "vllm")
    run_loudly(factory_checkout, IndexUnreachableError, *command, PIP_INDEX_URL=UNREACHABLE)
    simple_index.add(wheel_factory("vllm", "0.31.0"))
    run_loudly(factory_checkout, WheelMissingError, *command, PIP_INDEX_URL=simple_index.url)
    assert (factory_checkout.locks / LOCK).read_bytes() == before


def run_loudly(checkout: Checkout, kind: type[FactoryError], *arguments: str, **env: str) -> None:
    """Run a task that says what it does before it fails."""
    done = checkout.invoke(*arguments, env=env)
    assert done.returncode == kind.exit_code, done.stderr
    assert "Traceback" not in done.stderr


def test_a_version_that_must_be_compiled_and_a_silent_hub_have_codes_of_their_own(
    factory_checkout: Checkout,
) -> None:
    run_loudly(factory_checkout, CompileNeededError, "lock", "--target", "gemma4-31b@nightly")
    target = ("--target", "gemma4-31b")
    run_loudly(factory_checkout, ModelHubError, "lock", *target, "--models", HF_ENDPOINT=UNREACHABLE)


def test_targets_as_json_say_for_every_cell_what_is_known(factory_checkout: Checkout) -> None:
    done = factory_checkout.invoke("targets", "--json")
    rows = json.loads(done.stdout)
    assert {"model", "vllm", "arch", "platform", "mods", "kernels", "locked", "revision"} == set(rows[0])
    assert {row["locked"] for row in rows} == {"yes", "no"}
    assert {row["revision"] for row in rows if row["model"] == "tiny"} == {"generated"}
    table = factory_checkout.invoke("targets").stdout.splitlines()
    assert len(table) == len(rows) + 1


def test_excluded_combinations_are_listed_with_their_reason(factory_checkout: Checkout) -> None:
    assert "NVFP4 needs FP4 tensor cores" in factory_checkout.invoke("targets", "--excluded").stdout


def test_a_plan_is_the_same_bytes_wherever_and_however_it_is_made(
    factory_checkout: Checkout, tmp_path: Path
) -> None:
    other = Checkout(tmp_path / "another folder" / "of the same")
    other.root.parent.mkdir()
    factory_checkout.root.rename(other.root)
    first = other.invoke("plan", "--target", "gemma4-31b", "--json", env={"TZ": "UTC", "PYTHONHASHSEED": "0"})
    other.root.rename(factory_checkout.root)
    old = os.umask(0o077)
    try:
        second = factory_checkout.invoke(
            "plan",
            "--target",
            "gemma4-31b",
            "--json",
            cwd=tmp_path,
            env={
                "TZ": "Pacific/Auckland",
                "PYTHONHASHSEED": "4711",
                "LC_ALL": "C",
                "FACTORY_CACHE": "/nowhere",
            },
        )
    finally:
        os.umask(old)
    assert first.returncode == second.returncode == 0, second.stderr
    assert first.stdout == second.stdout
    assert list(json.loads(first.stdout)) == ["plans"]


def test_a_plan_for_people_has_totals_and_a_plan_never_built_says_so(factory_checkout: Checkout) -> None:
    shown = factory_checkout.invoke("plan", "--target", "gemma4-31b").stdout
    assert re.search(
        r"\d+ layers \(0 cached\), .* of inputs, .* unpacked; .* shared with other targets", shown
    )
    assert "never built here" in factory_checkout.invoke("plan", "--diff").stdout


def test_a_reader_that_goes_away_is_no_failure(factory_checkout: Checkout) -> None:
    command = [
        sys.executable,
        "-m",
        "invoke",
        "--search-root",
        str(factory_checkout.root),
        "targets",
        "--json",
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(
        command, cwd=factory_checkout.root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_every_command_explains_itself(factory_checkout: Checkout) -> None:
    listed = factory_checkout.invoke("--list").stdout
    for name in ("targets", "lock", "plan", "doctor", "schemas", "test"):
        assert re.search(rf"^  {name} +\S", listed, re.MULTILINE), listed


@pytest.mark.parametrize(
    "options", [["--list"], ["--list", "ci"], ["--list", "--list-format", "nested"]], ids=" ".join
)
def test_every_way_to_list_the_commands_prints_the_same(
    factory_checkout: Checkout, options: list[str]
) -> None:
    plain = factory_checkout.invoke(*options)
    own = subprocess.run(
        [sys.executable, "tasks.py", *options],
        cwd=factory_checkout.root,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert plain.stdout.startswith("Commands")
    assert own.stdout == plain.stdout


def test_commands_act_on_the_checkout_that_they_were_collected_for(
    factory_checkout: Checkout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = collection(factory_checkout.root)
    collection(tmp_path / "another")
    context = Context(Config(overrides=commands.configuration("mods.new")))
    commands["mods.new"](context, "a-mod")
    assert capsys.readouterr().out == "mods/a-mod/mod.yaml\n"
    assert (factory_checkout.root / "mods" / "a-mod" / "mod.yaml").is_file()
    assert not (tmp_path / "another").exists()
