"""The results of commands, and failures that a user's edits of the matrix and the locks lead to."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from invoke.config import Config
from invoke.context import Context

from imagefactory.cli.program import collection
from tests.fixtures.checkouts import Checkout
from tests.fixtures.inv import Inv, check_failure
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

UNREACHABLE = "http://127.0.0.1:9/simple"
LOCK = Path("2.0") / "gpu-linux-arm64.toml"


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("weights: bf16", "wieghts: bf16", "bad-matrix"),
        ('vllm: "2.0", arch: gpu', 'vllm: "2.0", arch: cgu', "unknown-name"),
        ("  tiny:", "  big:", "duplicate-key"),
        ("    generated: tiny", "    generated: {tiny", "bad-yaml"),
        ('vllm: ">=1.0"', 'vllm: ">>1.0"', "bad-version-range"),
    ],
    ids=["typo in a key", "unknown arch", "duplicate model", "YAML syntax", "wrong specifier"],
)
def test_mistakes_in_the_matrix_are_located(own_inv: Inv, old: str, new: str, kind: str) -> None:
    own_inv.checkout.edit_matrix(old, new)
    assert re.search(r"where: matrix\.yaml:\d+\n", own_inv.fails(kind, "plan"))


def test_exclusions_are_explained(own_inv: Inv) -> None:
    rule = "exclude:\n  - when: {model: tiny, arch: gpu}\n    reason: the tiny model needs no GPU\n"
    own_inv.checkout.edit_matrix("conflicts:", f"{rule}conflicts:")
    assert "needs no GPU" in own_inv.fails("excluded", "plan", "--target", "tiny/gpu")
    assert "needs no GPU" in own_inv("targets", "--excluded").stdout


def test_a_missing_an_edited_and_a_broken_lock_are_three_failures(own_inv: Inv) -> None:
    path = own_inv.checkout.locks / LOCK
    text = path.read_text("utf-8")
    path.write_text(text.replace('python = "3.11"', 'python = "3.12"'), "utf-8")
    own_inv.fails("lock-edited", "plan")
    path.write_text(text + "]", "utf-8")
    assert f"{path}:{text.count(chr(10)) + 1}" in own_inv.fails("bad-lock", "plan")
    path.unlink()
    own_inv.fails("no-lock", "plan")


def test_lock_check_finds_drift_and_names_the_model(own_inv: Inv) -> None:
    own_inv.checkout.edit_matrix('vllm: ">=1.0"', 'vllm: ">=1.5"')
    assert "big" in own_inv.fails("lock-drift", "lock", "--check")


@pytest.mark.parametrize(
    "case",
    [
        ("index-unreachable", ["--target=big", "--upgrade=vllm"], {"PIP_INDEX_URL": UNREACHABLE}),
        ("compile-needed", ["--target=big@1.0"], {}),
        ("hub-unreachable", ["--target=big", "--models"], {"HF_ENDPOINT": UNREACHABLE}),
    ],
    ids=repr,
)
def test_locking_that_fails_leaves_the_lock_alone(
    locked_checkout: Checkout,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    case: tuple[str, list[str], dict[str, str]],
) -> None:
    kind, line, env = case
    simple_index.add(wheel_factory("vllm", "1.9"))
    before = (locked_checkout.locks / LOCK).read_bytes()
    done = locked_checkout.invoke("lock", *line, env={"PIP_INDEX_URL": simple_index.url, **env})
    check_failure(done, kind)
    assert (locked_checkout.locks / LOCK).read_bytes() == before


def test_targets_are_listed_as_json_and_as_a_table(inv: Inv) -> None:
    rows = json.loads(inv("targets", "--json").stdout)
    assert {"model", "version", "arch", "platform", "mods", "kernels", "locked", "revision"} == set(rows[0])
    assert {row["locked"] for row in rows} == {"yes", "no"}
    assert {row["revision"] for row in rows if row["model"] == "tiny"} == {"generated"}
    assert len(inv("targets").stdout.splitlines()) == len(rows) + 1


def test_a_plan_is_the_same_bytes_in_every_folder_and_environment(
    locked_checkout: Checkout, tmp_path: Path
) -> None:
    command = ("plan", "--target", "big", "--json")
    other = Checkout(tmp_path / "another folder" / "of the same")
    other.root.parent.mkdir()
    locked_checkout.root.rename(other.root)
    first = other.run(*command, env={"TZ": "UTC", "PYTHONHASHSEED": "0"})
    other.root.rename(locked_checkout.root)
    old = os.umask(0o077)
    try:
        env = {"TZ": "Pacific/Auckland", "PYTHONHASHSEED": "4711", "LC_ALL": "C", "FACTORY_CACHE": "/nowhere"}
        second = locked_checkout.run(*command, cwd=tmp_path, env=env)
    finally:
        os.umask(old)
    assert first.returncode == second.returncode == 0, second.stderr
    assert first.stdout == second.stdout
    assert list(json.loads(first.stdout)) == ["plans"]


def test_a_plan_shows_totals_and_what_changed_since_the_last_build(inv: Inv) -> None:
    totals = r"\d+ layers \(0 cached\), .* of inputs, .* unpacked"
    assert re.search(f"{totals}\n", inv("plan", "--target", "big").stdout)
    assert re.search(
        f"{totals}; .* shared with other targets", inv("plan", "--target", "big", "--shared").stdout
    )
    assert "never built here" in inv("plan", "--diff").stdout


def test_commands_act_on_the_checkout_that_they_were_collected_for(
    locked_checkout: Checkout, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = collection(locked_checkout.root)
    collection(tmp_path / "another")
    context = Context(Config(overrides=commands.configuration("mods.new")))
    commands["mods.new"](context, "a-mod")
    assert capsys.readouterr().out == "mods/a-mod/mod.yaml\n"
    assert (locked_checkout.root / "mods" / "a-mod" / "mod.yaml").is_file()
    assert not (tmp_path / "another").exists()
