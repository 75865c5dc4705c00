"""The results of commands, and failures that a user's edits of the matrix and the locks lead to."""

import json
import os
import re
from pathlib import Path

import pytest
from invoke.config import Config
from invoke.context import Context

from imagefactory.cli.program import collection
from imagefactory.lock import hub
from imagefactory.lock.hub import HubRevision
from imagefactory.lock.making import pin_models
from imagefactory.project.project import Project
from imagefactory.store.http import Retry
from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.inv import Inv
from tests.fixtures.mods import edit, has, manifest, write_mod


def test_exclusions_are_explained(own_inv: Inv) -> None:
    rule = "exclude:\n  - when: {model: tiny, arch: gpu}\n    reason: the tiny model needs no GPU\n"
    own_inv.checkout.edit_matrix("conflicts:", f"{rule}conflicts:")
    assert "needs no GPU" in own_inv.fails("excluded", "plan", "--target", "tiny/gpu")
    assert "needs no GPU" in own_inv("targets", "--excluded").stdout


def test_models_are_listed_with_the_limit_of_memory_and_what_was_reached(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = " ".join(Inv(Checkout(REPOSITORY), monkeypatch, capsys)("models", COLUMNS="200").stdout.split())
    assert "qwen3.5-27b-nvfp4 20.0-24.0 GB 11.6 155 64: code, dflash k=15 102%" in printed
    assert "gemma4-31b-nvfp4-turbo 19.9 GB 11.7 - 10: mixed, none 86%" in printed
    assert "tiny" not in printed


def test_lock_check_finds_drift_and_names_the_model(own_inv: Inv) -> None:
    own_inv.checkout.edit_matrix('vllm: ">=1.0"', 'vllm: ">=1.5"')
    assert "big" in own_inv.fails("lock-drift", "lock", "--check")


def test_lock_names_a_dead_hub_before_it_updates_the_records(own_inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "RETRY", Retry(attempts=1))
    said = own_inv("lock", "--models", "--target=big@2.0/gpu", HF_ENDPOINT="http://127.0.0.1:9").stderr
    named = said.index("somebody/big cannot be looked up. The hub does not answer (Failed to establish")
    assert named < said.index("licences")


def test_a_plan_warns_of_a_mod_for_a_model_that_does_not_exist(own_inv: Inv) -> None:
    mods = own_inv.root / "mods"
    if mods.is_symlink():
        mods.unlink()
    change, checks = edit("vllm/x.py", "x", after="!"), [has("vllm/x.py", "!")]
    write_mod(mods, manifest("m", change, checks=checks, needed_when=[{"model": "tinny"}]))
    said = own_inv("plan", "--target", "tiny/cpu").stderr
    assert "warning: The mod m is for the model 'tinny', which does not exist. Did you mean tiny?" in said


def test_news_of_models_without_a_hub_is_a_failure(inv: Inv) -> None:
    done = inv("news.models", HF_ENDPOINT="http://127.0.0.1:9")
    assert "- somebody/big is not pinned: The hub does not answer" in done.stdout
    assert (done.returncode, "error[hub-unreachable]" in done.stderr) == (6, True)


def test_targets_are_listed_as_json_and_as_a_table(inv: Inv) -> None:
    rows = json.loads(inv("targets", "--json").stdout)
    assert {"model", "version", "arch", "platform", "sparks", "kernels", "locked", "revision"} == set(rows[0])
    assert {row["locked"] for row in rows} == {"yes", "no"}
    assert {row["revision"] for row in rows if row["model"] == "tiny"} == {"generated"}
    assert len(inv("targets").stdout.splitlines()) == len(rows) + 1


def test_a_plan_is_the_same_bytes_in_every_folder_and_environment(locked_checkout: Checkout, tmp_path: Path) -> None:
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
    totals = r"\d+ layers \(0 cached\), .* of inputs, .* unpacked\n"
    assert re.search(totals, inv("plan", "--target", "big").stdout)
    assert "never built here" in inv("plan", "--diff").stdout


def test_site_says_which_commit_an_image_serves(own_inv: Inv) -> None:
    pin_models(Project(own_inv.root), [HubRevision("somebody/big", "c0ffee" * 6 + "c0ff", {})])
    assert own_inv("site", "--offline").returncode == 0
    pages = [path.read_text("utf-8") for path in (own_inv.root / "build/site/images").glob("*.html")]
    serving = [page for page in pages if "<dt>serves</dt>" in page]
    assert 0 < len(serving) < len(pages), "the tiny model has no commit"
    assert all("<code>somebody/big@c0ffee" in page for page in serving)


def test_a_site_is_written_and_its_pages_are_counted(own_inv: Inv) -> None:
    done = own_inv("site", "--offline")
    assert done.returncode == 0, done.stderr
    folder = own_inv.root / "build" / "site"
    assert done.stdout.strip() == str(folder)
    assert f"{len(list(folder.rglob('*.html')))} pages, " in done.stderr
    assert len(json.loads((folder / "index.json").read_text())["images"]) > 2


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


def test_one_test_runs_alone_and_its_failure_is_the_commands(own_inv: Inv) -> None:
    (own_inv.root / "test_one.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    (own_inv.root / "pytest.ini").write_text("[pytest]\n")
    done = own_inv("test", "--only", "test_one.py -k 'good or nothing'")
    assert (done.returncode, done.stderr) == (0, "$ python -m pytest test_one.py -k 'good or nothing'\n")
    assert own_inv("test", "--only", "test_one.py").returncode == 1
    own_inv.fails("bad-option", "test", "--only", "x", "--fast")
