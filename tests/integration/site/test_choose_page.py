"""The question on the home page in a real browser: asked by mouse and keyboard, answered with what fits."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.fixtures.small_site import TINY
from tests.integration.site.conftest import Tabs, violations
from tests.integration.site.test_pages import DESK, PHONE, SHIFTS

ASKED = "#for=coding&machine=gb10&free=100&context=65536&users=1"


@pytest.fixture
def home(address: str) -> str:
    """The address of a page with nothing but the question."""
    return address.replace("index.html", "choose.html")


@pytest.fixture
def page(tabs: Tabs, home: str) -> Page:
    """The question of a coding agent on a DGX Spark with 100 GB left."""
    return tabs(home + ASKED, **DESK)


def first(page: Page) -> str:
    return page.locator("#answers h3 a").first.inner_text()


def test_a_question_is_answered_with_what_fits_and_one_command(page: Page) -> None:
    assert page.locator("#answers > ol > li").count() == 3
    answer = page.locator("#answers > ol > li").first
    expect(answer.locator(".chip").first).to_contain_text("with 65,536 tokens each")
    expect(answer.locator("figcaption")).to_contain_text("in use already 28.5 GB")
    expect(answer.locator("code")).to_contain_text("--env MAX_MODEL_LEN=65536")
    expect(page.get_by_text("that would not start, and why")).to_have_count(0)
    page.get_by_label("Memory that is left, GB").fill("60 GB")
    expect(page.locator("#answers")).to_contain_text("that would not start, and why")
    page.get_by_label("Memory that is left, GB").fill("some")
    expect(page.get_by_role("status")).to_contain_text("some is not an amount of memory")
    expect(page.locator("#answers li")).to_have_count(0)


def test_the_address_holds_the_question_and_old_ones_lead_to_the_picker(page: Page, home: str) -> None:
    coding = first(page)
    page.get_by_label("What for").focus()
    page.keyboard.type("hard")  # by keyboard
    expect(page.locator("#answers h3 a").first).not_to_have_text(coding)
    page.get_by_label("What for").blur()
    assert "for=hard+questions" in page.url
    asked, answer = page.url, first(page)
    page.goto("about:blank")
    page.goto(asked)
    assert first(page) == answer
    page.goto(f"{home}#for=chat&context=65536")
    page.reload()
    page.get_by_role("link", name="Change settings").first.click()
    expect(page.locator("#picker-set-MAX_MODEL_LEN")).to_have_value("65536")
    page.goto(f"{home}#model=gpt-oss-120b&machine=gb10&MAX_NUM_SEQS=3")
    page.reload()
    page.wait_for_url("**/models/gpt-oss-120b.html#model=gpt-oss-120b&machine=gb10*")
    expect(page.locator("#picker-panel code")).to_contain_text("--env MAX_NUM_SEQS=3")


@pytest.mark.parametrize("options", [DESK, PHONE], ids=["desk", "phone in the dark"])
def test_answers_can_be_read_by_all_and_nothing_moves(tabs: Tabs, home: str, options: dict[str, object]) -> None:
    page = tabs(home, **options)
    assert page.evaluate(SHIFTS) == 0
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_first_load_is_light(picker_page: Path, site_folder: Path) -> None:
    page = picker_page.with_name("choose.html").read_text("utf-8")
    loaded = [path for path in picker_page.parent.rglob("*.*") if path.name in page or path.name == "choose.html"]
    loaded += [site_folder / "index.html"]
    weights = {path.name: len(gzip.compress(path.read_bytes())) for path in loaded}
    assert {"choose-data.js", "choose.js", "site.css"} <= set(weights)
    assert sum(weights.values()) < 150_000, weights


def test_tables_sort_by_keyboard(site: str, tabs: Tabs) -> None:
    page = tabs(f"{site}/index.html")
    rows = page.locator("#models-table tbody th a")
    before = rows.all_inner_texts()
    column = page.get_by_role("columnheader", name="model", exact=True)
    for direction, names in (("ascending", sorted(before)), ("descending", sorted(before, reverse=True))):
        column.get_by_role("button").press("Enter")
        assert rows.all_inner_texts() == names
        expect(column).to_have_attribute("aria-sort", direction)


def test_two_images_are_compared_at_an_address(site: str, tabs: Tabs) -> None:
    other = TINY.replace("tiny", "big")
    page = tabs(f"{site}/compare.html?one={TINY}&two={other}", **DESK)
    expect(page.get_by_role("heading", name="Layers that change")).to_be_visible()
    expect(page.locator("#compared")).to_contain_text("./inv bench.compare tiny@2.0/cpu big@2.0/cpu")
    assert violations(page) == []
    page.get_by_label("Two").select_option("tiny")
    expect(page.get_by_role("status")).to_contain_text(f"{TINY} and tiny differ in 0 of")
    page.go_back()
    expect(page.get_by_role("status")).to_contain_text(f"{TINY} and {other} differ in")
    page.goto(f"{site}/compare.html?one=gone&two=tiny")
    expect(page.get_by_role("status")).to_have_text("There is no gone here any more.")
