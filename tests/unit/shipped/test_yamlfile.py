"""YAML is parsed strictly, with the line of every key and item."""

from pathlib import Path

import pytest

from images.shipped.yamlfile import parse_yaml, read_yaml
from tests.fixtures.failures import raises


def test_every_key_and_item_has_its_line_and_an_unknown_path_that_of_its_longest_known_part() -> None:
    file = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2}\n", "a.yaml")
    assert file.data == {"a": 1, "b": ["x", {"c": 2}]}
    lines = {("b", 1, "c"): 4, (): 1, ("b", "missing", 3): 2, ("b", 1, "a-validators-own-word", "c"): 4}
    assert {path: str(file.location(path)) for path in lines} == {
        path: f"a.yaml:{line}" for path, line in lines.items()
    }


def test_a_duplicate_key_is_refused_with_both_lines() -> None:
    with raises("duplicate-key") as failure:
        parse_yaml("models:\n  a: 1\n  b: 2\n  a: 3\n", "a.yaml")
    assert failure.value.where == "a.yaml:4"
    assert "line 2" in failure.value.why


def test_dates_and_versions_stay_text() -> None:
    assert parse_yaml("# only a comment\n", "a.yaml").data is None
    assert parse_yaml("a: 2024-01-01\nb: 0.32.0\n", "a.yaml").data == {"a": "2024-01-01", "b": "0.32.0"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nb: [1\n", 3),
        ("a: 1\n\tb: 2\n", 2),
        ("a: 1\nb: >=0.26\n", 2),
        ("a: &x 1\nb: *x\n", 2),
        ("a: 1\nb: !!python/object:os.system x\n", 2),
        ("a: !!int ''\n", 1),
        ("a: 1\n0.32: x\n", 2),
        ("a: 1\n<<: {b: 2}\n", 2),
        ("a: 1\n---\nb: 2\n", 2),
        ("a: 1\nb: \0\n", 2),
        ("a:\n" + "[" * 100_000, 2),
    ],
)
def test_unsupported_yaml_is_refused_with_its_line(text: str, line: int) -> None:
    with raises("bad-yaml") as failure:
        parse_yaml(text, "a.yaml")
    assert failure.value.why
    assert failure.value.where == f"a.yaml:{line}"


def test_a_missing_unreadable_or_binary_file_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: 1\nb: \xff\xfe\n")
    for path, place in ((tmp_path / "none.yaml", "none.yaml"), (tmp_path, tmp_path.name), (binary, "yaml:2")):
        with raises("bad-yaml") as failure:
            read_yaml(path)
        assert failure.value.where.endswith(place)
