"""Two Sparks on one Linux machine: namespaces with a cable between them, an sshd and a dockerd in each.

Each Spark has its own network, mounts, processes and host name, and a Wi-Fi with the default route that the other
cannot reach. Killing its first process is a power cut: the kernel ends everything else in it and removes its mounts.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from imagefactory.store.digests import sha256_of

CABLE, WIFI = "enp1s0f0np0", "wlP9s9"
PROGRAMS = ("docker", "dockerd", "ip", "iptables", "nsenter", "unshare", "ssh", "ssh-keygen", "rsync", "/usr/sbin/sshd")
PATIENCE = 60
"""Seconds for a daemon to answer."""
FIRST_PROCESS = """
set -e
mount -t tmpfs run /run
mkdir -p /run/sshd /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
umount -l /sys
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount -l /run/cgroup
mount -t proc proc /proc
mount -t tmpfs shm /dev/shm
hostname "$1"
ip link set lo up
echo up
while :; do sleep 3600 & wait $! || :; done
"""
"""It reaps what others leave, and shows this network's interfaces in /sys."""
SSHD = """
Port 22
ListenAddress 0.0.0.0
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
PidFile none
SetEnv HOME={home} PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""
SSH = """
Host spark2 stranger
    HostName {address}
Host stranger
    HostKeyAlias stranger
Host nokey
    HostName {address}
    IdentityFile {keys}/none
Host spark2 stranger
    IdentityFile {keys}/user
Host *
    User root
    ConnectTimeout 5
    IdentitiesOnly yes
    UserKnownHostsFile {keys}/known_hosts
    GlobalKnownHostsFile none
"""


def bed_missing(programs: Sequence[str] = PROGRAMS) -> str | None:
    """Return why there can be no test bed on this machine."""
    if os.geteuid():
        return "network namespaces need root"
    if missing := [name for name in programs if shutil.which(name) is None]:
        return f"no {', '.join(missing)}; Debian: iproute2, iptables, openssh-server, openssh-client, rsync, docker.io"
    tried = subprocess.run(_unshare("true"), capture_output=True, text=True, check=False)
    return f"no namespaces: {tried.stderr.strip()}" if tried.returncode else None


def _unshare(*words: str) -> list[str]:
    """Return the command of a machine, which ends with the tests, even if these are killed."""
    spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child")
    return ["setpriv", "--pdeathsig", "KILL", "unshare", *spaces, "--propagation", "private", *words]


def stock(image: str, root: Path) -> None:
    """Give a daemon that does not run yet an image of the tests' daemon, by hard links: unpacking takes minutes."""
    docker = ("docker", "image", "inspect", image)
    [found] = json.loads(subprocess.run(docker, capture_output=True, check=True).stdout)
    info = ("docker", "info", "--format", "{{.DockerRootDir}}")
    source = Path(subprocess.run(info, capture_output=True, check=True, text=True).stdout.strip())
    data, digest = found["GraphDriver"]["Data"], found["Id"].removeprefix("sha256:")
    layers = [Path(path).parent.name for path in (data["UpperDir"], *data.get("LowerDir", "").split(":")) if path]
    links = [f"l/{(source / 'overlay2' / layer / 'link').read_text()}" for layer in layers]
    chains, parent = [], ""
    for difference in found["RootFS"]["Layers"]:
        parent = f"sha256:{sha256_of(f'{parent} {difference}'.encode())}" if parent else difference
        chains.append(f"layerdb/sha256/{parent.removeprefix('sha256:')}")
    folders = [f"overlay2/{name}" for name in (*layers, *links)]
    folders += [f"image/overlay2/{name}" for name in (*chains, f"imagedb/content/sha256/{digest}")]
    root.mkdir(parents=True, exist_ok=True)
    # A daemon mounts its folders on themselves, and links do not lead from one mount to another.
    copy = 'umount --lazy "$0"/overlay2 "$0"; cd "$0" && cp --archive --link --parents --target-directory "$@"'
    words = ["unshare", "--mount", "sh", "-c", copy, str(source), str(root), *folders]
    subprocess.run(words, check=True, capture_output=True)
    names = {name.partition(":")[0]: {name: found["Id"]} for name in found["RepoTags"]}
    (root / "image/overlay2/repositories.json").write_text(json.dumps({"Repositories": names}))


def child_of(process: subprocess.Popen[str]) -> int:
    """Return the program that unshare or nsenter runs: to enter a process namespace they have to fork."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


@dataclass
class Spark:
    """One of the machines."""

    name: str
    folder: Path
    address: str
    wifi: str
    process: subprocess.Popen[str] | None = None
    daemons: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def first(self) -> int:
        """The first process, as the host counts."""
        assert self.process is not None
        return child_of(self.process)

    def boot(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        command = _unshare("bash", "-c", FIRST_PROCESS, "first", self.name)
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "up\n":
            raise RuntimeError(f"{self.name} does not boot")

    def start_daemons(self, keys: Path) -> None:
        self.start_sshd(keys)
        self.start_dockerd()

    def start_dockerd(self) -> None:
        options = ("--bridge", "none", "--iptables=false", "--ip6tables=false")
        self.start("dockerd", "dockerd", *options, "--data-root", str(self.folder / "docker"))
        self.wait_for("dockerd", lambda: self.run("docker", "version").returncode == 0)

    def start_sshd(self, keys: Path) -> None:
        config = self.folder / "sshd_config"
        config.write_text(SSHD.format(keys=keys, home=self.home))
        self.start("sshd", "/usr/sbin/sshd", "-D", "-e", "-f", str(config))

    def start(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("a") as log:
            self.daemons[name] = subprocess.Popen(self.inside(*words), stdout=log, stderr=log, text=True)

    def wait_for(self, daemon: str, answers: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not answers():
            if time.monotonic() > deadline or self.daemons[daemon].poll() is not None:
                raise RuntimeError(f"{daemon} of {self.name}: {(self.folder / f'{daemon}.log').read_text()[-800:]}")
            time.sleep(0.2)

    def inside(self, *words: str, env: Mapping[str, str] | None = None) -> list[str]:
        """Return the command that runs another one on this machine."""
        # Users of a Spark have its own daemon, and a home of their own.
        variables = {"HOME": str(self.home), "PATH": f"{self.folder}/bin:{os.environ['PATH']}", **(env or {})}
        own = [f"{name}={value}" for name, value in variables.items()]
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid")
        return ["nsenter", "--target", str(self.first), *spaces, "env", "-u", "DOCKER_HOST", *own, *words]

    def run(
        self, *words: str, env: Mapping[str, str] | None = None, timeout: float = 600, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = self.inside(*words, env=env)
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, cwd=cwd)

    def check(self, *words: str, env: Mapping[str, str] | None = None, timeout: float = 600) -> str:
        done = self.run(*words, env=env, timeout=timeout)
        assert done.returncode == 0, f"{self.name}: {shlex.join(words)}: {done.stderr or done.stdout}"
        return done.stdout

    def stop_daemon(self, name: str) -> None:
        process = self.daemons.pop(name)
        os.kill(child_of(process), signal.SIGTERM)
        process.wait(PATIENCE)

    def cut_power(self) -> None:
        if self.process is None:
            return
        with suppress(OSError, IndexError):
            os.kill(self.first, signal.SIGKILL)
        self.process.kill()
        for process in (self.process, *self.daemons.values()):
            process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        self.daemons.clear()


@dataclass
class Bed:
    """Both machines, and the cable between them."""

    folder: Path
    sparks: tuple[Spark, Spark]

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    def start(self) -> None:
        self.keys.mkdir()
        for name in ("host", "user"):
            made = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.keys / name))
            subprocess.run(made, check=True)
        head, worker = self.sparks
        host = (self.keys / "host.pub").read_text()
        (self.keys / "known_hosts").write_text(f"{worker.address} {host}")
        (head.folder / "bin").mkdir(parents=True)
        config = head.folder / "ssh_config"
        config.write_text(SSH.format(address=worker.address, keys=self.keys))
        # ssh takes the home of the password file, and so would use the keys of whoever runs the tests.
        ssh = head.folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        ssh.chmod(0o755)
        for spark in self.sparks:
            spark.boot()
            self.join_wifi(spark)
        self.plug_in()
        for spark in self.sparks:
            spark.start_daemons(self.keys)

    def plug_in(self) -> None:
        """Lay the cable; both ends come up with their addresses."""
        head, worker = self.sparks
        for spark in self.sparks:  # what is left of a cable to a machine without power
            spark.run("ip", "link", "delete", CABLE)
        ends = ("netns", str(head.first), "type", "veth", "peer", "name", CABLE, "netns", str(worker.first))
        subprocess.run(["ip", "link", "add", CABLE, *ends], check=True)
        for spark in self.sparks:
            spark.check("ip", "address", "add", f"{spark.address}/24", "dev", CABLE)
            spark.check("ip", "link", "set", CABLE, "up", "mtu", "9000")

    @staticmethod
    def join_wifi(spark: Spark) -> None:
        air = f"air{spark.first}"
        subprocess.run(
            ["ip", "link", "add", air, "type", "veth", "peer", "name", WIFI, "netns", str(spark.first)], check=True
        )
        subprocess.run(["ip", "link", "set", air, "up"], check=True)
        spark.check("ip", "address", "add", f"{spark.wifi}.1/24", "dev", WIFI)
        spark.check("ip", "link", "set", WIFI, "up")
        spark.check("ip", "route", "add", "default", "via", f"{spark.wifi}.254", "dev", WIFI)

    def reboot(self, spark: Spark) -> None:
        spark.cut_power()
        spark.boot()
        self.join_wifi(spark)
        self.plug_in()
        spark.start_daemons(self.keys)

    def stop(self) -> None:
        for spark in self.sparks:
            spark.cut_power()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def two_sparks(folder: Path, head_image: str = "", worker_image: str = "") -> Iterator[Bed]:
    """Run both machines for the duration of the block; they may have images of the tests' daemon from the start."""
    bed = Bed(
        folder,
        (
            Spark("spark1", folder / "spark1", "10.77.0.1", "10.78.0"),
            Spark("spark2", folder / "spark2", "10.77.0.2", "10.79.0"),
        ),
    )
    try:
        for spark, image in zip(bed.sparks, (head_image, worker_image), strict=True):
            if image:
                stock(image, spark.folder / "docker")
        bed.start()
        yield bed
    finally:
        bed.stop()


def wire(one: Spark, name: str, other: Spark, there: str) -> None:
    """Lay a cable between two machines."""
    ends = ("netns", str(one.first), "type", "veth", "peer", "name", there, "netns", str(other.first))
    subprocess.run(["ip", "link", "add", name, *ends], check=True)
    one.check("ip", "link", "set", name, "up", "mtu", "9000")
    other.check("ip", "link", "set", there, "up", "mtu", "9000")


def connect(switch: Spark, *sparks: Spark) -> None:
    """Have a machine be the switch that joins others."""
    switch.check("ip", "link", "add", "bridge", "type", "bridge")
    switch.check("ip", "link", "set", "bridge", "up", "mtu", "9000")
    for number, spark in enumerate(sparks, 1):
        wire(spark, CABLE, switch, f"port{number}")
        switch.check("ip", "link", "set", f"port{number}", "master", "bridge")
        spark.check("ip", "address", "add", f"{spark.address}/24", "dev", CABLE)


def need_bed(programs: Sequence[str] = PROGRAMS) -> None:
    if reason := bed_missing(programs):
        pytest.skip(reason)
