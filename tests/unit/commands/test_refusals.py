"""Options, variables and files that commands refuse, each with a message and an exit code of its own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from imagefactory.errors import FactoryError
from imagefactory.errors.ci import RunFailedError
from imagefactory.errors.commands import OptionError
from imagefactory.errors.kernels import AuditError
from imagefactory.errors.layers import ImageMissingError
from imagefactory.errors.locks import LockFormatError, LockMissingError
from imagefactory.errors.matrix import MatrixError, UnknownNameError, YamlSyntaxError
from imagefactory.errors.mods import ImportSourceError, ModManifestError
from imagefactory.errors.registry import BadReferenceError
from imagefactory.errors.serving import SettingRefusedError
from imagefactory.errors.store import OutputError
from imagefactory.errors.supply import SigningError
from imagefactory.errors.system import FileMissingError, PathUnusableError
from tests.fixtures.inv import Inv

IMAGE = "--image=x@sha256:" + "0" * 64
FOLDER, MISSING = "a folder", "missing"
DEEP = b"[" * 100_000
WHEELS = "locks/2.0/gpu-linux-arm64.toml"


def filled(text: str, places: Path) -> str:
    """Replace {name} with the path of that name."""
    return re.sub(r"{(\w+)}", rf"{places}/\1", text)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (FileMissingError, ["mods.check", "--source={missing}"]),
        (PathUnusableError, ["mods.check", "--source={file}"]),
        (PathUnusableError, ["mods.check", "--source=~nosuchuser/vllm"]),
        (PathUnusableError, ["mods.check", f"--source={'x' * 5000}"]),
        (OptionError, ["mods.check", "--source= "]),
        (ImportSourceError, ["mods.import", "{missing}"]),
        (ImportSourceError, ["mods.import", "{folder}"]),
        (ImportSourceError, ["mods.import", "{missing}@HEAD~1..HEAD"]),
        (FileMissingError, ["mods.import", "{file}", "--with={missing}"]),
        (PathUnusableError, ["mods.import", "{file}", "--with={folder}"]),
        (SettingRefusedError, ["mods.import", "{file}", "--env=lower"]),
        (UnknownNameError, ["mods.update", "no-such-mod"]),
        (FileMissingError, ["mods.update", "no-such-mod", "--source={missing}"]),
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
        (PathUnusableError, ["mods.export", "a-mod", "--output=~nosuchuser/x"]),
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
        (PathUnusableError, ["run", "--print", IMAGE, "--models=~nosuchuser"]),
        (SettingRefusedError, ["run", "--print", IMAGE, "--set=nothing"]),
        (FileMissingError, ["run", "--image=sha256:" + "0" * 64]),
        (UnknownNameError, ["build", "--engine=dokcer"]),
        (SettingRefusedError, ["build", "--builder=x"]),
        (BadReferenceError, ["verify", "--image=\n"]),
        (UnknownNameError, ["ci.push", "--target=\n"]),
        (RunFailedError, ["ci.status", "no JSON"]),
        (RunFailedError, ["ci.status", "[]"]),
        (RunFailedError, ["ci.status", '{"a": ' * 100_000]),
        (OptionError, ["build", "--workers=0"]),
        (OptionError, ["push", "--workers=1025"]),
        (OptionError, ["prune", "--keep=0"]),
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
def test_options_are_checked_before_any_work_starts(
    inv: Inv, places: Path, kind: type[FactoryError], line: list[str]
) -> None:
    inv.fails(kind, *(filled(word, places) for word in line))


@pytest.mark.parametrize(
    "case",
    [
        (PathUnusableError, "FACTORY_CACHE", "{file}", ["clean"]),
        (PathUnusableError, "FACTORY_CACHE", "{file}/below", ["build"]),
        (FileMissingError, "FACTORY_CACHE", "/proc/nothing", ["clean"]),
        (PathUnusableError, "FACTORY_CACHE", "/" + "x" * 5000, ["plan"]),
        (PathUnusableError, "FACTORY_CACHE", "~nosuchuser/cache", ["targets"]),
        (PathUnusableError, "FACTORY_CACHE", "~nosuchuser/cache", ["plan"]),
        (BadReferenceError, "FACTORY_REGISTRY", "http://[", ["catalog"]),
        (BadReferenceError, "FACTORY_REGISTRY", "\n", ["push"]),
        (BadReferenceError, "FACTORY_REGISTRY", "x" * 5000, ["history"]),
        (OptionError, "FACTORY_DEBIAN_MIRROR", "http://[", ["lock", "--upgrade=bookworm"]),
        (PathUnusableError, "FACTORY_DEBIAN_MIRROR", "~nosuchuser", ["lock", "--upgrade=bookworm"]),
        (PathUnusableError, "PIP_FIND_LINKS", "~nosuchuser", ["lock", "--upgrade=vllm"]),
        (OptionError, "PIP_FIND_LINKS", "http://[", ["lock", "--upgrade=vllm"]),
        (SigningError, "FACTORY_SIGNING_KEY", "-----BEGIN nothing", ["publish"]),
        (SigningError, "FACTORY_SIGNING_KEY", "\udcff", ["publish"]),
        (PathUnusableError, "GITHUB_STEP_SUMMARY", "{folder}", ["ci.status", "{}"]),
        (FileMissingError, "GITHUB_STEP_SUMMARY", "{missing}/x", ["ci.status", "{}"]),
    ],
    ids=lambda case: repr(case[1:])[:60],
)
def test_unusable_variables_are_refused(
    inv: Inv, places: Path, case: tuple[type[FactoryError], str, str, list[str]]
) -> None:
    kind, name, value, line = case
    said = inv.fails(kind, *line, **{name: filled(value, places)})
    assert name in said


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
        (LockFormatError, WHEELS, FOLDER, ["plan"]),
        (LockFormatError, WHEELS, b"\xff", ["plan"]),
        (LockFormatError, WHEELS, b"a = " + b"9" * 5000, ["plan"]),
        (LockFormatError, WHEELS, b"a = " + DEEP, ["plan"]),
        (LockFormatError, "locks/layers.toml", FOLDER, ["build"]),
        (LockFormatError, "locks/layers.toml", b"\xff", ["plan"]),
        (LockFormatError, "locks/layers.toml", b"a = " + DEEP, ["push"]),
        (LockFormatError, "locks/licences.toml", FOLDER, ["licences"]),
        (ModManifestError, "mods/a-mod/mod.yaml", MISSING, ["plan"]),
        (ModManifestError, "mods/a-mod/mod.yaml", FOLDER, ["plan"]),
        (YamlSyntaxError, "mods/a-mod/mod.yaml", DEEP, ["mods.check"]),
        (OutputError, "build", b"", ["build"]),
        (OutputError, "build/big-v2.0-gpu-arm64", b"", ["build"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_broken_files_of_the_checkout_are_named(
    own_inv: Inv, kind: type[FactoryError], path: str, content: bytes | str, line: list[str]
) -> None:
    place = own_inv.root / path
    top = own_inv.root / Path(path).parts[0]
    if top.is_symlink():
        top.unlink()  # it leads to the repository's own files
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if content == FOLDER:
        place.mkdir()
    elif isinstance(content, bytes):
        place.write_bytes(content)
    assert Path(path).name.partition(".")[0] in own_inv.fails(kind, *line)
