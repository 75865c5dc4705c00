"""Unexpected failures of commands: damaged files and bugs of our own."""

import json
import os
import sys
from pathlib import Path

import pytest

from imagefactory.store.paths import read_text
from tests.fixtures.inv import Inv

SELECT = "imagefactory.project.targets.select"


@pytest.mark.parametrize(("content", "why"), [(b"\xff", "utf-8"), (b"{", "line 1")], ids=repr)
def test_a_damaged_file_is_no_bug_and_named_where_it_is_read(
    inv: Inv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, why: str
) -> None:
    damaged = tmp_path / "damaged.json"
    damaged.write_bytes(content)
    monkeypatch.setattr(SELECT, lambda *_, **__: json.loads(damaged.read_text("utf-8")))
    assert why in inv.fails("unreadable-text", "plan")
    monkeypatch.setattr(SELECT, lambda *_, **__: json.loads(read_text(damaged)))
    assert (str(damaged) in inv.fails("unreadable-text", "plan")) == (content == b"\xff")


def test_a_bug_leaves_a_report_without_secrets(inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("s3cr3t-from-the-environment and hunter22-on-the-line, hf-t0ken at https://me:pw@host/")

    monkeypatch.setattr("imagefactory.launch.prepare.settings_from", broken)
    image = "x@sha256:" + "0" * 64
    line = ("run", "--print", f"--image={image}", "--set", "VLLM_API_KEY=hunter22-on-the-line")
    said = inv.fails("internal", *line, "--set=EXTRA_ARGS=--hf-token hf-t0ken", HF_TOKEN="s3cr3t-from-the-environment")  # noqa: S106
    assert "KeyError" in said
    assert "Issues" in said
    [path] = (Path(os.environ["FACTORY_CACHE"]) / "reports").iterdir()
    assert str(path) in said
    report = path.read_text("utf-8")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "Traceback" in report
    assert f"--image={image} --set VLLM_API_KEY=***" in report
    assert sys.version.split()[0] in report
    for secret in ("s3cr3t", "hunter22", "hf-t0ken", "me:pw"):
        assert secret not in report + said


def test_a_bug_is_reported_when_the_report_cannot_be_written(
    inv: Inv, places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(places / "file"))
    monkeypatch.setattr(SELECT, lambda *_: 1 / 0)
    said = inv.fails("internal", "plan", FACTORY_CACHE=str(places / "file"))
    assert "could not be written" in said


def test_endless_recursion_of_our_own_is_a_bug(inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> object:
        return endless()

    monkeypatch.setattr(SELECT, endless)
    inv.fails("internal", "plan")
