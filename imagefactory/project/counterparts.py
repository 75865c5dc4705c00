"""Says which images run the smoke level `serve` for images that need a GPU, and which versions only a GPU can serve."""

from imagefactory.errors import LockError
from imagefactory.project.cells import (
    Cell,
    all_combinations,
    first_of_release,
    known_faults,
    reason_excluded,
    reason_unlocked,
)
from imagefactory.project.matrix import Matrix
from imagefactory.project.project import Project
from imagefactory.project.server_versions import version_title
from imagefactory.project.servers.known import server_of


def has_gpu(matrix: Matrix, arch: str) -> bool:
    return matrix.archs[arch].capability is not None


def cpu_counterparts(project: Project, version: str) -> list[Cell]:
    """List the cells of a version's release that serve a generated model without a GPU, locked or not."""
    matrix = project.matrix
    # Versions of one release differ in kernels, which no CPU runs; an image may have a version that is not here.
    release = first_of_release(matrix, version) if version in matrix.versions else version
    return [
        cell
        for cell in all_combinations(matrix, release)
        if matrix.models[cell.model].generated and not has_gpu(matrix, cell.arch) and not reason_excluded(matrix, cell)
    ]


def serving_elsewhere(project: Project, cell: Cell) -> str:
    """Return the platform that has to run the level `serve` for a cell; empty if the cell's own can.

    That level tests Python code, which is the same on every platform.
    """
    if not has_gpu(project.matrix, cell.arch) or server_of(cell).on_cpu:
        return ""
    counterparts = cpu_counterparts(project, cell.version)
    platforms = [counterpart.platform for counterpart in counterparts if project.is_locked(counterpart)]
    return "" if not platforms or cell.platform in platforms else platforms[0]


def reason_unserved(project: Project, cell: Cell) -> str:
    """Say why only a machine with its GPU can run the level `serve` for a cell; empty if others can."""
    if not has_gpu(project.matrix, cell.arch) or server_of(cell).on_cpu:
        return ""
    counterparts = cpu_counterparts(project, cell.version)
    if any(project.is_locked(counterpart) for counterpart in counterparts):
        return ""
    lack = f"{counterparts[0]} has no lock" if counterparts else f"{cell.runs} has no cell for a CPU"
    if counterparts and (reason := reason_unlocked(project.matrix, counterparts[0])):
        lack = f"{lack} ({reason})"
    means = "without it no tag, and it cannot become a default"
    return f"the smoke level `serve` needs the image's GPU, since {lack}; {means}"


def faults_of(project: Project, cell: Cell) -> list[str]:
    """List what is wrong with a cell's image: what the matrix knows, and that no machine of a night can serve it."""
    return [*known_faults(project.matrix, cell), *filter(None, [reason_unserved(project, cell)])]


def reason_no_default(project: Project, version: str) -> str:
    """Say why a version cannot be the default on the default arch; empty if it can."""
    cells = all_combinations(project.matrix, version, project.matrix.defaults.arch)
    return next((reason for cell in cells if (reason := reason_unserved(project, cell))), "")


def refuse_unserved_default(project: Project) -> None:
    """Raise an error if a default version is one that no night can serve."""
    defaults = project.matrix.defaults
    for version in filter(None, (defaults.vllm, defaults.tags)):
        if why := reason_no_default(project, version):
            raise LockError(
                "untried-default",
                f"{version_title(version)} cannot be a default.",
                where="`defaults` in matrix.yaml",
                why=f"{why[0].upper()}{why[1:]}.",
                fix="Keep the default until its build for CPUs is out, and lock that; or choose another version.",
            )
