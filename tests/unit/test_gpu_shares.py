"""How the processes of one machine divide its GPUs, whichever launcher started them."""

import pytest
import tensorflow as tf
from absent_gpus import absent_gpus

from unisono.distribute.environment import ClusterError
from unisono.distribute.workers.joining import _divide_gpus
from unisono.distribute.workers.places import Place
from unisono.distribute.workers.rendezvous import Peer


def shares(count, peers, monkeypatch):
    """The numbers of the GPUs that each process keeps; None: all that it sees."""
    found = []
    for rank in range(len(peers)):
        kept = []
        monkeypatch.setattr(tf.config, "set_visible_devices", lambda gpus, kind, kept=kept: kept.append(gpus))
        with absent_gpus(count):
            _divide_gpus(Place("mpirun", rank, len(peers), (), ""), peers)
        found.append([int(gpu.name[-1]) for gpu in kept[0]] if kept else None)
    return found


def test_processes_of_a_machine_divide_its_gpus_and_other_machines_do_not_count(monkeypatch):
    peers = [Peer(address, "") for address in ("a:1", "b:1", "a:2", "[fd00::1]:1", "b:2")]
    assert shares(4, peers, monkeypatch) == [[0, 1], [0, 1], [2, 3], None, [2, 3]]
    assert shares(3, peers[:3], monkeypatch) == [[0], None, [1]]
    assert shares(0, peers, monkeypatch) == [None] * 5


def test_gpus_that_the_launcher_has_bound_are_not_divided_again(monkeypatch):
    assert shares(2, [Peer("a:1", "0,1"), Peer("a:2", "2,3")], monkeypatch) == [None, None]
    bound = [Peer("a:1", "0 of task 0"), Peer("a:2", "0 of task 1")]
    assert shares(1, bound, monkeypatch) == [None, None]
    same = [Peer("a:1", "0,1,2,3")] * 1 + [
        Peer("a:2", "0,1,2,3")
    ]  # Slurm lists all GPUs of the job's node to each task
    assert shares(4, same, monkeypatch) == [[0, 1], [2, 3]]


def test_more_processes_than_gpus_are_an_error_with_both_numbers(monkeypatch):
    peers = [Peer(f"node7:{port}", "") for port in (1, 2, 3)]
    with pytest.raises(ClusterError, match=r"mpirun runs 3 processes on node7, which has 2 GPU\(s\)"):
        shares(2, peers, monkeypatch)
