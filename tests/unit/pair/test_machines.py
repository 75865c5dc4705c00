import os
from pathlib import Path

import pytest

from imagefactory.errors import EngineError, FactoryError, NetworkError, UsageError
from imagefactory.pair.containers import find
from imagefactory.pair.machines import There, check, failed, reach
from tests.fixtures.failures import raises


@pytest.mark.parametrize(
    ("said", "what", "fix"),
    [
        ("ssh: Could not resolve hostname spark2: Name or service not known", "is not known", "~/.ssh/config"),
        ("Host key verification failed.", "a host key that this machine does not know", "ssh-keygen -R spark2"),
        ("root@10.77.0.2: Permission denied (publickey).", "refuses this user's ssh keys", "ssh-copy-id spark2"),
        ("ssh: connect to host 10.77.0.2 port 22: Connection refused", "no ssh server listens", "enable --now ssh"),
        ("ssh: connect to host 10.77.0.2 port 22: Connection timed out", "does not answer", "ping spark2"),
        ("Timeout, server 10.77.0.2 not responding.", "does not answer", "ping spark2"),
        ("kex_exchange_identification: banner line too long", "cannot be reached over ssh", "`ssh spark2 true`"),
    ],
)
def test_failures_of_ssh_are_explained(tmp_path: Path, said: str, what: str, fix: str) -> None:
    error = There("spark2", tmp_path).explained(f"** a banner **\n{said}\n")
    assert what in error.what
    assert fix in error.fix
    assert error.why == said


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("permission denied while trying to connect to the Docker daemon socket", "usermod -aG docker"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", "systemctl enable --now docker"),
        ("failed to register layer: write /x: no space left on device", "docker system prune"),
    ],
)
def test_failures_of_docker_have_remedies(tmp_path: Path, said: str, fix: str) -> None:
    assert fix in failed(There("spark2", tmp_path), ("docker", "pull"), said).fix


@pytest.mark.parametrize(
    ("script", "kind", "name"),
    [
        ("exit 127", EngineError, "no-program"),
        ("echo oh >&2; exit 3", EngineError, "engine-failed"),
        ("echo Connection refused >&2; exit 255", NetworkError, "no-ssh"),
    ],
)
def test_the_exit_code_tells_whose_failure_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: type[FactoryError], name: str
) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f"#!/bin/sh\n{script}\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(kind) as caught:
        check(There("spark2", tmp_path), "docker", "version")
    assert caught.value.name == name


def test_what_start_up_files_print_is_no_output_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    # As sshd does: the last word is what a shell runs, after its start-up files.
    ssh.write_text('#!/bin/sh\nfor word; do :; done\necho Welcome to spark2\nexec sh -c "$word"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert check(There("spark2", tmp_path), "printf", "%s\n", "a b", "$HOME") == "a b\n$HOME"


def test_a_connection_ends_by_itself_and_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "ssh").write_text('#!/bin/sh\necho "$@" >>"$HOME/asked"\n')
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with reach("spark2"):
        asked = (tmp_path / "asked").read_text()
    assert "ControlPersist=10 " in asked  # not `yes`: if this program is killed, nobody is left to end it
    assert f"ControlPath={tmp_path}/.ssh/pair-{os.getpid()} " in asked
    assert {path.name for path in tmp_path.iterdir()} == {"ssh", "asked", ".ssh"}


DOCKER = """\
#!/bin/sh
case "$*" in
ps*) printf '%s\\n' "innocent evil@attacker.example" "spark-pair spark2";;
"container inspect"*) for word; do :; done; echo "image-of-$word";;
*image-of-innocent) echo '{"imagefactory.pair": "evil@attacker.example"}';;
*) echo null;;
esac
"""


def test_a_label_that_an_image_brought_along_makes_no_pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find() == ("spark-pair", "spark2")
    with raises("no-pair", match="There is no pair with evil@attacker.example here") as caught:
        find("evil@attacker.example")
    assert (caught.value.why, caught.value.fix.partition(": ")[2]) == ("spark-pair is with spark2.", "--with spark2.")


def test_without_a_pair_the_advice_is_to_start_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker").write_text("#!/bin/sh\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for host, named in (("", "spark2"), ("me@10.0.0.2", "me@10.0.0.2")):
        with raises("no-pair", match="There is no pair on this machine") as caught:
            find(host)
        assert caught.value.fix == f"Start one with `./inv pair up TARGET --with {named}`."


@pytest.mark.parametrize("host", ["-oProxyCommand=touch /tmp/x", "a b", ""])
def test_a_host_is_no_option_of_ssh(host: str) -> None:
    with pytest.raises(UsageError), reach(host):
        pass
