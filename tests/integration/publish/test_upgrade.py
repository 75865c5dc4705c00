"""Upgrades and vulnerabilities of images in a real registry: what commands, pages, feed and gate make of them."""

import json
from pathlib import Path

from imagefactory.oci.registry import referrers
from imagefactory.plan.known_layers import KnownLayers
from imagefactory.plan.make import make_plan
from imagefactory.publish.dossier import Dossier
from imagefactory.publish.image_contents import contents_in_registry, contents_of_plan
from imagefactory.publish.vulnerabilities import VULNERABILITIES_TYPE
from tests.fixtures.failures import refused
from tests.fixtures.publishing import Publisher
from tests.fixtures.small_factory import CELL
from tests.integration.site.test_registry import files_of
from tests.unit.publish.test_vulnerabilities import GRYPE


def test_an_image_in_a_registry_is_described_as_its_plan_is(publisher: Publisher) -> None:
    [digest] = publisher.publish()
    project = publisher.project
    plan = make_plan(project, CELL)
    planned = contents_of_plan(project, plan, KnownLayers(project.known_layers).image(plan))
    found = contents_in_registry(Dossier.read(publisher.repository, digest))
    assert found.start == f"docker pull {publisher.repository.reference.name}@{digest}"
    assert {**vars(found), "start": ""} == {**vars(planned), "start": ""}
    assert found.packages


def test_owners_learn_what_changes_by_digest_tag_page_and_feed(publisher: Publisher) -> None:
    old, new = publisher.publish_changed(1000, 1100)
    registry = publisher.repository.reference.name
    done = publisher.invoke("upgrade", "--from", old[7:19])
    assert done.returncode == 0, done.stderr
    line = "**Defaults**: `MAX_MODEL_LEN` `1000` → `1100`"
    assert f"- {line}\n" in done.stdout
    assert f"- **Go back**: `docker pull {registry}@{old}` gets the image you have now" in done.stdout
    told = json.loads(publisher.invoke("upgrade", "--from", "tiny@2026-11-02", "--json").stdout)
    assert (told["before"]["digest"], told["after"]["digest"]) == (old, new)
    assert told["settings"] == {"MAX_MODEL_LEN": ["1000", "1100"]}
    assert "No: this is the newest image." in publisher.invoke("upgrade", "--from", f"{registry}:tiny").stdout
    assert refused(publisher.invoke("upgrade", "--from", "sha256:123456"), "never-published")

    files = files_of(publisher)
    rows = {row["digest"]: row for row in json.loads(files["upgrade.json"])["images"]}
    assert (rows[old]["newest"], rows[old]["state"], rows[new]["state"]) == (new, "update waiting", "current")
    assert line in rows[old]["lines"]
    assert "tiny" in rows[old]["names"]
    assert f"- {line}" in files["feed.xml"].decode()
    assert "MAX_MODEL_LEN 1000 → 1100" in files["upgrade-data.js"].decode()


def scan_of(publisher: Publisher, place: Path) -> str:
    """Write a result of Grype that finds a vulnerability in the factory's first wheel."""
    wheel = publisher.project.wheel_lock(CELL).wheels[0]
    text = GRYPE.read_text("utf-8").replace('"torch"', f'"{wheel.name}"').replace('"2.13.0"', f'"{wheel.version}"')
    place.write_text(text.replace("pypi/torch", f"pypi/{wheel.name}"), "utf-8")
    return str(place)


def test_a_scan_is_attached_shown_and_decides_only_what_the_maintainer_asks(
    publisher: Publisher, tmp_path: Path
) -> None:
    [first] = publisher.publish()
    scan = scan_of(publisher, tmp_path / "scan.json")
    for _ in range(2):  # the second says the same
        done = publisher.invoke("promote", "--scan", scan)
        assert done.returncode == 0, done.stderr
    assert len(referrers.find(publisher.repository, first, VULNERABILITIES_TYPE)) == 1
    told = "1 critical (grype 0.119.0 on 2026-11-17, database of 2026-11-16)"
    assert f"tiny@1.0/cpu/{CELL.machine}: known vulnerabilities: {told}" in done.stderr
    verified = publisher.invoke("verify", "--image", f"{publisher.repository.reference.name}@{first}")
    assert verified.returncode == 0, verified.stderr
    assert f"known CVEs    not counted {told}" in verified.stderr
    assert told in publisher.invoke("history", "--target", "tiny").stderr
    files = files_of(publisher)
    [row] = json.loads(files["vulnerabilities.json"])["vulnerabilities"]
    assert (row["id"], row["severity"], row["images"]) == ("CVE-2026-1001", "critical", [CELL.slug])
    for page in (f"images/{CELL.slug}.html", "vulnerabilities.html"):
        assert told in files[page].decode()

    publisher.push_tested(1100)
    publisher.factory.edit_matrix("\ndefaults:", "\nvulnerabilities: {severity: high}\ndefaults:")
    assert refused(publisher.invoke("promote", "--target", "tiny"), "vulnerable")  # nobody scanned it
    found = publisher.invoke("promote", "--target", "tiny", "--scan", scan)
    assert refused(found, "vulnerable")
    assert "CVE-2026-1001 (critical) in wheel " in found.stderr
    assert publisher.tags()["tiny"] == first
    reason = "GHSA-aaaa-bbbb-cccc: the server never loads such models"
    publisher.factory.edit_matrix("severity: high", f"severity: high, accept: {{{reason}}}")
    assert publisher.invoke("promote", "--target", "tiny").returncode == 0
    assert publisher.tags()["tiny"] != first
