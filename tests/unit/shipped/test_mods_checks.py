"""Checks are evaluated on source code without importing it."""

import sys

import pytest

from images.shipped.mods.checks import failing, syntax_fault
from images.shipped.mods.manifest import Check

SOURCE = '''\
raise RuntimeError("importing this would fail")

class Plain:
    pass

class Model(Base, nn.Module, Generic[T]):
    @classmethod
    def supported(cls) -> bool:
        if cls.old:
            return False
        def inner():
            return "inner"
        return  True

    async def later(self):
        return await self.thing

if CONDITION:
    def choose():
        """Has a docstring."""
        return 1
else:
    def choose():
        return 2

def silent():
    lambda: 1
    "\\d"
'''


def check(**statement: str) -> Check:
    return Check.model_validate({"file": "x.py", **statement})


@pytest.mark.parametrize(
    "statement",
    [
        {"contains": "importing this"},
        {"lacks": "never said"},
        {"class": "Model", "base": "Generic[ T ]"},
        {"class": "Model", "contains": "def later"},
        {"function": "Model.supported", "returns": "True"},
        {"function": "Model.supported.inner", "returns": '"inner"'},
        {"function": "Model.later", "returns": "await self.thing"},
        {"function": "choose", "returns": "2"},
    ],
)
def test_a_true_statement_passes(statement: dict[str, str]) -> None:
    assert failing(check(**statement), SOURCE) is None


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ({"contains": "never said"}, "it does not contain the text"),
        ({"lacks": "importing"}, "it contains the text"),
        ({"class": "Model", "base": "Module"}, "Model has the bases Base, nn.Module, Generic[T]"),
        ({"class": "Plain", "base": "Base"}, "Plain has the bases none"),
        ({"class": "Modell", "base": "Base"}, "there is no class Modell"),
        ({"function": "Model", "contains": "1"}, "there is no function Model"),
        ({"function": "Model.supported", "returns": "'inner'"}, "Model.supported returns False; True"),
        ({"function": "silent", "returns": "1"}, "silent returns nothing"),
    ],
)
def test_a_false_statement_fails_with_the_actual_fact(statement: dict[str, str], fault: str) -> None:
    assert failing(check(**statement), SOURCE) == fault


def test_a_missing_or_invalid_file_fails_every_check() -> None:
    assert failing(check(contains="x"), None) == "the file is missing"
    assert "does not parse (line 1" in str(failing(check(function="f", contains="x"), "def f(:\n"))


def test_the_last_of_two_methods_with_the_same_name_counts() -> None:
    text = "class A:\n    def f(self):\n        return 1\n    def f(self):\n        return 2\n"
    assert failing(check(function="A.f", returns="2"), text) is None
    assert failing(check(function="A.f", returns="1"), text) == "A.f returns 2"


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("x.py", "x = 1\n", None),
        ("x.py", "x = '\\d' is 'y'\n", None),
        ("x.py", "def f():\nreturn 1\n", "line 2: expected an indented block"),
        ("x.py", "x = 1\nreturn x\n", "line 2: 'return' outside function"),
        ("x.py", "x = '\0'\n", "null byte"),
        ("x.cu", "not Python at all {\n", None),
    ],
)
def test_python_files_must_compile(path: str, text: str, fault: str | None) -> None:
    found = syntax_fault(path, text)
    assert found is None if fault is None else fault in str(found)


def test_a_check_imports_nothing() -> None:
    before = set(sys.modules)
    failing(check(function="f", contains="x"), "import antigravity\ndef f(): x\n")
    syntax_fault("x.py", "import antigravity\n")
    assert "antigravity" not in set(sys.modules) - before


def test_a_check_reads_as_a_sentence() -> None:
    assert str(check(contains="x")) == "x.py contains 'x'"
    assert str(check(function="f", lacks="x")) == "x.py: f lacks 'x'"
    assert str(check(function="f", returns="True")) == "x.py: f returns True"
    assert str(check(**{"class": "A", "base": "B"})) == "x.py: A has base B"


@pytest.mark.parametrize("deep", ["-" * 100_000 + "1", "+".join(["1"] * 2_000)])
def test_a_source_that_is_nested_too_deeply_fails_the_check(deep: str) -> None:
    fault = failing(check(function="f", returns="1"), f"def f():\n    return {deep}\n")
    assert fault == "the file does not parse (it is nested too deeply)"
