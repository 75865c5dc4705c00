"""A GPU that is slowed down by heat or a lack of power, or stuck, is told from one that works."""

import pytest

from images.serve.program import heat

IDLE = "NVIDIA GB10, 41, 11.02, 0, 208, 0x0000000000000001"
WORKING = "NVIDIA GB10, 78, 45.31, 96, 2405, 0x0000000000000000"
CAPPED = "NVIDIA H200, 61, 699.87, 100, 1635, 0x0000000000000004"
NO_FIGURES = "NVIDIA GB10, [N/A], [N/A], [N/A], [N/A], [Not Supported]"


@pytest.mark.parametrize("text", [IDLE, WORKING, CAPPED, NO_FIGURES, "", "Failed to initialize NVML\n", "a, b, c"])
def test_a_gpu_that_is_well_or_cannot_be_read_is_no_problem(text: str) -> None:
    assert not list(heat.problems(text))


@pytest.mark.parametrize(
    ("line", "what", "remedy"),
    [
        (
            "NVIDIA GB10, 91, 44.10, 96, 1800, 0x0000000000000020",
            "slowed down to 1800 MHz by heat, at 91 °C",
            "-lgc 0,2",
        ),
        ("NVIDIA H200, 92, 400.00, 96, 900, 0x0000000000000048", "slowed down to 900 MHz by heat, at 92 °C", "vents"),
        ("NVIDIA GB10, 50, 30.00, 96, 507, 0x0000000000000088", "lack of power (power brake)", "unplug"),
        ("NVIDIA GB10, 52, 20.40, 95, 2405, 0x0000000000000000", "95 % busy, but draws 20 W as if idle", "unplug"),
    ],
)
def test_what_slows_a_gpu_down_is_named_with_what_to_do(line: str, what: str, remedy: str) -> None:
    [(said, advice)] = heat.problems(f"{WORKING}\n{line}\n")
    assert what in said
    assert remedy in advice


def test_figures_are_shown_as_far_as_they_are_known() -> None:
    assert heat.describe(WORKING) == "78 °C, 45 W, 96 % busy, 2405 MHz"
    assert heat.describe("NVIDIA GB10, 41, [N/A], 0, 208, 0x1") == "41 °C, 0 % busy, 208 MHz"
    assert heat.describe(NO_FIGURES) == heat.describe("") == ""
