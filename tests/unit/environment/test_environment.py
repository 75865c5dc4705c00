"""The factory's own environment: locked for every supported host, and created exactly as locked."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from imagefactory.environment import setup
from imagefactory.environment.locks import check_environment, lock_environment
from imagefactory.environment.setup import SETS, LockedSet, checksum, ensure, is_current, set_up
from imagefactory.store.certificates import VARIABLE, trust_the_machine
from imagefactory.store.index_config import environment_for_uv, options_for_uv
from tests.fixtures.checkouts import REPOSITORY
from tests.fixtures.failures import raises
from tests.fixtures.servers import SimpleIndex
from tests.fixtures.wheels import make_wheel

PROJECT = """\
[project]
name = "x"
version = "1"
dependencies = ["alpha>=1"]
[project.optional-dependencies]
smoke = ["beta"]
sign = ["gamma"]
plot = []
site = []
test = ["delta"]
"""


@pytest.mark.parametrize("name", SETS)
def test_committed_set_matches_pyproject_has_hashes_and_names_no_host(name: str) -> None:
    assert LockedSet.of(REPOSITORY, name).made_from() == checksum(REPOSITORY, name)
    text = LockedSet.of(REPOSITORY, name).text()
    assert "://" not in text
    # Every requirement continues on a line with its first hash.
    assert all(line.endswith(" \\") for line in text.splitlines() if "==" in line and line[0] not in "# ")


def test_committed_set_test_includes_all_others() -> None:
    everything = LockedSet.of(REPOSITORY, "test").pins()
    for name in SETS:
        pins = LockedSet.of(REPOSITORY, name).pins()
        assert pins.items() <= everything.items(), f"{name}: sets are installed beside each other"


class Small:
    """A checkout whose environment has four small packages, on its own index."""

    def __init__(self, root: Path, index: SimpleIndex, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.index = root, index
        self.prefix = root / ".venv"
        self.said: list[str] = []
        root.mkdir()
        (root / "pyproject.toml").write_text(PROJECT)
        for name in ("alpha", "beta", "gamma", "delta"):
            self.offer(name, "1.0")
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(root / "uv"))
        scripts = str(Path(sys.executable).parent)
        monkeypatch.setenv("PATH", scripts, prepend=os.pathsep)  # where uv is

    def offer(self, name: str, version: str, tag: str = "py3-none-any") -> Path:
        files = {f"{name}.py": f"VERSION = {version!r}\n"}
        wheel = make_wheel(self.root / "wheels", name, version, tag=tag, files=files)
        self.index.add(wheel)
        return wheel

    def lock(self, *, upgrade: bool = False) -> None:
        lock_environment(self.root, self.said.append, upgrade=upgrade)

    def pin(self, **versions: str) -> None:
        """Write the locks directly, which is faster than resolving them."""
        wanted = {"alpha": "1.0", "beta": "1.0", "gamma": "1.0", "delta": "1.0"} | versions
        extras = {"run": (), "smoke": ("beta",), "sign": ("gamma",), "test": ("beta", "gamma", "delta")}
        extras |= {"plot": ()}
        for name, more in extras.items():
            text = "--only-binary :all:\n"
            for package in ("alpha", *more, *(versions.keys() - {"alpha", "beta", "gamma", "delta"})):
                file = f"{package}-{wanted[package]}-py3-none-any.whl"
                digest = hashlib.sha256((self.root / "wheels" / file).read_bytes()).hexdigest()
                text += f"{package}=={wanted[package]} \\\n    --hash=sha256:{digest}\n"
            path = LockedSet.of(self.root, name).path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def set_up(self, *names: str) -> None:
        set_up(self.root, self.prefix, names, self.said.append)

    def installed(self) -> set[str]:
        found = self.prefix.glob("lib/python3.*/site-packages/*.dist-info")
        return {folder.name.removesuffix(".dist-info") for folder in found}


@pytest.fixture
def small(tmp_path: Path, simple_index: SimpleIndex, monkeypatch: pytest.MonkeyPatch) -> Small:
    return Small(tmp_path / "checkout", simple_index, monkeypatch)


def test_locking_keeps_versions_unless_upgrading(small: Small) -> None:
    small.lock()
    small.offer("alpha", "2.0")
    small.lock()
    assert LockedSet.of(small.root, "run").pins() == {"alpha": "1.0"}
    small.lock(upgrade=True)
    assert LockedSet.of(small.root, "run").pins() == {"alpha": "2.0"}
    assert LockedSet.of(small.root, "test").pins().keys() == {"alpha", "beta", "gamma", "delta"}
    for name in SETS:
        assert "127.0.0.1" not in LockedSet.of(small.root, name).text()
    assert check_environment(small.root) == len(SETS)
    (small.root / "pyproject.toml").write_text(PROJECT.replace("alpha>=1", "alpha>=1.0"))
    with raises("lock-drift"):
        check_environment(small.root)


def test_unsatisfiable_requirements_are_refused(small: Small) -> None:
    (small.root / "pyproject.toml").write_text(PROJECT.replace("alpha>=1", "alpha>=7"))
    with raises("unresolvable", match="cannot be resolved"):
        small.lock()


def test_environment_has_exactly_the_locked_packages(small: Small) -> None:
    small.pin()
    small.set_up()
    assert small.installed() == {"alpha-1.0"}
    assert is_current(small.root, small.prefix, {"run"})
    small.set_up("smoke")
    assert small.installed() == {"alpha-1.0", "beta-1.0"}
    small.offer("alpha", "2.0")
    small.pin(alpha="2.0")
    assert not is_current(small.root, small.prefix, {"run"})
    small.set_up()
    assert small.installed() == {"alpha-2.0", "beta-1.0"}, "an added set stays, and is updated"
    said = len(small.said)
    small.set_up()
    assert len(small.said) == said, "no output if there is nothing to do"


def test_a_checkout_sets_itself_up_and_can_be_imported(small: Small) -> None:
    for package in ("imagefactory", "images"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, small.root / package, ignore=ignored)
    small.pin()
    command = [sys.executable, "-m", "imagefactory.environment.setup"]
    done = subprocess.run(command, cwd=small.root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pinned by hash, for every command" in done.stderr
    assert small.installed() == {"alpha-1.0"}
    command = [str(small.prefix / "bin/python"), "-c", "import sys; print(sys.path)"]
    assert str(small.root) in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_wheel_with_a_wrong_hash_is_refused(small: Small) -> None:
    small.pin()
    wheel = small.root / "wheels/alpha-1.0-py3-none-any.whl"
    good = wheel.read_bytes()
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("evil.py", "")
    small.index.files.clear()
    small.index.add(wheel)
    with raises("set-up-failed", match="could not install the packages") as caught:
        small.set_up()
    assert "hash" in caught.value.why.lower()
    assert not is_current(small.root, small.prefix, {"run"})
    wheel.write_bytes(good)
    small.index.files.clear()
    small.index.add(wheel)
    small.set_up()
    assert small.installed() == {"alpha-1.0"}


def test_environment_is_created_again_when_its_python_is_gone(small: Small) -> None:
    small.pin()
    small.set_up("smoke")
    python = small.prefix / "bin" / "python"
    python.unlink()
    python.symlink_to("/nonexistent/python")
    small.set_up()
    assert "beta-1.0" in small.installed()
    assert subprocess.run([python, "-c", "import alpha"], check=False).returncode == 0


def test_unwritable_folder_and_unreachable_index_are_named_without_a_password(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.pin()
    (small.root / "file").write_text("")
    with raises("set-up-failed", match="cannot be created"):
        set_up(small.root, small.root / "file" / ".venv", (), small.said.append)
    monkeypatch.setenv("PIP_INDEX_URL", "http://me:secret@127.0.0.1:9/simple")
    with raises("set-up-failed") as caught:
        small.set_up()
    assert "127.0.0.1:9" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_remedy_names_packages_when_uv_and_pip_are_missing(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    small.pin()
    monkeypatch.setattr("shutil.which", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(setup, "_succeeds", lambda command: "-c" in command)
    with raises("set-up-failed", match="Neither uv nor pip") as caught:
        small.set_up()
    assert "apt-get install python3-venv" in caught.value.fix


@pytest.mark.slow
def test_uv_is_installed_by_pip_with_its_locked_hash(small: Small) -> None:
    """Runs the real pip with the uv part of the lock, on a stand-in for uv."""
    small.pin()
    small.set_up()
    entry_points = {"uv": "uv:main"}
    wheel = make_wheel(small.root / "wheels", "uv", "9.9", files={"uv.py": ""}, entry_points=entry_points)
    small.index.add(wheel)
    small.pin(uv="9.9")
    setup._fetch_uv(LockedSet.of(small.root, "run"), small.prefix / "bin" / "python")
    assert "uv-9.9" in small.installed()
    assert (small.prefix / "bin" / "uv").exists()


def test_only_our_own_environment_is_changed(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    small.pin()
    small.prefix.mkdir()
    monkeypatch.setattr(sys, "prefix", str(small.prefix))
    assert not ensure(small.root, "smoke", small.said.append)
    assert small.said == []
    small.set_up()
    assert ensure(small.root, "smoke", small.said.append)
    assert not ensure(small.root, "smoke", small.said.append)
    assert any("smoke tests of images" in line for line in small.said)


def test_uv_uses_indexes_of_pip_unless_it_has_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    assert options_for_uv() == []
    monkeypatch.setenv("PIP_INDEX_URL", "https://one.example/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://two.example/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert options_for_uv() == [
        *("--default-index", "https://one.example/simple", "--index", "https://two.example/simple"),
        *("--find-links", str(tmp_path)),
    ]
    monkeypatch.setenv("UV_INDEX_URL", "https://three.example/simple")
    assert options_for_uv() == []
    monkeypatch.setenv("PIP_CERT", "/ca.pem")
    assert environment_for_uv()["SSL_CERT_FILE"] == "/ca.pem"


@pytest.mark.parametrize("named", ["SSL_CERT_FILE", "PIP_CERT"])
def test_machine_certificates_are_trusted_unless_a_bundle_is_set(tmp_path: Path, named: str) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text("")
    environment = {named: str(bundle)}
    trust_the_machine(environment)
    assert environment[VARIABLE] == str(bundle)
    environment = {named: str(bundle), VARIABLE: "/chosen"}
    trust_the_machine(environment)
    assert environment[VARIABLE] == "/chosen"
