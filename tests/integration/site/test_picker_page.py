"""The picker of a model in a real browser: what fits, and the command for it."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.integration.site.conftest import Tabs

BIG = "models/big.html#image=big-v2.0-gpu-arm64"


def command(page: Page) -> str:
    return page.locator("#picker-start code").inner_text()


def test_a_page_in_a_folder_says_what_fits_and_has_the_command(site_folder: Path, tabs: Tabs) -> None:
    page = tabs(f"{site_folder.as_uri()}/{BIG}")
    expect(page.locator("#picker-verdict")).to_contain_text("Fits: room for 3 users with 65,536 tokens each.")
    expect(page.locator("#picker-memory figcaption")).to_contain_text("weights 60.0 GB")
    assert command(page).endswith("./inv run --target big@2.0/gpu/arm64")
    page.locator("select[name=context]").select_option("131072")
    page.get_by_label("Users at once").select_option("8")
    page.get_by_label("Port").fill("8001")
    expect(page.locator("#picker-verdict")).to_contain_text("Fits 2 of 8 users with 131,072 tokens each; others wait.")
    given = "--set PORT=8001 --set MAX_MODEL_LEN=131072 --set MAX_NUM_SEQS=8 --set GPU_MEMORY_UTILIZATION=0.87"
    assert command(page).endswith(given)
    page.get_by_label("Free memory, GB").fill("60")
    expect(page.locator("#picker-verdict")).to_contain_text("Does not fit: weights and working memory need 64.0 GB")


def test_a_link_is_a_question_and_nothing_in_it_is_markup(site: str, tabs: Tabs) -> None:
    page = tabs(f"{site}/{BIG}&context=8192&port=9000")
    assert command(page).endswith("--set PORT=9000 --set MAX_MODEL_LEN=8192")
    page.get_by_label("Users at once").select_option("2")
    asked = page.url
    assert "users=2" in asked
    page.goto("about:blank")
    page.goto(asked)
    expect(page.get_by_label("Users at once")).to_have_value("2")
    evil = "%3Cimg src=x onerror=alert(1)%3E"
    page = tabs(f"{site}/{BIG}&context={evil}&port={evil}&length=1&__proto__=1&{evil}={evil}")
    assert command(page).endswith("./inv run --target big@2.0/gpu/arm64")
    assert page.locator("#picker img").count() == 0


def test_a_link_chooses_what_the_form_shows_and_nothing_else_and_the_page_says_so(site: str, tabs: Tabs) -> None:
    evil = "MODEL=evil/x&TRUST_REMOTE_CODE=1&EXTRA_ARGS=--evil&MODEL_PATH=/evil&HF_ENDPOINT=evil&SETTING=evil"
    page = tabs(f"{site}/{BIG}&context=8192&port=9000&{evil}")
    assert command(page).endswith("./inv run --target big@2.0/gpu/arm64 --set PORT=9000 --set MAX_MODEL_LEN=8192")
    linked = page.locator("#picker-linked")
    expect(linked).to_have_text("The link to this page chose: image, context, port.")
    top = "(name) => document.getElementById(name).getBoundingClientRect().top"
    assert page.evaluate(top, "picker-linked") < page.evaluate(top, "picker-start"), "above the command"
    assert "evil" not in page.locator("main").inner_text()
    page.get_by_label("Port").fill("8001")
    expect(linked).to_have_text("The link to this page chose: image, context.")
    page = tabs(f"{site}/models/big.html")
    expect(page.locator("#picker-linked")).to_have_text("")


def test_the_command_stays_in_view_while_its_settings_are_chosen(site: str, tabs: Tabs) -> None:
    page = tabs(f"{site}/{BIG}", viewport={"width": 390, "height": 500})
    page.get_by_label("Port").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('input[name=key]').scrollIntoView({ block: 'end' })")
    expect(page.locator("#picker-start code")).to_be_in_viewport()
    expect(page.get_by_label("Clients need a key")).to_be_in_viewport()


def test_the_command_of_a_published_image_takes_a_port_and_a_key_by_name(site: str, tabs: Tabs) -> None:
    page = tabs(f"{site}/models/tiny.html")
    expect(page.locator("select[name=context]")).to_be_disabled()
    page.get_by_label("Port").fill("8001")
    page.get_by_label("Clients need a key").check()
    *_, port, key, image = command(page).split(" \\\n  ")
    assert (port, key) == ("--env PORT=8001", "--env VLLM_API_KEY")
    assert "@sha256:" in image
    expect(page.locator("#picker-verdict")).to_contain_text("Set VLLM_API_KEY in your shell first")


def test_kv_disk_takes_its_memory_and_brings_its_volume(site: str, tabs: Tabs) -> None:
    page = tabs(f"{site}/{BIG}&context=131072&users=8")
    without = "--set MAX_MODEL_LEN=131072 --set MAX_NUM_SEQS=8 --set GPU_MEMORY_UTILIZATION="
    assert command(page).endswith(f"{without}0.87")
    page.get_by_label("Keep prompts on the disk").check()
    assert command(page).endswith(f"{without}0.84 --set KV_DISK=/kv")
    expect(page.locator("#picker-memory figcaption")).to_contain_text("on its way to the disk 4.0 GB")
    page = tabs(f"{site}/models/tiny.html#disk=on")
    expect(page.get_by_label("Keep prompts on the disk")).to_be_disabled()
    assert "KV_DISK" not in command(page), "there is no GPU"
