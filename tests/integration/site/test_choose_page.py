"""The question on the home page in a real browser: asked by mouse and keyboard, answered with what fits."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.fixtures.small_site import TINY
from tests.integration.site.conftest import Tabs, violations
from tests.integration.site.test_pages import DESK

ASKED = "#for=coding&machine=gpu&free=100&context=65536&users=1"


@pytest.fixture
def page(tabs: Tabs, site: str) -> Page:
    """The question of a coding agent on a machine with 100 GB left."""
    return tabs(f"{site}/index.html{ASKED}", **DESK)


def test_a_question_is_answered_with_what_fits_and_one_command(page: Page) -> None:
    answer = page.locator("#answers > ol > li")
    expect(answer).to_have_count(1)
    expect(answer.locator(".chip").first).to_have_text("fits: room for 3 users with 65,536 tokens each")
    expect(answer.locator("figcaption")).to_contain_text("in use already 28.0 GB")
    expect(answer.locator("code")).to_contain_text("--set GPU_MEMORY_UTILIZATION=0.75")
    page.get_by_label("Free memory, GB").fill("60")
    expect(answer).to_have_count(0)
    page.get_by_text("1 model that would not start, and why").click()
    expect(page.locator("#answers")).to_contain_text("big: weights and working memory need 64.0 GB, and 55.0 GB can be")
    page.get_by_label("Free memory, GB").fill("")
    expect(answer).to_have_count(1)


def test_the_address_holds_the_question_and_leads_to_the_picker(page: Page) -> None:
    page.locator("#choose-form select[name=for]").focus()
    page.keyboard.type("hard")  # by keyboard
    expect(page.locator("#choose-said")).to_have_text("No model for hard questions has an image for A GPU.")
    page.locator("#choose-form select[name=for]").blur()
    assert "for=hard+questions" in page.url
    page.locator("#choose-form select[name=for]").select_option("chat")
    asked = page.url
    page.goto("about:blank")
    page.goto(asked)
    page.get_by_role("link", name="Change settings").click()
    expect(page.locator("#picker-form select[name=context]")).to_have_value("65536")
    expect(page.get_by_label("Free memory, GB")).to_have_value("100")


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
