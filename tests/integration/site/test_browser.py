"""The tabs that tests look at pages with notice what is wrong with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.site.conftest import Tabs, violations

POLICY = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'


def write_page(folder: Path, body: str, head: str = "") -> str:
    page = folder / "page.html"
    page.write_text(
        f'<!doctype html><html lang="en"><head><title>T</title>{head}</head>'
        f"<body><main><h1>T</h1>{body}</main></body></html>"
    )
    return page.as_uri()


def test_good_page_has_nothing_to_complain_about(tmp_path: Path, tabs: Tabs) -> None:
    page = tabs(write_page(tmp_path, "<p>Hello</p>", POLICY), color_scheme="dark")
    assert page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is True
    assert violations(page) == []


def test_request_to_another_host_is_noticed(tmp_path: Path, spoiled_tabs: Tabs) -> None:
    spoiled_tabs(write_page(tmp_path, '<img alt="" src="http://image.invalid/x.png">'))
    assert spoiled_tabs.astray == ["http://image.invalid/x.png"]


@pytest.mark.parametrize(
    ("body", "head", "said"),
    [
        ("<script>throw new Error('oh no')</script>", "", "oh no"),
        ("<script>var x = 1</script>", POLICY, "Content Security Policy"),
    ],
)
def test_errors_of_scripts_are_noticed(
    tmp_path: Path, spoiled_tabs: Tabs, body: str, head: str, said: str
) -> None:
    spoiled_tabs(write_page(tmp_path, body, head))
    assert any(said in complaint for complaint in spoiled_tabs.complaints)


def test_picture_without_a_text_is_a_violation(tmp_path: Path, tabs: Tabs) -> None:
    page = tabs(write_page(tmp_path, '<img src="data:,">'))
    assert [found.partition(":")[0] for found in violations(page)] == ["image-alt"]
