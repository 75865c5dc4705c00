"""Scripts run in a container: good ones become mods, and bad ones are bounded, refused and leave nothing behind."""

import shutil
import subprocess
from pathlib import Path

import pytest

from imagefactory.compile.toolchain import CompileProject
from imagefactory.errors import FactoryError
from imagefactory.importing.importer import Imported, Importer
from imagefactory.importing.scripts import LABEL, provide_image, running
from imagefactory.importing.sources import read_source
from imagefactory.mods.compatibility import check_mods
from imagefactory.project.project import Project
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.releases import Released
from tests.fixtures.small_factory import RecordingWatcher

pytestmark = [pytest.mark.engine, pytest.mark.network, pytest.mark.each_run]
# A container per release takes its time: a few tests run always, the others are slow, and `.ci/run` runs them as well.
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
    return provide_image(CompileProject(REPOSITORY), RecordingWatcher())


@pytest.fixture
def releases() -> dict[str, dict[str, str]]:
    """The versions that a script runs on, each in a container."""
    return {"1.0": OLD, "2.0": NEW}


on_one_release = pytest.mark.parametrize("releases", [pytest.param({"1.0": OLD}, id="")])


@pytest.fixture
def project(released: Released, releases: dict[str, dict[str, str]]) -> Project:
    return released(releases, {"other": {"other/a.py": "a = 1\n"}})


class Scripts:
    """Writes scripts, imports them, and looks for what they left behind."""

    def __init__(self, project: Project, image: str, folder: Path) -> None:
        self.project, self.image, self.folder = project, image, folder

    def __call__(self, script: str, *, seconds: float = 20, **files: str) -> Imported:
        folder = self.folder / "my-mod"
        for place in (folder, self.project.root / "mods" / "my-mod"):
            shutil.rmtree(place, ignore_errors=True)
        folder.mkdir()
        (folder / "run.sh").write_text(HEAD + script)
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        importer = Importer(self.project, running(lambda: self.image, seconds), lambda _: None, {"ANSWER": "42"})
        try:
            return importer.run(read_source(str(folder)))
        finally:
            assert not list((self.project.root / "build" / "imports").iterdir())
            assert left_containers(self.project.root) == []

    def refusal(self, script: str, *, seconds: float = 20) -> FactoryError:
        """Return the error of a script that cannot be imported."""
        with pytest.raises(FactoryError) as caught:
            self(script, seconds=seconds)
        assert not list((self.project.root / "mods").iterdir())
        assert caught.value.name == "not-importable"
        return caught.value


def left_containers(root: Path) -> list[str]:
    """List the containers of a checkout; others may run at the same time."""
    words = ["docker", "ps", "--all", "--format", f'{{{{.Label "{LABEL}"}}}}']
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [line for line in done.stdout.splitlines() if line.startswith(str(root))]


@pytest.fixture
def scripts(project: Project, image: str, tmp_path: Path) -> Scripts:
    return Scripts(project, image, tmp_path)


def outcomes(imported: Imported) -> list[str]:
    return [attempt.outcome for attempt in imported.draft.attempts]


# --- good ones ---------------------------------------------------------------------------------------


def test_a_patch_becomes_a_mod_and_is_upstream_where_it_is_there_already(scripts: Scripts) -> None:
    imported = scripts("patch -p1 --forward -d $ROOT < a.patch || echo 'already applied, skipping'", a_patch=PATCH)
    assert outcomes(imported) == ["changes", "nothing"]
    fresh = Project(scripts.project.root, scripts.project.store)
    assert [str(result) for result in check_mods(fresh)] == ["applies", "upstream since 2.0"]
    [edit] = fresh.mods["my-mod"].manifest.variants[0].changes
    assert edit.model_dump(exclude_none=True)["replace"] == "step_5 = function(5, fast=True)\n"


def test_what_the_container_lacks_fails_in_the_words_of_the_script_and_a_diff_by_hand_is_imported(
    scripts: Scripts, tmp_path: Path
) -> None:
    error = scripts.refusal("echo 'fetching the fix'; curl -fsSL https://git.example/7.diff | patch -p1 -d $ROOT")
    assert "fetching the fix / ./run.sh: line 4: curl: command not found" in str(error.why)
    assert "`./inv mods.import FILE.diff`" in str(error.fix)
    tree = tmp_path / "dist-packages"
    for name, text in OLD.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    by_hand = f"git init -q; git add -A; printf '%s' '{PATCH}' | patch -s -p1; git diff > ../by-hand.diff"
    subprocess.run(["bash", "-ec", by_hand], cwd=tree, check=True)
    importer = Importer(scripts.project, running(pytest.fail), lambda _: None, {})
    assert outcomes(importer.run(read_source(str(tmp_path / "by-hand.diff")))) == ["changes", "nothing"]


@pytest.mark.slow
def test_python_finds_the_packages_and_variables_are_set(scripts: Scripts) -> None:
    script = """[ "$ANSWER" = 42 ]
python - <<'PY'
from importlib.util import find_spec
from pathlib import Path
path = Path(find_spec("vllm").origin).with_name("y.py")
path.write_text(path.read_text() + "because = function(7)\\n")
PY
cp chat.jinja "$WORKSPACE_DIR/"
chmod 755 $ROOT/vllm/y.py
"""
    imported = scripts(script, chat_jinja="{{ messages }}\n")
    assert outcomes(imported) == ["changes", "changes"]
    assert [variant.versions for variant in imported.draft.manifest.variants] == [">=1.0"]
    assert imported.draft.manifest.settings.flags == {"chat_template": "/usr/share/imagefactory/mods/chat.jinja"}


# --- failures that a script goes on after ---------------------------------------------------------------


@pytest.mark.slow
@on_one_release
@pytest.mark.parametrize(
    ("script", "why"),
    [
        (
            "printf '%s' \"$P\" | patch -p1 -d $ROOT || echo x >> $ROOT/vllm/y.py",
            "goes on after a patch that does not fit: vllm/x.py.rej",
        ),
        (
            "python3 -c 'raise KeyError(\"anchor\")' || true; echo x >> $ROOT/vllm/y.py",
            "KeyError: 'anchor'",
        ),
        (
            "echo 'WARNING: Could not find the anchor'",
            "changes nothing and says: WARNING: Could not find the anchor",
        ),
        ("echo x >> $ROOT/vllm/y.py; false", "ends with code 1: it says nothing"),
    ],
)
def test_a_swallowed_failure_is_a_failure(scripts: Scripts, script: str, why: str) -> None:
    wrong = PATCH.replace("-step_5 = function(5)", "-step_5 = no_function(5)")
    assert why in str(scripts.refusal(f"P='{wrong}'\n{script}\n").why)


@on_one_release
def test_fuzz_is_not_allowed(scripts: Scripts) -> None:
    fuzzy = PATCH.replace("@@ -5,3 +5,3 @@\n", "@@ -4,4 +4,4 @@\n step_three = function(3)\n")
    assert "Hunk #1 succeeded at 4 with fuzz 1" in str(scripts.refusal(f"patch -p1 -d $ROOT <<'P'\n{fuzzy}P\n").why)


# --- hostile ones -----------------------------------------------------------------------------------------


@pytest.mark.slow
@on_one_release
@pytest.mark.parametrize(
    ("script", "why"),
    [
        pytest.param("bomb() { bomb | bomb & }; bomb; sleep 60", "", id="fork-bomb"),
        pytest.param("trap '' TERM; sleep 1000", "it was killed, for it may use", id="hangs"),
        pytest.param("yes", "it was killed", id="floods-its-output"),
        pytest.param("cat /dev/zero > /proc/1/fd/1", "it was killed", id="floods-the-diff"),
        pytest.param("cat /dev/zero > $ROOT/vllm/big; exit", "No space left on device", id="fills-the-disk"),
        pytest.param(
            "python3 -c \"x = [' ' * 10**8 for _ in range(99)]\"; exit", "it was killed", id="eats-the-memory"
        ),
        pytest.param("rm -rf $ROOT/vllm", "only the text of a file can be changed", id="deletes-the-tree"),
        pytest.param("ln -sf /etc/passwd $ROOT/vllm/y.py", "only the text of a file", id="links-out"),
        pytest.param("ln -s /etc $ROOT/vllm/etc", "'new file mode 120000'", id="links"),
        pytest.param("ln -s /etc $WORKSPACE_DIR/etc", "'new file mode 120000'", id="links-in-the-workspace"),
        pytest.param(
            "git -C $ROOT/vllm init -q sub; cd $ROOT/vllm/sub; git -c user.name=a -c user.email=a@b.example "
            "commit -q --allow-empty -m a",
            "'new file mode 160000'",
            id="makes-a-submodule",
        ),
        pytest.param("rm $ROOT/vllm/y.py; mkfifo $ROOT/vllm/y.py", "can only add regular files", id="makes-a-pipe"),
        pytest.param("mknod $ROOT/vllm/null c 1 3; exit", "Operation not permitted", id="makes-a-device"),
        pytest.param("chmod -R 000 $ROOT/vllm", "Permission denied", id="takes-permissions"),
        pytest.param("mkdir /usr/local/lib/elsewhere; exit", "Read-only file system", id="writes-outside"),
        pytest.param("echo x > /etc/motd; exit", "Read-only file system", id="writes-to-the-system"),
        pytest.param("echo '{}' > /proc/1/fd/1", "run.sh is not a diff", id="forges-the-diff"),
        pytest.param("kill -9 1; kill -STOP 1; sleep 1000", "it was killed", id="attacks-process-1"),
        pytest.param("(while true; do sleep 1; done) & disown", "it changes nothing", id="stays"),
        pytest.param(
            "python3 -c \"import socket; socket.create_connection(('1.1.1.1', 80), 5)\"; exit",
            "Network is unreachable",
            id="calls-home",
        ),
        pytest.param("mount -t tmpfs none /mnt; exit", "ends with code", id="mounts"),
        pytest.param("echo import os > $ROOT/evil.pth", "it brings evil.pth", id="hooks-into-python"),
        pytest.param("echo 1 > \"$ROOT/vllm/$(printf 'a\\033[2J')\"", "that Git quotes", id="a-name-for-terminals"),
        pytest.param("printf '\\0x' > $ROOT/vllm/y.py", "only the text of a file", id="writes-binary"),
        pytest.param("printf '\\377x' > $ROOT/vllm/y.py", "something that is not text", id="writes-no-utf-8"),
    ],
)
def test_a_hostile_script_is_bounded_and_leaves_nothing(scripts: Scripts, script: str, why: str) -> None:
    assert why in str(scripts.refusal(f"set +e\n{script}\n", seconds=5).why)


def test_a_script_has_no_privileges(scripts: Scripts) -> None:
    script = """[ "$(id -u)" != 0 ] || exit 11
grep -q '^CapEff:\\s*0000000000000000$' /proc/self/status || exit 12
grep -q '^CapBnd:\\s*0000000000000000$' /proc/self/status || exit 13
grep -q '^NoNewPrivs:\\s*1$' /proc/self/status || exit 14
[ "$(ls /sys/class/net)" = lo ] || exit 15
env | grep -qi -E 'token|secret|docker' && exit 16
[ ! -e /var/run/docker.sock ] || exit 17
echo 'fine = function(7)' >> $ROOT/vllm/y.py
"""
    assert outcomes(scripts(f"set +e\n{script}")) == ["changes", "changes"]
