"""`python -m unisono doctor` reports each possible problem in one sentence."""

import json
import socket

import pytest

from unisono.commands import doctor as command
from unisono.commands.machine import findings as doctor
from unisono.commands.machine.findings import Finding

GOOD = [
    {
        **{"gpus": [], "tpus": 0, "built_with_cuda": False},
        "slow": {"float16": "It lacks avx512_fp16.", "bfloat16": None},
        "instructions": {"float16": [], "bfloat16": ["avx512_bf16"]},
    },
    {
        **{"names": ["CPU:0", "CPU:1"], "answers": [[2.0, 4.0], [2.0, 4.0]], "expected": [2.0, 4.0]},
        "milliseconds": 1.5,
    },
]


def problems(findings):
    return [f.problem for f in findings if f.problem]


def by_name(findings, name):
    return next(f for f in findings if f.name == name)


def test_versions_new_enough_are_no_problem():
    findings = list(doctor.versions({}, ["numpy<99,>=1.0"]))
    assert by_name(findings, "numpy").value and not by_name(findings, "numpy").problem


def test_versions_too_old_or_missing_say_what_to_install():
    findings = list(doctor.versions({}, ["numpy<1000,>=999.0", "no-such-package-here>=1.0"]))
    assert problems(findings) == [
        "Upgrade it: pip install 'numpy>=999.0'.",
        "Install it: pip install no-such-package-here.",
    ]


def test_versions_of_two_digits_compare_as_numbers():
    assert doctor._numbers("2.9.1") < doctor._numbers("2.21.0rc1")


@pytest.mark.parametrize("by", ["environment", "file"])
def test_backend_other_than_tensorflow_is_a_problem(by, tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    environ = {"KERAS_BACKEND": "jax"} if by == "environment" else {"KERAS_HOME": str(tmp_path)}
    found = by_name(doctor.versions(environ, []), "Keras backend")
    assert found.value == "jax" and "KERAS_BACKEND=tensorflow" in found.problem


def test_legacy_keras_is_a_problem():
    assert "unset TF_USE_LEGACY_KERAS" in problems(doctor.versions({"TF_USE_LEGACY_KERAS": "1"}, []))[0]


def test_probe_that_does_not_start_is_the_problem_of_the_devices():
    findings = doctor.devices([], "ImportError: no libfoo", {})
    assert problems(findings) == ["TensorFlow does not start: ImportError: no libfoo."]
    assert list(doctor.collectives([], "x")) == []


def test_probe_that_takes_too_long_ends_within_its_bound():
    lines, failure = doctor.run_probe({"PATH": ""}, 0.01)
    assert lines == [] and failure == "no answer after 0 s"


def test_precision_names_the_instructions_or_why_it_is_slow():
    slow, fast = doctor.precision(GOOD)
    assert slow.value == "no faster than float32" and slow.note == "It lacks avx512_fp16."
    assert fast.value == "fast: avx512_bf16" and not fast.problem


def test_collectives_right_sums_are_no_problem():
    assert problems(doctor.collectives(GOOD, "")) == []


def test_collectives_wrong_sum_names_the_device():
    wrong = {**GOOD[1], "answers": [[2.0, 4.0], [1.0, 2.0]]}
    assert "wrong sums on CPU:1" in problems(doctor.collectives([GOOD[0], wrong], ""))[0]


def test_collectives_that_hang_are_a_problem():
    assert "no answer after 9 s" in problems(doctor.collectives(GOOD[:1], "no answer after 9 s"))[0]


def cluster_of(*addresses):
    config = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": 0}}
    return {"TF_CONFIG": json.dumps(config)}


def test_cluster_description_that_is_wrong_is_shown():
    findings = doctor.cluster({"TF_CONFIG": "{not json"})
    assert "TF_CONFIG is not JSON" in problems(findings)[0]


def test_cluster_own_port_taken_is_a_problem_and_an_answering_peer_is_none():
    with socket.socket() as taken, socket.socket() as peer:
        for each in (taken, peer):
            each.bind(("127.0.0.1", 0))
            each.listen()
        mine, other = taken.getsockname()[1], peer.getsockname()[1]
        findings = doctor.cluster(cluster_of(f"127.0.0.1:{mine}", f"127.0.0.1:{other}"))
    assert [p.split(" (")[0] for p in problems(findings)] == [f"Port {mine} cannot be opened"]
    assert by_name(findings, "worker 1").value == f"127.0.0.1:{other} answers"


def test_cluster_peer_that_is_silent_is_a_note():
    with socket.socket() as own, socket.socket() as peer:
        own.bind(("127.0.0.1", 0))
        peer.bind(("127.0.0.1", 0))  # bound, but not listening: it rejects connections
        mine, other = own.getsockname()[1], peer.getsockname()[1]
        findings = doctor.cluster(cluster_of(f"127.0.0.1:{mine}", f"127.0.0.1:{other}"))
    silent = by_name(findings, "worker 1")
    assert silent.note.startswith("Nothing answers there yet") and not silent.problem


def test_cluster_unknown_host_is_a_problem():
    findings = doctor.cluster(cluster_of("127.0.0.1:18333", "no-such-host.invalid:1234"))
    assert any("'no-such-host.invalid' of worker 1 is not known" in p for p in problems(findings))


def test_ports_can_be_opened_here():
    assert problems(doctor.ports()) == []


def test_text_marks_problems_and_counts_them():
    text = command.as_text([Finding("a", "x", "1"), Finding("b", "y", "2", problem="Fix it.")])
    assert " ! y  2" in text and "Fix it." in text and "1 problem, marked with !" in text
    assert text.endswith("next: fix `y` (b) as the line below it says, then run this again")


def test_text_without_problems_says_how_to_begin():
    text = command.as_text([Finding("a", "x", "1")])
    assert "nothing is wrong" in text and "auto_strategy()" in text.splitlines()[-1]


def test_main_returns_1_for_a_problem_and_prints_json(monkeypatch, capsys):
    monkeypatch.setattr(command, "examine", lambda probe_seconds: [Finding("a", "x", "1", problem="No.")])
    assert command.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["problem"] == "No."


@pytest.mark.process
def test_examine_this_machine_reduces_over_real_devices():
    findings = doctor.examine()
    assert by_name(findings, "all-reduce").value.startswith(("right on", "one device"))
    sections = {"versions", "devices", "precision", "cluster", "ports", "machine"}
    assert {f.section for f in findings} >= sections
