"""How commands end: the first failure that the machine may have caused is followed by the doctor's findings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from invoke.exceptions import Exit

from imagefactory.commands.failures import in_words
from imagefactory.environment.setup import STAMPS
from imagefactory.errors import FactoryError
from imagefactory.errors.locks import IndexUnreachableError
from imagefactory.errors.matrix import MatrixError
from imagefactory.resolve.doctor import Diagnosis

MENTION = "`invoke doctor` examines the machine"


def fail(kind: type[FactoryError], tmp_path: Path) -> None:
    with pytest.raises(Exit), in_words("the command build", tmp_path):
        raise kind("It broke.", where="here", why="Because.", fix="Mend it.")


def test_the_doctor_speaks_once_and_only_about_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [
        Diagnosis("package index", "build", "failed", "no answer", "Check the network."),
        Diagnosis("container engine", "run", "warning", "no docker", "Install it."),
        Diagnosis("cache", "build", "ok", "/cache"),
    ]
    monkeypatch.setattr("imagefactory.resolve.doctor.examine", lambda _project: found)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / STAMPS).mkdir()
    fail(MatrixError, tmp_path)
    assert MENTION not in capsys.readouterr().err
    fail(IndexUnreachableError, tmp_path)
    said = capsys.readouterr().err
    assert MENTION in said
    assert "failed: package index: no answer Check the network." in said
    assert "docker" not in said
    fail(IndexUnreachableError, tmp_path)
    assert MENTION not in capsys.readouterr().err
