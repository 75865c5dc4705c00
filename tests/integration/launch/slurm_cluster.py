"""A cluster of Slurm on one Linux machine: its controller and each node in a network namespace of their own.

Nodes share the machine's files, as those of a cluster share home; /run, /dev/shm and Podman's disk are a node's own.
Everything in a node's network belongs to that node, containers too, since they use its network: so killing all of it
is a power cut.
"""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "nsenter", "unshare", "jq")
NETWORK, CONTROLLER = "10.89.0", "10.89.0.254"
PATIENCE = 60
"""Seconds for a daemon to answer."""
NODE = """
set -e
mount -t tmpfs run /run
mount -t tmpfs shm /dev/shm
mount --bind "$1" "$2"
shift 2
exec "$@"
"""
"""A node boots: what a machine forgets is empty, and its disk is in place."""
STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/disk"
runroot = "/run/containers"
[storage.options]
additionalimagestores = [{images}]
"""
# A node has no systemd; and Podman's own limits are above those that root may set on some machines.
CONTAINERS = """
[containers]
default_ulimits = ["nofile=10000:10000", "nproc=1000:1000"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
# A job that is put back waits until its credential has expired: without cred_expire, for two minutes.
CONFIG = """
ClusterName=test
SlurmctldHost=control({controller})
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=30
SlurmUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def slurm_missing() -> str:
    """Return why there can be no cluster on this machine; an empty text if there can."""
    if os.geteuid():
        return "network namespaces need root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    packages = "slurmctld, slurmd, slurm-client, munge, iproute2, util-linux, jq"
    return f"no {', '.join(missing)}; Debian: {packages}" if missing else ""


def wait_for(what: str, holds: Callable[[], bool], seconds: float, evidence: Callable[[], str] = str) -> float:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"{what}: {evidence()}"
        time.sleep(1)
    return time.monotonic() - began


class Cluster:
    """A controller and its nodes, n1 and so on, which have the images of a folder of Podman's storage."""

    def __init__(self, folder: Path, count: int, images: Path | None) -> None:
        self.folder = folder
        self.nodes = {f"n{number}": f"{NETWORK}.{number}" for number in range(1, count + 1)}
        self._mark = secrets.token_hex(3)
        self._variables = {"PATH": os.environ["PATH"], "HOME": str(folder), "SLURM_CONF": f"{folder}/slurm.conf"}
        storage, containers = folder / "storage.conf", folder / "containers.conf"
        storage.write_text(STORAGE.format(folder=folder, images=f'"{images}"' if images else ""))
        containers.write_text(CONTAINERS)
        self._variables |= {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(containers)}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        lines = [f"NodeName={name} NodeAddr={address} CPUs=1" for name, address in self.nodes.items()]
        config = CONFIG.format(controller=CONTROLLER, folder=self.folder, nodes="\n".join(lines))
        (self.folder / "slurm.conf").write_text(config)
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\nIgnoreSystemd=yes\n")
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        files = {"socket": "munge.socket", "key-file": key.name, "pid-file": "munge.pid", "log-file": "munge.log"}
        options = [f"--{name}={self.folder / file}" for name, file in files.items()]
        self._run("munged", "--foreground", "--force", f"--seed-file={self.folder}/munge.seed", *options)
        self._lay_cables()
        wait_for("munged", (self.folder / "munge.socket").exists, PATIENCE)
        self._run(*self._inside("control", "slurmctld", "-D", "-f", f"{self.folder}/slurm.conf"))
        (self.folder / "disk").mkdir()
        for name in self.nodes:
            (self.folder / f"disk.{name}").mkdir()
            self.boot(name)
        wait_for("nodes", lambda: self.states() == {"idle"}, PATIENCE, self._logs)

    def _lay_cables(self) -> None:
        """Give the controller a switch, and each node a cable to it."""
        for name in ("control", *self.nodes):
            self._ip("netns", "add", self._space(name))
            self._ip("-n", self._space(name), "link", "set", "lo", "up")
        control = ("-n", self._space("control"))
        self._ip(*control, "link", "add", "switch", "type", "bridge")
        self._ip(*control, "address", "add", f"{CONTROLLER}/24", "dev", "switch")
        self._ip(*control, "link", "set", "switch", "up")
        for name, address in self.nodes.items():
            own = ("-n", self._space(name))
            self._ip(*control, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", self._space(name))
            self._ip(*control, "link", "set", name, "master", "switch", "up")
            self._ip(*own, "address", "add", f"{address}/24", "dev", "eth0")
            self._ip(*own, "link", "set", "eth0", "up")

    def boot(self, name: str) -> None:
        disks = (str(self.folder / f"disk.{name}"), str(self.folder / "disk"))
        boot = ("unshare", "--mount", "sh", "-c", NODE, name, *disks)
        self._run(*self._inside(name, *boot, "slurmd", "-D", "-N", name, "-f", f"{self.folder}/slurm.conf"))

    def cut_power(self, name: str) -> None:
        """Kill whatever uses a node's network; more may start meanwhile."""
        while found := self._ip("netns", "pids", self._space(name)).split():
            for process in map(int, found):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.2)
        for container in (self.folder / f"disk.{name}" / "overlay-containers").glob("*/"):
            for group in Path("/sys/fs/cgroup").glob(f"**/libpod*{container.name}"):
                with suppress(OSError):
                    group.rmdir()

    def left_over(self) -> list[str]:
        """Return what runs on nodes, beside Slurm's daemon."""
        found = []
        for name in self.nodes:
            for process in self._ip("netns", "pids", self._space(name)).split():
                with suppress(OSError):
                    words = Path("/proc", process, "cmdline").read_text().replace("\0", " ")
                    found += [f"{name}: {process} {words}"] * (not words.startswith("slurmd "))
        return found

    def call(self, *words: str, node: str = "control", timeout: float = 60) -> str:
        command = ["nsenter", f"--net=/run/netns/{self._space(node)}", *words]
        done = subprocess.run(
            command, env=self._variables, capture_output=True, text=True, check=False, timeout=timeout, cwd=self.folder
        )
        assert not done.returncode, f"{' '.join(words)}: {done.stderr}{done.stdout}"
        return done.stdout

    def states(self) -> set[str]:
        with suppress(AssertionError):
            return set(self.call("sinfo", "--noheader", "--Node", "--format", "%T").split())
        return set()

    def stop(self) -> None:
        for name in self.nodes:
            self.cut_power(name)
        self.cut_power("control")
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait(PATIENCE)
        for name in ("control", *self.nodes):
            self._ip("netns", "delete", self._space(name))

    def _space(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _inside(self, name: str, *words: str) -> list[str]:
        # `ip netns exec` would mount another /sys, in which slurmd finds no cgroups.
        named = ("unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name)
        return ["nsenter", f"--net=/run/netns/{self._space(name)}", *named, *words]

    def _run(self, *words: str) -> None:
        with (self.folder / "daemons.log").open("ab") as log:
            self._daemons.append(subprocess.Popen(words, env=self._variables, stdout=log, stderr=log))

    def _logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("*.log")))

    @staticmethod
    def _ip(*words: str) -> str:
        return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@contextmanager
def slurm_cluster(folder: Path, count: int, images: Path | None = None) -> Iterator[Cluster]:
    """Run a cluster for the duration of the block."""
    cluster = Cluster(folder, count, images)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
