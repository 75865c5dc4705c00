"""A test job that lies: it reaches the records of its own images, whatever it uploads or hands on."""

import json
import re
import shutil
from pathlib import Path

import pytest

from imagefactory.ci.jobs import RUNNERS
from tests.fixtures.engines import need
from tests.fixtures.failures import refused
from tests.fixtures.fake_github import git
from tests.fixtures.publishing import Publisher, leave_record, smoke_record
from tests.fixtures.small_factory import CELL, SECOND
from tests.fixtures.whole_night import rehearsal

pytestmark = pytest.mark.engine
LEGS = [
    {"name": name, "id": name, "targets": name, "levels": "", "runner": runner}
    for name, runner in zip(("evil", "honest"), RUNNERS.values(), strict=True)
]
INV = """\
#!/bin/bash
# Stands in for the factory: says what it was given, and leaves what later jobs need.
case $1 in
--list) ;;
ci.plan) cat >>"$GITHUB_OUTPUT" <<'END'
compile=[]
unlocked=0
image=[]
smoke=LEGS
gpu=[]
targets=evil honest
END
;;
ci.smoke)
    mkdir -p build/smoke
    echo "true record" >"build/smoke/$3"
    if [ "$3" = evil ]; then
        for folder in build/smoke "$REHEARSAL/artifacts/99-smoke-honest"; do
            mkdir -p "$folder"
            echo forged >"$folder/honest"
        done
        exit 1
    fi
    ;;
ci.attach | promote) echo "GIVEN $1 $3: $(cd build/smoke 2>/dev/null && grep --with-filename . -- * | tr '\\n' ' ')" ;;
sbom) echo '{"bomFormat": "CycloneDX"}' ;;
esac
""".replace("LEGS", json.dumps(LEGS))


def test_records_are_attached_to_images_of_the_job_alone(publisher: Publisher) -> None:
    staged = publisher.push(CELL, SECOND)
    for image in staged:
        leave_record(publisher.project, smoke_record(image.digest, image.plan.key))
    done = publisher.invoke("ci.attach", "--target", CELL.model)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(publisher.project.root / "build" / "smoke")  # the promotion is on another machine
    done = publisher.invoke("promote", "--target", CELL.model)
    assert done.returncode == 0, done.stderr
    assert refused(publisher.invoke("promote", "--target", SECOND.model), "not-promotable")


def test_a_job_gets_what_its_own_test_handed_on(tmp_path: Path) -> None:
    need("docker-registry")
    with rehearsal(tmp_path / "nights", "evil honest") as fork:
        (fork.fork / "inv").write_text(INV)
        git(fork.fork, "commit", "--quiet", "--all", "--message", "Stand in for the factory")
        night = fork.night("Forged records")
    assert re.findall(r"GIVEN (.*?): *(.*?) *\n", night.log) == [
        ("ci.attach evil", "evil:true record honest:forged"),
        ("ci.attach honest", "honest:true record"),
        ("promote evil honest", ""),
    ], night.log[-6000:]
    assert {"smoke", "status"} <= set(night.failed), "what failed is attached, too"
