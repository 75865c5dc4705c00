"""mods.import from the command line: what it prints, and how it fails."""

from pathlib import Path

import pytest

from imagefactory.store.digests import sha256_of
from tests.fixtures.checkouts import Checkout
from tests.fixtures.inv import Inv
from tests.fixtures.releases import released
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import WheelFactory

OLD = {
    "vllm/__init__.py": "VERSION = 1\n",
    "vllm/x.py": "one = function(1)\ntwo = function(2)\nthree = function(3)\n",
}
NEW = {**OLD, "vllm/x.py": OLD["vllm/x.py"].replace("three = function(3)", "three = function(33)")}
HUNK = "@@ -1,2 +1,2 @@\n-one = function(1)\n+one = function(11)\n two = function(2)\n"
DIFF = f"--- a/vllm/x.py\n+++ b/vllm/x.py\n{HUNK}"


@pytest.fixture
def inv(
    tmp_path: Path,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Inv:
    """Run commands on a checkout with two small releases, without Docker."""
    root = released(tmp_path, simple_index, wheel_factory, {"1.0": OLD, "2.0": NEW}).root
    found = Inv(Checkout(root), monkeypatch, capsys)
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url)
    monkeypatch.setenv("FACTORY_CACHE", str(tmp_path / "store"))
    return found


def test_an_import_shows_what_came_of_each_version_and_names_the_file(inv: Inv, tmp_path: Path) -> None:
    (tmp_path / "eleven.diff").write_text(DIFF)
    supplied = f"--with=https://git.example/pull/1.diff={tmp_path / 'eleven.diff'}"
    done = inv("mods.import", str(tmp_path / "eleven.diff"), "--why=https://git.example/pull/1", supplied)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "mods/eleven/mod.yaml"
    tried = [line.split()[:2] for line in done.stdout.splitlines()[1:3]]
    assert tried == [["1.0", "changes"], ["2.0", "changes"]]
    written = (inv.root / "mods/eleven/mod.yaml").read_text("utf-8")
    assert "why: https://git.example/pull/1\n" in written
    assert f"#   https://git.example/pull/1.diff: sha256 {sha256_of(DIFF.encode())}" in written
    (tmp_path / "nothing.diff").write_text(DIFF.replace("-one", "-none"))
    message = inv.fails("not-importable", "mods.import", str(tmp_path / "nothing.diff"))
    assert "on 1.0, 2.0: nothing.diff does not fit" in message
