"""Two hosts of one run: network namespaces with a cable between them, each with a launcher whose processes are killed."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kill_driver import Kill

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

    def __enter__(self) -> Hosts:
        self._names = [f"kills{os.getpid()}-{host}" for host in (0, 1)]
        for name in self._names:
            ip("netns", "add", name)
        first, second = self._names
        ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for host, name in enumerate(self._names):
            ip("-n", name, "address", "add", f"{ADDRESS.format(host + 1)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host, name in enumerate(self._names):
            self._kill(host)
            ip("netns", "del", name)

    def run_killed(self, order: dict[str, Any], kills: list[Kill]) -> int:
        """Starts a host again after each kill, as a scheduler does, until the run completes; returns how many hit it.

        An even `task` is that of a worker, an odd one a whole host.
        """
        pipe = os.open(self._folder / "words", os.O_RDWR | os.O_NONBLOCK)
        self._given, left, struck, rest = order, list(kills), 0, b""
        self._children: list[Any] = [self._launch(host) for host in (0, 1)]
        seen: collections.Counter[str] = collections.Counter()
        started: list[int] = []
        while not self._has_ended():
            if not select.select([pipe], [], [], 0.01)[0]:
                continue
            *lines, rest = (rest + os.read(pipe, 1 << 16)).split(b"\n")
            for word, pid in (line.decode().split() for line in lines):
                seen[word] += 1
                if word == "start":
                    started.append(int(pid))
                if left and left[0].kind == word and seen[word] == left[0].nth:
                    kill = left.pop(0)
                    time.sleep(kill.delay)
                    struck += self._strike(kill, [int(pid), *started])
                    seen.clear()
                    started.clear()
        os.close(pipe)
        return struck

    def _strike(self, kill: Kill, workers: list[int]) -> bool:
        if kill.task % 2:
            return self._kill(kill.task // 2 % 2)
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(workers[kill.task // 2 % len(workers)], signal.SIGKILL)
            return True
        return False

    def _launch(self, host: int) -> Any:
        nnodes = HOSTS[self._given["scenario"], self._given["strategy"]]
        place = [] if ":" in nnodes else ["--node-rank", host]
        (tasks := self._folder / f"tasks-{host}").mkdir(exist_ok=True)
        words = ["--nnodes", nnodes, *place, "--timeout", 30, "--restarts", 50, "--rdzv-endpoint"]
        words += [f"{ADDRESS.format(1)}:29500", Path(__file__).with_name("kill_driver.py")]
        env = {"WORDS": str(self._folder / "words"), "TASKS": str(tasks), "NAMESPACE": self._names[host]}
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
        pids = ip("netns", "pids", self._names[host]).split()
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pids)


def draw(rng: random.Random) -> Kill:
    """A random moment, and whom it hits."""
    kill = Kill.draw_any(rng, several=True)
    return Kill(kill.kind, kill.nth, kill.delay, task=rng.randint(0, 7))
