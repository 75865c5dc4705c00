"""From a target to its tags: push, attach what is said about the image, test it by its digest, promote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from imagefactory.build.assemble import lay_out_if_here
from imagefactory.build.watch import Watcher
from imagefactory.environment.progress import Say
from imagefactory.errors import FactoryError
from imagefactory.locks.project import Project
from imagefactory.matrix.cells import Cell
from imagefactory.oci.registry.credentials import find_credentials
from imagefactory.oci.registry.image_push import PushWatcher
from imagefactory.oci.registry.repository import Repository
from imagefactory.publish.promote import Promotion, promote
from imagefactory.publish.push import Staged, push
from imagefactory.publish.smoke_records import attach_record, read_records
from imagefactory.smoke.levels import required_levels
from imagefactory.smoke.record import Level, SmokeRecord

if TYPE_CHECKING:
    from imagefactory.publish.attest.signing import Signer

Test = Callable[[Project, Repository, Staged, Sequence[Level], Say], SmokeRecord]


def publish(
    project: Project,
    repository: Repository,
    cells: Sequence[Cell],
    watch: Watcher,
    say: Say,
    *,
    signer: Signer | None = None,
    pushing: PushWatcher | None = None,
    nightly: bool = False,
    again: bool = False,
    test: Test | None = None,
) -> Promotion:
    """Publish cells. What fails its tests is on record in the registry, and gets no tag."""
    from imagefactory.publish.attest.attachments import attach_all  # noqa: PLC0415 - with the signing of statements

    tested: list[Cell] = []
    refused: list[FactoryError] = []
    for staged in push(project, repository, cells, watch, say, pushing=pushing):
        say(f"{staged.plan.target}: {staged.image.digest}")
        lay_out_if_here(project, staged.plan, staged.image)
        try:
            attach_all(repository, project, staged.plan, staged.pushed.descriptor, signer)
            _test(project, repository, staged, say, test or smoke_pulled)
        except FactoryError as error:  # one that cannot be tested does not keep the others from their tags
            refused.append(error)
        else:
            tested.append(staged.plan.cell)
    outcome = promote(project, repository, tested, nightly=nightly, again=again)
    return Promotion(outcome.promoted, [*refused, *outcome.refused])


def _test(project: Project, repository: Repository, staged: Staged, say: Say, test: Test) -> None:
    """Test an image at the levels that it has not passed yet, and put what was found beside it."""
    record = read_records(repository, staged.image.digest, staged.plan.key)
    passed = (
        [level for level, result in record.levels.items() if result.outcome == "passed"] if record else []
    )
    levels = [level for level in required_levels(project.matrix, staged.plan.arch) if level not in passed]
    if passed and record:
        say(f"{staged.plan.target}: passed on {record.started:%Y-%m-%d}: {', '.join(passed)}")
    if levels:
        attach_record(repository, test(project, repository, staged, levels, say))


def smoke_pulled(
    project: Project, repository: Repository, staged: Staged, levels: Sequence[Level], say: Say
) -> SmokeRecord:
    """Test an image as users get it: pulled from the registry, by its digest."""
    from imagefactory.smoke.runner import smoke  # noqa: PLC0415 - with Docker's client
    from imagefactory.smoke.subject import subject_of_image  # noqa: PLC0415

    reference = f"{repository.reference.name}@{staged.image.digest}"
    subject = subject_of_image(project, reference, auth=docker_login(repository))
    return smoke(project, subject, levels, say)


def docker_login(repository: Repository) -> Mapping[str, str] | None:
    """Let the daemon pull with the credentials that were good for pushing."""
    found = find_credentials(repository.reference.registry, repository.reference.repository)
    if found is None:
        return None
    if found.identity_token:
        return {"identitytoken": found.secret}
    return {"username": found.username, "password": found.secret}
