"""Attaches what a scan for vulnerabilities says to the images that it is about."""

from collections.abc import Iterable
from dataclasses import replace

from imagefactory.errors import FactoryError
from imagefactory.oci.registry.artifacts import TITLE, Payload
from imagefactory.oci.registry.referrers import Attachment, dated
from imagefactory.project.project import locked_cells
from imagefactory.publish.attest.components import package_urls
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.history import current_images
from imagefactory.publish.image_contents import contents_in_registry
from imagefactory.publish.run import PublishRun
from imagefactory.publish.staging import Outcomes, Staged
from imagefactory.publish.vulnerabilities import VULNERABILITIES_TYPE, Scan


def attach_scans(run: PublishRun, scan: Scan, staged: Outcomes[Staged]) -> Outcomes[Staged]:
    """Attach what a scan says to staged images and to those that tags name; one that fails stops no other."""
    given = list(package_urls(run.project, locked_cells(run.project)))
    scanned = staged.then(lambda image: replace(image, dossier=_scanned(run, scan, image.dossier, given)))
    done = {image.digest for image in scanned.finished.values()}
    for image in {current.image.digest: current.image for current in current_images(run.gate.snapshot.catalog)}:
        if image not in done:
            _scanned(run, scan, Dossier(run.repository, image), given)
    return scanned


def _scanned(run: PublishRun, scan: Scan, dossier: Dossier, given: Iterable[tuple[str, str]]) -> Dossier:
    """Attach a record, unless a recent one says the same."""
    try:
        image = contents_in_registry(dossier)
        if image.packages is None:
            run.say(f"{dossier.image}: not scanned, since no SBOM is attached")
            return dossier
        record = scan.record(dossier.image, image.packages, given)
        if not record.repeats(dossier.scan):
            payload = Payload(VULNERABILITIES_TYPE, record.model_dump_json().encode(), {TITLE: "vulnerabilities.json"})
            dossier = dossier.attach(Attachment(VULNERABILITIES_TYPE, [payload], dated(record.scanned)))
        run.say(f"{image.cell.full_target}: known vulnerabilities: {record.line}")
    except FactoryError as error:
        run.say(f"{dossier.image}: {error.what} {error.why}")
    return dossier
