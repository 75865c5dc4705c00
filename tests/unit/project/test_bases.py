"""How long bases and older versions are kept, and what `plan` says about images; no test asks the clock."""

from datetime import date, timedelta

import pytest

from imagefactory.project.cells import buildable, reason_unlocked, support_warnings, versions_without_reason
from imagefactory.project.matrix import load_matrix
from imagefactory.project.project import Project, locked_cells
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.inv import Inv

LAST = date(2026, 6, 10)
MATRIX = load_matrix(REPOSITORY / "matrix.yaml")


def test_warning_names_the_archs_once_and_archs_with_a_gpu_have_regular_support() -> None:
    assert all(one.supported_until for one in MATRIX.bases.values())
    cells = [cell for cell in buildable(MATRIX) if MATRIX.archs[cell.arch].capability]
    assert support_warnings(MATRIX, cells, date(2026, 11, 15)) == []
    [warning] = support_warnings(MATRIX, buildable(MATRIX), date(2026, 11, 15))
    assert warning.startswith(
        "cpu: Debian bookworm has had no regular security support since 2026-06-10; it stays because "
    )
    both = support_warnings(MATRIX, buildable(MATRIX), date(2030, 7, 1))
    assert [text.partition(": Debian")[0] for text in both[:2]] == [
        "gb10, b200, gb200, b300, h100, a100, rtx5090",
        "cpu",
    ]


def test_a_version_past_its_day_is_warned_of() -> None:
    kept = MATRIX.kept["0.28.0"].until
    cells = [cell for cell in buildable(MATRIX) if (cell.version, cell.arch) == ("0.28.0", MATRIX.defaults.arch)]
    assert support_warnings(MATRIX, cells, kept) == []
    assert support_warnings(MATRIX, cells, kept + timedelta(1)) == [f"vLLM 0.28.0 was to be kept until {kept}"]


@pytest.mark.parametrize(("today", "warns"), [(LAST, False), (LAST + timedelta(1), True)])
def test_plan_warns_without_changing_its_output(
    own_inv: Inv, monkeypatch: pytest.MonkeyPatch, today: date, *, warns: bool
) -> None:
    before = own_inv("plan", "--json").stdout
    own_inv.checkout.edit_matrix('    glibc: "2.36"\n', f'    glibc: "2.36"\n    supported_until: {LAST}\n')
    monkeypatch.setattr("imagefactory.cli.command.today", lambda: today)
    done = own_inv("plan", "--json")
    assert (done.returncode, done.stdout) == (0, before)
    assert ("warning: gpu: Debian bookworm has had no regular security support" in done.stderr) == warns


def test_plan_says_what_is_wrong_with_the_images_that_a_rule_concerns(own_inv: Inv) -> None:
    rule = "known_faults:\n  - {when: {arch: gpu}, reason: it hangs after an hour}\n"
    own_inv.checkout.edit_matrix("conflicts:\n", f"{rule}conflicts:\n")
    assert own_inv("plan", "big/gpu").stdout.splitlines()[-1] == "known fault: it hangs after an hour"
    assert "known fault" not in own_inv("plan", "tiny/cpu").stdout


def test_plan_says_which_pull_requests_an_image_has(own_inv: Inv) -> None:
    rule = "merged:\n  - {when: {arch: gpu}, reason: fast drafts are inside since 1.9}\n"
    own_inv.checkout.edit_matrix("conflicts:\n", f"{rule}conflicts:\n")
    assert own_inv("plan", "big/gpu").stdout.splitlines()[-1] == "merged: fast drafts are inside since 1.9"
    assert "merged" not in own_inv("plan", "tiny/cpu").stdout


def test_a_combination_without_a_lock_has_a_reason() -> None:
    project = Project(REPOSITORY)
    unlocked = [cell for cell in buildable(MATRIX) if not project.is_locked(cell)]
    assert [cell for cell in unlocked if not reason_unlocked(MATRIX, cell)] == []


def test_who_asks_for_it_reads_the_reason(own_inv: Inv) -> None:
    rule = "unlocked:\n  - {when: {arch: gpu}, reason: nobody has such a machine}\n"
    own_inv.checkout.edit_matrix("conflicts:\n", f"{rule}conflicts:\n")
    project = Project(own_inv.checkout.root)
    cell = next(cell for cell in locked_cells(project) if cell.arch == "gpu")
    locked = f"{cell.version}/gpu"
    assert locked not in own_inv("targets").stderr
    project.wheel_lock_path(cell).unlink()
    for name in ("plan", "build"):
        done = own_inv(name, "--target", cell.full_target)
        assert done.returncode
        assert "error[no-lock]" in done.stderr
        assert "why:   Nobody has such a machine." in done.stderr
        assert f"./inv lock --target {cell.full_target}" in done.stderr
    [line] = [line for line in own_inv("targets").stderr.splitlines() if line.startswith("not locked (")]
    assert locked in line
    assert line.endswith("): nobody has such a machine")


def test_an_older_version_that_nobody_gave_a_reason_for_is_found() -> None:
    assert versions_without_reason(MATRIX, MATRIX.versions) == []
    unexplained = versions_without_reason(MATRIX.model_copy(update={"kept": {}}), MATRIX.versions)
    assert {*unexplained} == {*MATRIX.kept}
    assert MATRIX.defaults.vllm not in unexplained, "it may stay the default beside a newer release"
