"""What commands import: quick ones leave out the packages that they do not use."""

import subprocess
import sys
from http import HTTPStatus

import pytest

from tests.fixtures.checkouts import REPOSITORY, Checkout
from tests.fixtures.inv import Inv
from tests.fixtures.servers import Answer, scripted

REPORT = """
import runpy, sys
try:
    runpy.run_path("tasks.py", run_name="__main__")
except SystemExit:
    pass
print(len(sys.modules), *sys.modules, file=sys.stderr)
"""
SLOW = {*("requests", "docker", "pypi_simple", "jinja2", "debian", "elftools", "cryptography", "pysequoia", "uv")}
OWN = {"imagefactory.compile", "imagefactory.lock", "imagefactory.check.smoke", "imagefactory.site"}
DATA = {"pydantic", "rich"}


@pytest.mark.parametrize(
    ("line", "most", "without"),
    [
        (["--list"], 360, SLOW | OWN | DATA),
        (["targets", "--json"], 560, SLOW | OWN),
        (["plan", "--target", "big"], 600, SLOW | OWN),
        (["plan", "--target", "big", "--json"], 560, SLOW | OWN | {"rich"}),
        (["build", "--target", "big", "--engine", "no"], 620, SLOW | OWN),  # refused before any work
        (["history"], 720, (SLOW - {"requests"}) | OWN),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_quick_commands_import_little(locked_checkout: Checkout, line: list[str], most: int, without: set[str]) -> None:
    with scripted(lambda _: Answer(status=HTTPStatus.NOT_FOUND)) as registry:
        done = subprocess.run(
            [sys.executable, "-c", REPORT, *line],
            cwd=locked_checkout.root,
            env={"PYTHONPATH": str(REPOSITORY), "FACTORY_REGISTRY": f"{registry.address}/o/n", "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
    count, *modules = done.stderr.splitlines()[-1].split()
    assert without.isdisjoint(modules)
    assert int(count) <= most


def test_commands_may_write_the_bytecode_of_our_own_modules(inv: Inv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    inv("targets")
    assert not sys.dont_write_bytecode
