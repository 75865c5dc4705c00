"""Options, variables and files that commands refuse, each with a message and an exit code of its own."""

import re
import shutil
from pathlib import Path

import pytest

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
        ("no-file", ["mods.check", "--source={missing}"]),
        ("bad-path", ["mods.check", "--source={file}"]),
        ("bad-path", ["mods.check", "--source=~nosuchuser/vllm"]),
        ("bad-option", ["mods.check", "--source= "]),
        ("bad-import-source", ["mods.import", "{missing}@HEAD~1..HEAD"]),
        ("bad-import-source", ["mods.import", "{file}"]),
        ("bad-setting", ["mods.import", "{file}", "--env=lower"]),
        ("no-file", ["mods.check", "--report", "--source={missing}"]),
        ("bad-subject", ["audit", "{missing}.whl"]),
        ("bad-subject", ["audit", "{folder}"]),
        ("bad-option", ["audit", ""]),
        ("output-unusable", ["load", "--file={folder}"]),
        ("output-unusable", ["load", "--file={missing}/image.tar"]),
        ("bad-option", ["load", "--file= "]),
        ("no-image", ["load", "--file=image.tar"]),
        ("output-unusable", ["news", "--report={missing}/report"]),
        ("bad-option", ["news", "--upgrade=all"]),
        ("bad-option", ["news", "--branch=x", "--upgrade=models"]),
        ("output-unusable", ["promote", "--target=tiny/cpu", "--subjects={folder}"]),
        ("cannot-sign", ["publish", "--key={missing}"]),
        ("cannot-sign", ["keys.new", "--private={folder}", "--public=p.pem"]),
        ("bad-setting", ["run", "--print", IMAGE, "--set=nothing"]),
        ("no-file", ["run", "--image=sha256:" + "0" * 64]),
        ("bad-setting", ["build", "--engine=docker", "--fat"]),
        ("bad-option", ["verify", "--image=\n"]),
        ("output-unusable", ["load", "--file=/proc/x"]),
        ("nothing-to-export", ["recipes.export", "{missing}", "--all"]),
        ("output-unusable", ["site", "--offline", "--out=/proc/x"]),
        ("output-unusable", ["site", "--offline", "--out={circle}/x"]),
        ("output-unusable", ["site", "--offline", "--out={file}"]),
        ("output-unusable", ["site", "--offline", f"--out=/{'x' * 5000}"]),
        ("bad-path", ["site", "--offline", "--out=~nosuchuser/x"]),
        ("output-unusable", ["site", "--offline", "--out={full}"]),
        ("bad-option", ["site", "--offline", "--registry=a.example/b"]),
        ("bad-option", ["site", "--offline", "--port=many"]),
        ("bad-option", ["site", "--offline", "--serve", "--port=65536"]),
        ("bad-option", ["site", "--offline", "--serve", "--port=0"]),
        ("cannot-sign", ["keys.new", "--private={missing}", "--public={missing}"]),
        ("cannot-sign", ["keys.new", "--private={missing}", "--public={folder}/../missing"]),
        ("system-failed", ["bench.plot", "{pipe}"]),
        ("cannot-sign", ["publish", "--key={pipe}"]),
        ("cannot-sign", ["publish", "--key=/dev/zero"]),
        ("unknown-name", ["push", "--target=\n"]),
        ("bad-option", ["prune", "--keep=0"]),
        ("bad-option", ["targets", "--json", "--excluded"]),
        ("bad-option", ["clean", "--everything", "--older-than=3"]),
        ("bad-option", ["run", "--print", "--compose"]),
        ("bad-option", ["smoke", "--target=tiny/cpu", "--image=x"]),
        ("bad-option", ["lock", "--check", "--upgrade=all"]),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else value,
)
def test_options_are_checked_before_any_work_starts(inv: Inv, places: Path, kind: str, line: list[str]) -> None:
    inv.fails(kind, *(filled(word, places) for word in line))
    assert not (places / "missing").exists(), "nothing is written"


@pytest.mark.parametrize(
    "case",
    [
        ("bad-path", "FACTORY_CACHE", "{file}", ["clean"]),
        ("no-file", "FACTORY_CACHE", "/proc/nothing", ["clean"]),
        ("bad-path", "FACTORY_CACHE", "~nosuchuser/cache", ["plan"]),
        ("bad-reference", "FACTORY_REGISTRY", "http://[", ["catalog"]),
        ("bad-reference", "FACTORY_REGISTRY", "x" * 5000, ["history"]),
        ("bad-option", "FACTORY_DEBIAN_MIRROR", "http://[", ["lock", "--upgrade=bookworm"]),
        ("bad-path", "PIP_FIND_LINKS", "~nosuchuser", ["lock", "--upgrade=vllm"]),
        ("cannot-sign", "FACTORY_SIGNING_KEY", "-----BEGIN nothing", ["publish"]),
    ],
    ids=lambda case: repr(case[1:])[:60],
)
def test_unusable_variables_are_refused(inv: Inv, places: Path, case: tuple[str, str, str, list[str]]) -> None:
    kind, name, value, line = case
    said = inv.fails(kind, *line, **{name: filled(value, places)})
    assert name in said


@pytest.mark.parametrize(
    ("kind", "path", "content", "line"),
    [
        ("bad-yaml", "matrix.yaml", MISSING, ["plan"]),
        ("bad-yaml", "matrix.yaml", FOLDER, ["targets"]),
        ("bad-matrix", "matrix.yaml", b"", ["plan"]),
        ("bad-yaml", "matrix.yaml", bytes(range(256)), ["plan"]),
        ("bad-yaml", "images/compile.yaml", FOLDER, ["compile"]),
        ("no-lock", "locks", MISSING, ["plan"]),
        ("bad-lock", WHEELS, FOLDER, ["plan"]),
        ("bad-lock", WHEELS, b"\xff", ["plan"]),
        ("bad-lock", WHEELS, b"a = " + DEEP, ["plan"]),
        ("bad-lock", "locks/layers.toml", FOLDER, ["build"]),
        ("bad-lock", "locks/licences.toml", FOLDER, ["licences"]),
        ("bad-mod", "mods/a-mod/mod.yaml", MISSING, ["plan"]),
        ("bad-yaml", "mods/a-mod/mod.yaml", DEEP, ["mods.check"]),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_broken_files_of_the_checkout_are_named(
    own_inv: Inv, kind: str, path: str, content: bytes | str, line: list[str]
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


@pytest.mark.parametrize(
    "line",
    [
        *(["history"], ["catalog"], ["push"], ["publish"], ["promote", "--unsigned"]),
        *(["rollback"], ["prune"], ["verify", "--image=ghcr.io/OWNER/small:tiny"], ["ci.plan"]),
        *(["recipes.export", "{folder}"], ["run", "--recipe=sparkrun"]),
    ],
    ids=" ".join,
)
def test_a_placeholder_for_a_registry_is_told_in_the_same_words(
    inv: Inv, places: Path, monkeypatch: pytest.MonkeyPatch, line: list[str]
) -> None:
    monkeypatch.delenv("FACTORY_REGISTRY")
    said = inv.fails("no-registry", *(filled(word, places) for word in line))
    assert "  next:  export FACTORY_REGISTRY=registry.example/YOU/small" in said


@pytest.mark.parametrize(
    ("kind", "words", "line"),
    [
        ("bad-option", "Name the second Spark: --with spark2", ["pair", "up", "tiny/cpu"]),
        ("bad-option", "Name the second Spark: --with spark2", ["pair", "doctor", "tiny/cpu"]),
        ("unknown-name", "nosuch", ["pair", "doctor", "nosuch", "--with=spark2"]),
        ("unknown-name", "nosuch", ["pair", "up", "nosuch", "--with=spark2"]),
        ("unknown-name", "quadlet", ["pair", "up", "tiny/cpu", "--with=spark2", "--recipe=quadle"]),
        ("unknown-name", "eth99", ["pair", "up", "tiny/cpu", "--with=spark2", "--cable=eth99"]),
        ("unknown-name", "eth99", ["pair", "doctor", "tiny/cpu", "--with=spark2", "--cable=eth99"]),
        ("bad-setting", "MAX_NUM_SEQ", ["pair", "up", "tiny/cpu", "--with=spark2", "--set=MAX_NUM_SEQ=1"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_this_machine_knows_is_checked_before_the_second_is_asked(
    inv: Inv, kind: str, words: str, line: list[str]
) -> None:
    assert words in inv.fails(kind, *line)  # there is no ssh here
