"""The tabs that tests look at pages with notice what is wrong with one."""

from __future__ import annotations

from pathlib import Path

from tests.integration.site.conftest import Tabs, violations

POLICY = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
SPOILED = """<img src="http://image.invalid/x.png"><script>throw new Error('oh no')</script>"""


def write_page(folder: Path, body: str, head: str = "") -> str:
    page = folder / "page.html"
    page.write_text(
        f'<!doctype html><html lang="en"><head><title>T</title>{head}</head>'
        f"<body><main><h1>T</h1>{body}</main></body></html>"
    )
    return page.as_uri()


def test_requests_errors_and_violations_are_noticed(tmp_path: Path, spoiled_tabs: Tabs) -> None:
    page = spoiled_tabs(write_page(tmp_path, SPOILED))
    assert spoiled_tabs.astray == ["http://image.invalid/x.png"]
    assert any("oh no" in complaint for complaint in spoiled_tabs.complaints)
    assert [found.partition(":")[0] for found in violations(page)] == ["image-alt"]
    page.goto(write_page(tmp_path, "<script>var x = 1</script>", POLICY))
    assert any("Content Security Policy" in complaint for complaint in spoiled_tabs.complaints)
