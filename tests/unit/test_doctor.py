"""`python -m unisono doctor` reports each possible problem in one sentence."""

import json
import socket
import sys

import pytest

from unisono.commands import doctor
from unisono.commands.doctor import Finding

GOOD = {
    "gpus": [],
    "slow": {"float16": "It lacks avx512_fp16.", "bfloat16": None},
    "sums": [[2.0, 4.0, 6.0], [2.0, 4.0, 6.0]],
}


def problems(findings):
    return [f.problem for f in findings if f.problem]


def by_name(findings, name):
    return next(f for f in findings if f.name == name)


def tensorflow(found=GOOD, failure="", driver=False, **environ):
    return list(doctor.tensorflow(found, failure, driver, environ))


def test_probe_that_does_not_start_is_the_problem_of_the_devices():
    assert problems(tensorflow({}, "ImportError: no libfoo")) == [
        "TensorFlow does not start: ImportError: no libfoo."
    ]


def test_probe_that_takes_too_long_is_ended_and_said():
    found, failure = doctor.run_probe({"PATH": ""}, 0.01)
    assert found == {} and failure == "no answer after 0 s"


def test_probe_that_fails_says_its_error(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert doctor.run_probe({}, 9.0) == ({}, "")
    monkeypatch.undo()
    found, failure = doctor.run_probe({"PYTHONPATH": "/nowhere", "KERAS_BACKEND": "none such"}, 99.0)
    assert "gpus" not in found and "none such" in failure


def test_precision_says_why_it_is_slow():
    slow, fast = (f for f in tensorflow() if f.section == "precision")
    assert slow.value == "slow" and slow.note == "It lacks avx512_fp16."
    assert fast.value == "not known to be slow" and not fast.note


def test_gpu_that_tensorflow_does_not_use_is_a_problem_unless_it_is_hidden():
    assert "tensorflow[and-cuda]" in problems(tensorflow(driver=True))[0]
    hidden = tensorflow(driver=True, CUDA_VISIBLE_DEVICES="-1")
    assert not problems(hidden) and "CUDA_VISIBLE_DEVICES" in by_name(hidden, "TensorFlow").note
    assert not problems(tensorflow({**GOOD, "gpus": ["GPU:0"]}, driver=True))


def test_card_that_xla_cannot_compile_for_is_a_note_that_says_what_helps():
    found = tensorflow({**GOOD, "xla": "XLA cannot compile for 12.0: install another TensorFlow"})
    assert "plain graph" in by_name(found, "XLA").value and "install" in by_name(found, "XLA").note
    assert not problems(found) and not any(f.name == "XLA" for f in tensorflow())


def test_collectives_right_sums_are_no_problem():
    assert problems(tensorflow()) == []


def test_collectives_wrong_sum_names_the_device():
    wrong = {**GOOD, "sums": [[2.0, 4.0, 6.0], [1.0, 2.0, 3.0]]}
    assert "wrong sums on device 1" in problems(tensorflow(wrong))[0]


def test_collectives_that_hang_are_a_problem():
    without = {name: value for name, value in GOOD.items() if name != "sums"}
    assert "no answer after 9 s" in problems(tensorflow(without, "no answer after 9 s"))[0]


def cluster_of(*addresses):
    config = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": 0}}
    return {"TF_CONFIG": json.dumps(config)}


def test_cluster_description_that_is_wrong_is_shown():
    findings = list(doctor.cluster({"TF_CONFIG": "{not json"}))
    assert "TF_CONFIG is not JSON" in problems(findings)[0]


def test_cluster_own_port_taken_is_a_problem_and_an_answering_peer_is_none():
    with socket.socket() as taken, socket.socket() as peer:
        for each in (taken, peer):
            each.bind(("127.0.0.1", 0))
            each.listen()
        mine, other = taken.getsockname()[1], peer.getsockname()[1]
        findings = list(doctor.cluster(cluster_of(f"127.0.0.1:{mine}", f"127.0.0.1:{other}")))
    assert "port cannot be opened" in by_name(findings, "worker 0").problem
    assert by_name(findings, "worker 1")[2:] == (f"127.0.0.1:{other}", "", "")


def test_cluster_peer_that_is_silent_is_a_note():
    with socket.socket() as own, socket.socket() as peer:
        own.bind(("127.0.0.1", 0))
        peer.bind(("127.0.0.1", 0))  # bound, but not listening: it rejects connections
        mine, other = own.getsockname()[1], peer.getsockname()[1]
        findings = list(doctor.cluster(cluster_of(f"127.0.0.1:{mine}", f"127.0.0.1:{other}")))
    silent = by_name(findings, "worker 1")
    assert silent.note.startswith("Nothing answers") and not silent.problem


def test_cluster_unknown_host_is_noted():
    findings = list(doctor.cluster(cluster_of("127.0.0.1:18333", "no-such-host.invalid:1234")))
    assert "wrong host name" in by_name(findings, "worker 1").note


def test_storage_is_written_read_listed_and_left_as_it_was(tmp_path):
    for path in (tmp_path / "new", "memory://doctor/run"):
        (found,) = doctor.storage(str(path))
        assert found == ("storage", str(path), "written, read, listed, deleted", "", "")
    assert not list((tmp_path / "new").iterdir())
    assert not list(doctor.storage(None))


def test_storage_problem_is_the_error_of_fit_without_a_password(monkeypatch):
    assert problems(doctor.storage("/proc/run"))[0].startswith("[Errno 2] ")
    assert "Make it writable" in problems(doctor.storage("/proc"))[0]
    (found,) = doctor.storage("https://me:my-key@host/run")
    assert found.name == "https://***@host/run" and "must not contain a password" in found.problem
    monkeypatch.setattr("unisono.distribute.objects.names_in", lambda _: [])
    assert "A reader does not see a write at once" in problems(doctor.storage("memory://doctor/run"))[0]


def test_text_marks_problems():
    text = doctor.as_text([Finding("a", "x", "1"), Finding("b", "y", "2", "Fix it.")])
    assert " ! b            y  2" in text and "Fix it." in text and text.endswith("marked with !: y")
    assert doctor.as_text([Finding("a", "x", "1")]).endswith("nothing is wrong")


def test_main_returns_1_for_a_problem_and_prints_json(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda seconds: [Finding("a", "x", "1", problem="No.")])
    assert doctor.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["problem"] == "No."


@pytest.mark.process
def test_examine_this_machine_reduces_over_real_devices():
    findings = list(doctor.examine(180.0))
    assert by_name(findings, "all-reduce").value.startswith("right on")
    assert {f.section for f in findings} == {
        "versions",
        "devices",
        "precision",
        "cluster",
        "programs",
        "ports",
        "collectives",
    }
