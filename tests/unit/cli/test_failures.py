"""Unexpected failures of commands: damaged files and bugs of our own."""

import itertools
import json
import os
import sys
from pathlib import Path

import pytest

from imagefactory.errors import ConfigError
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


PEM = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIGHAgEAMBMG\nByqGSM49AgEG\n-----END ENCRYPTED PRIVATE KEY-----\n"
FORMS = {"text": "-s3cr3t/value+", "pem": PEM, "two-lines": "first-l1ne\nsecond-l1ne\n"}
SECRETS = {
    **dict.fromkeys(("FACTORY_SIGNING_KEY", "FACTORY_SIGNING_PASSWORD", "GITHUB_TOKEN", "GH_TOKEN"), "environment"),
    **dict.fromkeys(("HF_TOKEN", "HF_TOKEN_PATH", "VLLM_API_KEY", "VLLM_API_KEY_FILE"), "environment"),
    **dict.fromkeys(("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "FACTORY_X_PIN"), "environment"),
    "--set=VLLM_API_KEY=": "line",
}


@pytest.mark.parametrize(("form", "kept"), list(itertools.product(FORMS, ["as it is", "in a file"])))
@pytest.mark.parametrize("name", SECRETS)
def test_no_secret_of_any_form_is_printed_or_reported(
    inv: Inv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, name: str, form: str, kept: str
) -> None:
    secret = FORMS[form]
    value = secret
    if kept == "in a file":
        (tmp_path / "secret").write_text(secret)
        value = str(tmp_path / "secret")
    set_to = {name: value} if SECRETS[name] == "environment" else {}
    line = ("plan",) if set_to else ("run", "--print", "--image", "x@sha256:" + "0" * 64, f"{name}{value}")
    place = SELECT if set_to else "imagefactory.launch.prepare.settings_from"
    quoted = f"{secret} {secret!r} {secret.encode()!r} {json.dumps(secret)}"
    errors = {
        "internal": RuntimeError(quoted),
        "unreadable-text": UnicodeError(quoted),
        "bad-target": ConfigError("bad-target", quoted, where=quoted, why=quoted, fix=quoted),
    }
    for expected, error in errors.items():

        def fail(*_: object, error: Exception = error, **__: object) -> None:
            raise error

        monkeypatch.setattr(place, fail)
        said = inv.fails(expected, *line, **set_to)
        reports = [path.read_text("utf-8") for path in (Path(os.environ["FACTORY_CACHE"]) / "reports").glob("*")]
        for part in filter(None, (*secret.splitlines(), secret.strip())):
            assert part not in said.replace("\n", "")
            assert all(part not in report for report in reports)


def test_a_report_names_harmless_settings_only(inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SELECT, lambda *_: 1 / 0)
    inv.fails("internal", "plan", FACTORY_REGISTRY="127.0.0.1:1/me/x", FACTORY_ODD="abcdef-0815", X_FACTORY_Y="ghijkl")
    [path] = (Path(os.environ["FACTORY_CACHE"]) / "reports").iterdir()
    settings = [line for line in path.read_text("utf-8").splitlines() if line.startswith("setting:")]
    assert "setting:  FACTORY_REGISTRY=127.0.0.1:1/me/x" in settings
    assert "ODD" not in str(settings)
    assert "X_FACTORY_Y" not in str(settings)


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
