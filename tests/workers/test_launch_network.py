"""The network of launched processes: by default unreachable from outside, which the launcher reports."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LOOK = Path(__file__).parent / "programs" / "look_around.py"


@pytest.fixture(scope="module", autouse=True)
def namespaces():
    enter = "from unisono.distribute.launcher.network import enter_private_network as enter; enter()"
    if subprocess.run([sys.executable, "-c", enter], capture_output=True).returncode:
        pytest.skip("this kernel allows no network namespaces")


def test_workers_are_among_themselves_and_the_launcher_says_how_to_change_that(launch):
    process = launch("--workers", 2, LOOK)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("interfaces ['lo']") == 2 and "answer well met" in out
    assert "nothing outside can reach them" in err and "--network host" in err
    process = launch("--workers", 2, LOOK, "outside")
    _, err = process.communicate()
    assert process.returncode == 1
    assert err.rstrip().splitlines()[-1].endswith("from the private network: use --network host"), err


def test_workers_share_the_network_of_the_machine_if_asked(launch):
    process = launch("--workers", 2, "--network", "host", LOOK)
    out, err = process.communicate()
    assert process.returncode == 0 and "answer well met" in out, err
    assert "[launch]" not in err
