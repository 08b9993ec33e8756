"""Two hosts of one run: network namespaces with a cable between them, each with a launcher whose processes are killed."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kill_driver import Kill, listening, moments, strike

if TYPE_CHECKING:
    from forked import Forked

# (scenario, strategy), by the argument `--nnodes` of `launch`.
HOSTS = {("float64", "elastic"): "1:2", ("float64", "hosts"): "2"}
ADDRESS = "10.79.0.{}"
TEMPORARY = 75  # the status that asks for another start


def ip(*words: Any) -> str:
    """Runs `ip` (iproute2); returns its output."""
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True).stdout


class Hosts:
    """A context manager that owns two network namespaces, and runs one training on both. `folder` is a driver's."""

    def __init__(self, forked: Forked, folder: Path) -> None:
        self._forked, self._folder = forked, folder
        self.names: list[str] = []

    def __enter__(self) -> Hosts:
        self.names = [f"kills{os.getpid()}-{host}" for host in (0, 1)]
        for name in self.names:
            ip("netns", "add", name)
        first, second = self.names
        ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for host, name in enumerate(self.names):
            ip("-n", name, "address", "add", f"{ADDRESS.format(host + 1)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host, name in enumerate(self.names):
            self._kill(host)
            ip("netns", "del", name)

    def run_killed(self, order: dict[str, Any], kills: list[Kill]) -> int:
        """Starts a host again after each kill, as a scheduler does, until the run completes; returns how many hit it.

        An even `task` is that of a worker, an odd one a whole host.
        """
        self._given, struck = order, 0
        with listening(self._folder) as pipe:
            self._children: list[Any] = [self._launch(host) for host in (0, 1)]
            for kill, workers in moments(pipe, kills, lambda: not self._has_ended()):
                whom = kill.task // 2
                if kill.task % 2:
                    time.sleep(kill.delay)
                    struck += self._kill(whom % 2)
                else:
                    struck += strike(workers[whom % len(workers)], kill.delay)
        return struck

    def _launch(self, host: int) -> Any:
        nnodes = HOSTS[self._given["scenario"], self._given["strategy"]]
        place = [] if ":" in nnodes else ["--node-rank", host]
        (tasks := self._folder / f"tasks-{host}").mkdir(exist_ok=True)
        words = ["--nnodes", nnodes, *place, "--timeout", 30, "--restarts", 50, "--rdzv-endpoint"]
        words += [f"{ADDRESS.format(1)}:29500", Path(__file__).with_name("kill_driver.py")]
        env = {"WORDS": str(self._folder / "words"), "TASKS": str(tasks), "NAMESPACE": self.names[host]}
        program = Path(__file__).with_name("forking_launcher.py")
        return self._forked.start(
            program,
            *words,
            json.dumps(self._given),
            folder=self._folder,
            out=self._folder / f"printed-{host}",
            env={**env, "TF_CPP_MIN_LOG_LEVEL": "3", "UNISONO_REPLICAS_PER_WORKER": "1"},
            seconds=1200,
        )

    def _has_ended(self) -> bool:
        """Whether the first host has completed the run; a host that a kill has ended is started again."""
        statuses = [child.poll() for child in self._children]
        if statuses[0] == 0:
            self._kill(1)  # without the first it waits for one
            self._children[1].wait()
            return True
        for host, status in enumerate(statuses):
            if status in (-signal.SIGKILL, TEMPORARY) or (status == 0 and statuses[0] is not None):
                self._children[host] = self._launch(host)
            elif status:
                printed = (self._folder / f"printed-{host}").read_text()[-4000:]
                raise RuntimeError(f"Host {host} ended with {status}: {self._given}.\n{printed}")
        return False

    def _kill(self, host: int) -> bool:
        """Ends all processes of a host at once; returns whether there were any."""
        pids = ip("netns", "pids", self.names[host]).split()
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)


def draw(rng: random.Random) -> Kill:
    """A random moment, and whom it hits."""
    kill = Kill.draw_any(rng, several=True)
    return Kill(kill.kind, kill.nth, kill.delay, task=rng.randint(0, 7))
