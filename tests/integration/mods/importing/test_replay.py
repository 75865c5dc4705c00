"""Scripts run in a container: good ones become mods, and bad ones are bounded, refused and leave nothing behind."""

import shutil
import subprocess
from pathlib import Path

import pytest

from imagefactory.compile import replay as sandbox
from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors import FactoryError
from imagefactory.mods.compatibility import check_mods
from imagefactory.mods.importing.importer import Imported, Importer
from imagefactory.mods.importing.replays import Order
from imagefactory.mods.importing.sources import read_source
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.releases import released
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.small_factory import RecordingWatcher
from tests.fixtures.wheels import WheelFactory

pytestmark = [pytest.mark.engine, pytest.mark.network]
# A replay is a container per release: a few run always, the others are slow, and `.ci/run` runs them as well.
BODY = "".join(f"step_{number} = function({number})\n" for number in range(12))
OLD = {"vllm/__init__.py": "raise ImportError('torch')\n", "vllm/x.py": BODY, "vllm/y.py": "why = 1\n"}
NEW = {**OLD, "vllm/x.py": BODY.replace("step_5 = function(5)\n", "step_5 = function(5, fast=True)\n")}
ROOT = "/usr/local/lib/python3.12/dist-packages"
HEAD = f"#!/bin/bash\nset -e\nROOT={ROOT}\n"
PATCH = """\
--- a/vllm/x.py
+++ b/vllm/x.py
@@ -5,3 +5,3 @@
 step_4 = function(4)
-step_5 = function(5)
+step_5 = function(5, fast=True)
 step_6 = function(6)
"""


@pytest.fixture(scope="session")
def image() -> str:
    """The Debian that scripts run in, from the real locks."""
    return sandbox.provide_image(CompileProject(REPOSITORY), RecordingWatcher())


@pytest.fixture
def releases() -> dict[str, dict[str, str]]:
    """The versions that a script is replayed on, each in a container."""
    return {"1.0": OLD, "2.0": NEW}


on_one_release = pytest.mark.parametrize("releases", [pytest.param({"1.0": OLD}, id="")])


@pytest.fixture
def project(
    tmp_path: Path,
    simple_index: SimpleIndex,
    wheel_factory: WheelFactory,
    monkeypatch: pytest.MonkeyPatch,
    releases: dict[str, dict[str, str]],
) -> Project:
    monkeypatch.setenv("PIP_INDEX_URL", simple_index.url)
    return released(tmp_path, simple_index, wheel_factory, releases, {"other": {"other/a.py": "a = 1\n"}})


class Replayed:
    """Writes scripts, imports them, and looks for what they left behind."""

    def __init__(self, project: Project, image: str, folder: Path) -> None:
        self.project, self.image, self.folder = project, image, folder

    def __call__(
        self, script: str, *, seconds: float = 20, supplied: dict[str, bytes] | None = None, **files: str
    ) -> Imported:
        folder = self.folder / "my-mod"
        for place in (folder, self.project.root / "mods" / "my-mod"):
            shutil.rmtree(place, ignore_errors=True)
        folder.mkdir()
        (folder / "run.sh").write_text(HEAD + script)
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        env = {"ANSWER": "42"}
        importer = Importer(
            self.project, sandbox.replaying(lambda: self.image), lambda _: None, supplied or {}, env, seconds
        )
        try:
            return importer.run(read_source(str(folder)))
        finally:
            assert not list((self.project.root / "build" / "imports").iterdir())
            assert left_containers(self.project.root) == []

    def refusal(self, script: str, **options: float) -> str:
        """Return why a script cannot be imported."""
        with pytest.raises(FactoryError) as caught:
            self(script, **options)  # type: ignore[arg-type]
        assert not list((self.project.root / "mods").iterdir())
        assert caught.value.name in {"not-importable", "download-not-supplied", "replay-failed"}
        return str(caught.value.why)


def left_containers(root: Path) -> list[str]:
    """List the containers of a checkout; others may run at the same time."""
    words = ["docker", "ps", "--all", "--format", f'{{{{.Label "{sandbox.LABEL}"}}}}']
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(str(root))]


@pytest.fixture
def replay(project: Project, image: str, tmp_path: Path) -> Replayed:
    return Replayed(project, image, tmp_path)


def outcomes(imported: Imported) -> list[str]:
    return [attempt.outcome for attempt in imported.draft.attempts]


# --- good ones ---------------------------------------------------------------------------------------


def test_a_patch_becomes_a_mod_and_is_upstream_where_it_is_there_already(replay: Replayed) -> None:
    imported = replay("patch -p1 --forward -d $ROOT < a.patch || echo 'already applied, skipping'", a_patch=PATCH)
    assert outcomes(imported) == ["changes", "nothing"]
    fresh = Project(replay.project.root, replay.project.store)
    assert [str(result) for result in check_mods(fresh)] == ["applies", "upstream since 2.0"]
    [edit] = fresh.mods["my-mod"].manifest.variants[0].changes
    assert edit.model_dump(exclude_none=True)["replace"] == "step_5 = function(5, fast=True)\n"


@pytest.mark.slow
def test_python_finds_the_packages_without_running_them(replay: Replayed) -> None:
    script = """file=$(python -c 'import vllm.y as m; print(m.__file__)')
python3 - "$file" <<'PY'
import importlib.util, inspect, sys, vllm, vllm.y
from pathlib import Path
assert importlib.util.find_spec("vllm").origin.endswith("vllm/__init__.py")
assert "why = 1" in inspect.getsource(vllm.y)
path = Path(sys.argv[1])
path.write_text(path.read_text().replace("why = 1", f"why = 1\\nbecause = {vllm.__version__!r}"))
PY
"""
    imported = replay(script)
    assert outcomes(imported) == ["changes", "changes"]
    assert [variant.versions for variant in imported.draft.manifest.variants] == [">=1.0,<2.0", ">=2.0"]


@pytest.mark.slow
def test_python_knows_the_names_of_modules_and_decides_nothing_by_their_values(replay: Replayed) -> None:
    script = """python3 - <<'PY'
import importlib
import vllm.x as m
importlib.reload(m)
print(f"step_5 is {m.step_5}")
assert not hasattr(m, "step_99") and __import__("vllm").x is m
from vllm.y import why
assert why == 1
PY
python3 -c 'import vllm.x; print("fast" if vllm.x.step_5 else "slow")' && exit 1
sed -i s/why/because_of/ $ROOT/vllm/y.py
"""
    assert "shows only when the server runs" in replay.refusal(script)
    assert outcomes(replay(script.replace("&& exit 1", "2>/dev/null && exit 1"))) == ["changes", "changes"]


@pytest.mark.slow
def test_a_supplied_file_takes_the_place_of_a_download(replay: Replayed) -> None:
    script = "curl -fsSL https://git.example/pull/7.diff | patch -p1 -d $ROOT\n"
    with raises("download-not-supplied") as caught:
        replay(script)
    assert "https://git.example/pull/7.diff" in str(caught.value.where)
    with raises("download-not-supplied") as caught:
        replay("git clone https://git.example/tools.git || true")
    assert caught.value.where == "https://git.example/tools.git"
    imported = replay(script.replace("patch ", "patch --forward "), supplied={"7.diff": PATCH.encode()})
    assert imported.draft.attempts[0].outcome == "changes"


@pytest.mark.slow
def test_a_download_is_supplied_by_its_address_and_through_a_pipe_that_bash_names(replay: Replayed) -> None:
    script = """cd $ROOT
git apply <(curl -fsSL https://git.example/a/fix.diff)
patch -p1 < <(wget -qO- https://git.example/b/fix.diff)
"""
    second = "--- a/vllm/y.py\n+++ b/vllm/y.py\n@@ -1 +1 @@\n-why = 1\n+why = function(2)\n"
    supplied = {"https://git.example/a/fix.diff": PATCH.encode(), "fix.diff": second.encode()}
    imported = replay(script, supplied=supplied)
    assert outcomes(imported) == ["changes", "fails"]
    assert set(imported.draft.attempts[0].files) == {"vllm/x.py", "vllm/y.py"}
    assert "https://git.example/a/fix.diff: sha256" in imported.manifest.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "apply",
    [
        "(cd $ROOT; git apply) < a.patch",
        "patch -p1 -d $ROOT < a.patch",
        "cd $ROOT; git apply --reverse --check $OLDPWD/a.patch 2>/dev/null || git apply $OLDPWD/a.patch",
        "patch -p1 --forward -d $ROOT -i $PWD/a.patch",
    ],
)
def test_a_patch_that_is_there_already_is_upstream_whatever_the_script_says(replay: Replayed, apply: str) -> None:
    imported = replay(f"{apply} || echo 'cannot be applied, skipping'", a_patch=PATCH)
    assert outcomes(imported) == ["changes", "nothing"]
    assert imported.draft.manifest.upstreamed_in == "2.0"


@pytest.mark.slow
def test_questions_about_packages_are_answered_from_the_lock(replay: Replayed) -> None:
    script = """[ "$(pip show other | grep '^Version:')" = "Version: 7.0" ]
pip install -q "other>=6,<8"
[ "$ANSWER" = 42 ]
echo 'locked = function(7)' >> $ROOT/vllm/y.py
"""
    assert outcomes(replay(script)) == ["changes", "changes"]
    assert "it installs other>=8, earlyoom" in replay.refusal(
        "pip install 'other>=8'; apt-get install earlyoom || true"
    )


# --- failures that a script goes on after ---------------------------------------------------------------


@pytest.mark.slow
@on_one_release
@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "printf '%s' \"$P\" | patch -p1 -d $ROOT || echo skipping",
            "goes on after a patch that does not fit: Hunk #1 FAILED",
        ),
        (
            "(cd $ROOT; printf '%s' \"$P\" | /usr/bin/patch -p1) || true",
            "goes on after a patch that does not fit: vllm/x.py.rej",
        ),
        (
            "(cd $ROOT; printf '%s' \"$P\" | git apply) || echo done",
            "goes on after a patch that does not fit",
        ),
        (
            "(cd $ROOT; printf '%s' \"$P\" | git apply --check && exit 1) || echo done",
            "goes on without its patch",
        ),
        (
            "python3 -c 'raise KeyError(\"anchor\")' || true; echo x >> $ROOT/vllm/y.py",
            "goes on after an exception: KeyError",
        ),
        (
            "echo 'WARNING: Could not find the anchor'",
            "changes nothing and says: WARNING: Could not find the anchor",
        ),
        ("echo 'no place for it, may already be patched: not found'", "changes nothing and says"),
        ("echo x >> $ROOT/vllm/y.py; false", "ends with code 1"),
    ],
)
def test_a_swallowed_failure_is_a_failure(replay: Replayed, script: str, why: str) -> None:
    wrong = PATCH.replace("-step_5 = function(5)", "-step_5 = no_function(5)")
    assert why in replay.refusal(f"P='{wrong}'\n{script}\n")


@on_one_release
def test_fuzz_is_not_allowed(replay: Replayed) -> None:
    fuzzy = PATCH.replace("@@ -5,3 +5,3 @@\n", "@@ -4,4 +4,4 @@\n step_three = function(3)\n")
    assert "1 out of 1 hunk FAILED" in replay.refusal(f"patch -p1 -d $ROOT <<'P'\n{fuzzy}P\n")


# --- hostile ones -----------------------------------------------------------------------------------------


@pytest.mark.slow
@on_one_release
@pytest.mark.parametrize(
    ("script", "why"),
    [
        pytest.param("bomb() { bomb | bomb & }; bomb; sleep 60", "", id="fork-bomb"),
        pytest.param("trap '' TERM; sleep 1000", "it does not end in time", id="hangs"),
        pytest.param("yes", "it does not end in time", id="floods-its-output"),
        pytest.param("cat /dev/zero > $ROOT/vllm/big || true", "it fills the space that it gets", id="fills-the-disk"),
        pytest.param(
            "python3 -c \"import os\nfor n in range(10**6): open(f'$ROOT/vllm/{n}', 'w')\" 2>/dev/null || true",
            "it fills the space that it gets",
            id="fills-the-inodes",
        ),
        pytest.param("python3 -c \"x = [' ' * 10**8 for _ in range(99)]\" || true", "", id="eats-the-memory"),
        pytest.param("[ $(ulimit -t) = unlimited ] || exit 3", "it ends with code 3", id="asks-for-its-processor-time"),
        pytest.param("rm -rf $ROOT/vllm", "it deletes vllm/__init__.py", id="deletes-the-tree"),
        pytest.param("ln -sf /etc/passwd $ROOT/vllm/y.py", "it makes a link of vllm/y.py", id="links-out"),
        pytest.param("ln -s /etc $WORKSPACE_DIR/etc", "it makes a link of /workspace/etc", id="links-in-the-workspace"),
        pytest.param("mkfifo $ROOT/vllm/pipe", "it makes a pipe of vllm/pipe", id="makes-a-pipe"),
        pytest.param("chmod -R 000 $ROOT/vllm; exit 3", "it ends with code 3", id="takes-permissions"),
        pytest.param(
            "mkdir /usr/local/lib/elsewhere; echo x > /usr/local/lib/elsewhere/a",
            "outside",
            id="writes-outside",
        ),
        pytest.param("echo x > /etc/motd", "Read-only file system", id="writes-to-the-system"),
        pytest.param("echo '{}' > /proc/1/fd/1", "Permission denied", id="forges-the-report"),
        pytest.param("kill -9 1; echo x > /proc/1/mem", "Permission denied", id="attacks-process-1"),
        pytest.param("(while true; do sleep 1; done) & disown", "it starts a process that outlives it", id="stays"),
        pytest.param(
            "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 80), 5)\"",
            "Network is unreachable",
            id="calls-home",
        ),
        pytest.param("mount -t tmpfs none /mnt", "ends with code", id="mounts"),
        pytest.param("echo import os > $ROOT/evil.pth", "it brings evil.pth", id="hooks-into-python"),
        pytest.param("echo 1 > \"$ROOT/vllm/$(printf 'a\\033[2J')\"", "cannot be printed", id="a-name-for-terminals"),
        pytest.param("head -c 99 /dev/urandom > $ROOT/vllm/y.py", "which is not text", id="writes-binary"),
    ],
)
def test_a_hostile_script_is_bounded_and_leaves_nothing(replay: Replayed, script: str, why: str) -> None:
    assert why in replay.refusal(f"set +e\n{script}\n", seconds=5)


@pytest.mark.slow
def test_changed_permissions_are_accounted_for(replay: Replayed) -> None:
    imported = replay("echo 'more = function(7)' >> $ROOT/vllm/y.py; chmod 000 $ROOT/vllm/y.py; chmod 000 $ROOT/vllm")
    assert outcomes(imported) == ["changes", "changes"]
    assert imported.draft.notes == ("it also changes the permissions of vllm/y.py",)


def test_a_script_has_no_privileges(replay: Replayed) -> None:
    script = """[ "$(id -u)" != 0 ] || exit 11
grep -q '^CapEff:\\s*0000000000000000$' /proc/self/status || exit 12
grep -q '^CapBnd:\\s*0000000000000000$' /proc/self/status || exit 13
grep -q '^NoNewPrivs:\\s*1$' /proc/self/status || exit 14
[ "$(ls /sys/class/net)" = lo ] || exit 15
env | grep -qi -E 'token|secret|docker' && exit 16
[ ! -e /var/run/docker.sock ] || exit 17
echo 'fine = function(7)' >> $ROOT/vllm/y.py
"""
    assert outcomes(replay(f"set +e\n{script}")) == ["changes", "changes"]


def test_an_error_names_the_script_that_left_no_report(image: str, tmp_path: Path) -> None:
    for name in ("mod.tar", "supplied.tar"):
        (tmp_path / name).write_bytes(b"not a tar file")
    order = Order("broken", tmp_path / "mod.tar", tmp_path / "supplied.tar", [], {})
    with pytest.raises(FactoryError, match="The script of broken ended its container without a report"):
        sandbox.replay(image, order, tmp_path)
