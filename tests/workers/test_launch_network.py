"""The network of launched processes: that of the machine, or a private one; and who listens in it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

PROGRAMS = Path(__file__).parent / "programs"
LOOK = PROGRAMS / "look_around.py"


def test_private_network_has_loopback_alone(launch):
    enter = "from unisono.distribute.launcher.network import enter_private_network as enter; enter()"
    if subprocess.run([sys.executable, "-c", enter], capture_output=True).returncode:
        pytest.skip("this kernel allows no network namespaces")
    process = launch("--workers", 2, "--network", "private", LOOK)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("interfaces ['lo']") == 2 and "answer well met" in out
    assert "[launch]" not in err


def test_network_of_the_machine_is_the_default_and_the_launcher_says_what_that_means(launch):
    process = launch("--workers", 2, LOOK)
    out, err = process.communicate()
    assert process.returncode == 0 and "answer well met" in out, err
    [line] = [line for line in err.splitlines() if line.startswith("[launch]")]
    assert "can run code as you" in line and "--network private" in line
    process = launch(LOOK)  # no servers
    process.communicate()
    assert process.returncode == 0


def test_on_one_machine_nothing_but_tensorflow_listens_beyond_loopback(start_workers):
    """Start of the cluster, fit, backups, report, records: TensorFlow's server is alone at its port."""
    run = start_workers("listeners", count=2)
    run.succeed()
    for index in range(2):
        found, port = run.printed(index).split("listeners ")[1].splitlines()[0].split(" of ")
        assert f"127.0.0.1:{port}" in found, "the rendezvous was seen"
        assert {each for each in found.split(",") if not each.startswith("127.0.0.1:")} == {f"[::]:{port}"}
