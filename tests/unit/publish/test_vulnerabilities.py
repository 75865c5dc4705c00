"""Known vulnerabilities: what Grype writes is read, given to the images that have the package, and judged by rules."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from packageurl import PackageURL

from imagefactory.project.cells import Cell
from imagefactory.project.matrix import VulnerabilityRules
from imagefactory.project.project import Project, locked_cells
from imagefactory.publish.attest.components import package_urls
from imagefactory.publish.attest.sbom import package_list
from imagefactory.publish.vulnerabilities import Scan
from imagefactory.store.digests import Digest
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises

GRYPE = REPOSITORY / "tests" / "fixtures" / "scans" / "grype.json"
DIGEST = Digest(f"sha256:{'1' * 64}")
PACKAGES = {"wheel torch": "2.13.0", "deb libssl3t64": "3.5.1-1", "wheel vllm": "0.32.0", "model google/gemma": "abc"}


def test_an_image_has_the_vulnerabilities_of_its_packages_and_no_others() -> None:
    record = Scan.read(GRYPE).record(DIGEST, PACKAGES, {("wheel torch", "2.13.0"), ("deb libssl3t64", "3.5.1-1")})
    assert [(one.id, one.severity, one.package, one.fixed_in) for one in record.found] == [
        ("CVE-2026-1001", "critical", "wheel torch", ("2.14.0",)),
        ("CVE-2026-1002", "high", "deb libssl3t64", ()),
    ]
    assert record.found[0].aliases == ("GHSA-aaaa-bbbb-cccc",)
    assert record.not_scanned == ("wheel vllm 0.32.0",)
    assert record.line == (
        "1 critical, 1 high; not scanned: 1 package (grype 0.119.0 on 2026-11-17, database of 2026-11-16)"
    )
    newer = Scan.read(GRYPE).record(DIGEST, PACKAGES | {"wheel torch": "2.14.0"}, ())
    assert [one.id for one in newer.found] == ["CVE-2026-1002"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda scan: scan.pop("matches"),
        lambda scan: scan["descriptor"].pop("db"),
        lambda scan: scan["descriptor"]["db"].pop("status"),
        lambda scan: scan["descriptor"].update(timestamp=""),
        lambda scan: scan["matches"][0].update(artifact=None),
    ],
)
def test_a_result_without_findings_date_or_database_is_refused(
    tmp_path: Path, spoil: Callable[[dict[str, Any]], object]
) -> None:
    scan = json.loads(GRYPE.read_bytes())
    spoil(scan)
    file = tmp_path / "scan.json"
    file.write_text(json.dumps(scan))
    with raises("bad-scan"):
        Scan.read(file)


def test_the_scanner_is_given_every_locked_package_once_with_its_source() -> None:
    project = Project(REPOSITORY)
    cells = [cell for cell in locked_cells(project) if cell.model == "gemma4-31b"]
    urls = package_urls(project, cells)
    listed = json.loads(package_list(project, cells))["components"]
    assert [one["purl"] for one in listed] == [url for _, url in sorted(urls.items())]
    for cell in cells:
        locked = [("wheel", one) for one in project.wheel_lock(cell).wheels]
        locked += [("deb", one) for one in project.base_lock(cell).debs]  # type: ignore[misc]
        assert {(f"{kind} {one.name}", one.version) for kind, one in locked} <= urls.keys()
    ssl = next(url for (name, _), url in urls.items() if name == "deb libssl3t64")
    parsed = PackageURL.from_string(ssl)
    assert parsed.qualifiers == {"arch": parsed.qualifiers["arch"], "distro": "debian-trixie", "upstream": "openssl"}
    assert all(PackageURL.from_string(url).to_string() == url for url in urls.values())
    grafted = Cell("gemma4-31b", "0.28.0", "gb10", "linux/arm64")
    assert package_urls(project, [grafted])["wheel vllm", "0.28.0"] == "pkg:pypi/vllm@0.28.0"


def test_rules_refuse_a_severity_and_all_that_are_worse() -> None:
    assert VulnerabilityRules().refused == ()
    assert VulnerabilityRules(severity="high").refused == ("critical", "high")
