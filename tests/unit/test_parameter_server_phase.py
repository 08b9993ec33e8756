"""Pieces of work for fake workers: threads take them, as the coordinator's threads do for real workers."""

import collections
import threading
import time
import types

import pytest

from unisono.distribute.parameter_servers import worker_pool
from unisono.distribute.parameter_servers.worker_pool import Phase

Piece = collections.namedtuple("Piece", "number steps")


class Waiters(threading.Condition):
    """Counts the threads that wait."""

    count = 0

    def wait(self, timeout=None):
        self.count += 1
        try:
            return super().wait(timeout)
        finally:
            self.count -= 1


class Workers:
    """Threads that run `phase.loop`; `gates[w]` is an Event that worker w waits for in each piece.

    `most_ahead` is the largest lead of any worker over the slowest one when it began a piece, including that piece.
    """

    def __init__(self, monkeypatch, count, max_staleness):
        here = threading.local()
        monkeypatch.setattr(worker_pool, "current_worker", lambda: here.worker)
        self.gates = [threading.Event() for _ in range(count)]
        self.done = [0] * count
        self.begun = [0] * count
        self.most_ahead = 0
        self.lock = threading.Lock()
        pool = types.SimpleNamespace(listens=lambda kind, index: True, coordinator=None)
        self.phase = Phase(pool, self._run, lambda worker: None, max_staleness)
        self.phase._changed = self.waiters = Waiters()

        def live(worker):
            here.worker = worker
            self.phase.loop()

        self.threads = [threading.Thread(target=live, args=(w,), daemon=True) for w in range(count)]
        for thread in self.threads:
            thread.start()
        self.wait_until(lambda: len(self.phase._steps_of) == count)

    def _run(self, worker, piece):
        with self.lock:
            self.begun[worker] += piece.steps
            ahead = self.done[worker] + piece.steps - min(self.done)
            self.most_ahead = max(self.most_ahead, ahead)
        self.gates[worker].wait()
        with self.lock:
            self.done[worker] += piece.steps
        return worker

    def wait_until(self, true):
        until = time.monotonic() + 60  # far more than the threads need on a busy machine
        while not true():
            assert time.monotonic() < until
            time.sleep(0.005)

    def end(self):
        for gate in self.gates:
            gate.set()
        self.phase.close()
        for thread in self.threads:
            thread.join()


@pytest.mark.parametrize(("max_staleness", "steps"), [(1, 1), (3, 1), (4, 2)])
def test_no_worker_is_more_than_max_staleness_steps_ahead_of_the_slowest(monkeypatch, max_staleness, steps):
    workers = Workers(monkeypatch, 3, max_staleness)
    try:
        for number in range(40):
            workers.phase.put(Piece(number, steps))
        workers.wait_until(lambda: workers.begun == [steps] * 3)
        workers.gates[1].set()
        workers.gates[2].set()  # worker 0 is blocked in its first piece
        workers.wait_until(lambda: workers.done[1:] == [max_staleness] * 2)
        workers.wait_until(lambda: workers.waiters.count == 2 or max(workers.begun) > max_staleness)
        assert workers.begun == [steps, max_staleness, max_staleness], "the others wait for worker 0"
        workers.gates[0].set()
        workers.wait_until(lambda: sum(workers.done) == 40 * steps)
        assert workers.most_ahead == max_staleness
    finally:
        workers.end()


def test_without_a_bound_nobody_waits_for_the_slowest(monkeypatch):
    workers = Workers(monkeypatch, 2, None)
    try:
        for number in range(30):
            workers.phase.put(Piece(number, 1))
        workers.wait_until(lambda: workers.begun == [1, 1])
        workers.gates[1].set()
        workers.wait_until(lambda: workers.done[1] >= 29)
        assert workers.done == [0, 29] and workers.begun == [1, 29], "worker 0 is in its first piece"
    finally:
        workers.end()
