"""The pieces of pages: pictures, tables of documents, scripts with data, folded commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from imagefactory.project.matrix import load_matrix
from imagefactory.site.documents import as_script
from imagefactory.site.guides import inline, plain, read_guides, table_rows
from imagefactory.site.model_page import badges
from imagefactory.site.pictures import WIDTH, PictureLayer, layer_file, layer_picture, timeline_file
from imagefactory.site.rendering import about, folded, make_environment, simple
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.small_site import HOSTILE


@pytest.mark.parametrize("sizes", [[1000, 1, 0], [0, 0], [5]])
def test_picture_fills_its_width_and_every_layer_is_seen(sizes: list[int]) -> None:
    picture = ET.fromstring(str(layer_picture([PictureLayer("wheel", "a", size) for size in sizes])))  # noqa: S314
    boxes = picture.findall(".//rect")
    assert len(boxes) == len(sizes)
    assert all(float(box.attrib["width"]) >= 1 for box in boxes)
    last = boxes[-1].attrib
    assert float(last["x"]) + float(last["width"]) == pytest.approx(WIDTH, abs=2)


def test_pictures_escape_names() -> None:
    picture = str(layer_picture([PictureLayer(HOSTILE, HOSTILE, 1)]))
    file = layer_file([PictureLayer(HOSTILE, HOSTILE, 1)])
    chart = make_environment().get_template("bars.html").render(figures=[(HOSTILE, 1.0, True), ("b", 0.0, False)])
    groups = ET.fromstring(chart).findall("li")  # noqa: S314
    assert [group.attrib["class"] for group in groups] == ["own", "published"], "they look different"
    for text in (picture, file, chart):
        ET.fromstring(text)  # noqa: S314 - it is well-formed
        assert "<script" not in text
        assert "<img" not in text


def test_the_file_of_layers_sums_up_each_kind_and_has_letters_for_a_phone() -> None:
    wheels = [PictureLayer("wheel", "torch", 3_000_000), PictureLayer("pure-bundle", "2 wheels", 1_000_000)]
    text = layer_file([*wheels, PictureLayer("model", "tiny", 4_500)])
    picture = ET.fromstring(text)  # noqa: S314 - our own
    told = [element.text for element in picture.iter() if element.tag.endswith("}text")]
    assert told == ["wheels 4.0 MB", "model 4.5 kB"]
    # A phone shows it in 358 pixels.
    [width, size] = [float(number) for number in re.findall(r'viewBox="0 0 (\d+) .*font:(\d+)px', text)[0]]
    assert size * 358 / width > 10


def test_a_timeline_is_as_long_as_its_steps() -> None:
    text = timeline_file({HOSTILE: {"weights": 30.0, "imports": 10.0}, "second": {"imports": 20.0}})
    assert "<script" not in text
    picture = ET.fromstring(text)  # noqa: S314 - our own
    steps = [box for box in picture.iter() if box.tag.endswith("rect") and box.attrib["height"] == "20"]
    assert [box.attrib["class"] for box in steps] == ["imports", "weights", "imports"], "in the order of a start"
    widths = [float(box.attrib["width"]) for box in steps]
    assert widths == pytest.approx([widths[0], 3 * widths[0], 2 * widths[0]], abs=0.2)
    assert ">40 s<" in text
    assert ET.fromstring(timeline_file({})) is not None  # noqa: S314


def test_inline_markup_is_rendered_and_the_rest_escaped() -> None:
    text = "`a<b` and **bold** or *soft* [docs](x.md#y) " + HOSTILE
    html = str(inline(text))
    assert html.startswith("<code>a&lt;b</code> and <strong>bold</strong> or <em>soft</em> docs ")
    assert "<script" not in html
    assert plain("`a|b` **c**") == "a|b c"


def test_rows_of_a_table_are_read_without_its_head() -> None:
    text = "| a | b |\n|---|---|\n| 1 \\| x | |\n| `2` | c |\n"
    assert table_rows(text, 2) == [["1 | x", ""], ["`2`", "c"]]
    assert table_rows("", 2) == []


def test_badges_are_what_the_image_serves_by_default() -> None:
    models = load_matrix(REPOSITORY / "matrix.yaml").models
    assert models["gemma4-31b"].reads_images
    assert badges(models["gemma4-31b"]) == ["chat"], "its image takes text alone"
    assert {"tools", "vision"} <= set(badges(models["gemma4-31b-nvfp4"]))


def test_there_is_the_advice_that_the_site_needs_and_none_without_documentation(tmp_path: Path) -> None:
    guides = read_guides(REPOSITORY)
    assert len(guides.choices) == 12
    assert [choice.use for choice in guides.choices].count("TurboQuant") == 2
    assert len(guides.troubles) >= 10
    assert guides.exit_codes.keys() == {64, 65, 66, 67, 68}
    assert read_guides(tmp_path).choices == ()


def test_data_in_a_script_cannot_end_it() -> None:
    document = {"a": "</script>\u2028<!--", "it's": '"'}
    text = as_script("found", document).removeprefix("window.found = JSON.parse('").removesuffix("');\n")
    assert not re.search("[<>'\u2028]", text)
    assert json.loads(text.replace(r"\\", "\\")) == document


def test_folded_command_has_the_same_words() -> None:
    lines = ["docker run", *(f"--option-{number} value" for number in range(20)), "image"]
    command = folded(" \\\n  ".join(lines))
    assert command.replace("\\\n", " ").split() == " ".join(lines).split()
    assert 3 < len(command.splitlines()) < 12


def test_licences_of_one_line_come_first_and_few() -> None:
    licences = {"MIT": 9, "A AND " * 20: 8, "ISC": 7, "Zlib": 1}
    assert simple(licences, most=2) == {"MIT": 9, "ISC": 7}


@pytest.mark.parametrize(("count", "text"), [(33_000_000_000, "33 GB"), (900_000_000, "0.9 GB"), (3600, "3.6 kB")])
def test_sizes_that_are_estimates_have_few_figures(count: int, text: str) -> None:
    assert about(count) == text
