"""`docs/deploy/slurm.sh` with an `srun` and a `scontrol` that only note their calls: which ends are queued again."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs/deploy/slurm.sh"
SRUN = """#!/bin/sh
for word in "$@"; do last=$word; done
[ "$last" = true ] && exit $PROBE
exit $STATUS
"""


@pytest.mark.parametrize(
    ("status", "nodes_answer", "restarts", "again"),
    [
        (0, True, 0, False),
        (143, True, 0, True),
        (1, True, 0, False),
        (1, False, 0, True),
        (143, True, 20, False),
    ],
)
def test_slurm_script_queues_a_job_again_after_143_and_a_lost_node_only(
    status, nodes_answer, restarts, again, tmp_path
):
    for name, text in (("srun", SRUN), ("scontrol", '#!/bin/sh\necho "$@" > "$NOTE"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "NOTE": str(tmp_path / "note"),
        "STATUS": str(status),
        "PROBE": "0" if nodes_answer else "1",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": "17",
        "SLURM_RESTART_COUNT": str(restarts),
    }
    done = subprocess.run(["bash", SCRIPT, "train.py"], env=env, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    note = tmp_path / "note"
    assert (note.read_text().strip() if note.exists() else "") == ("requeue 17" if again else "")
