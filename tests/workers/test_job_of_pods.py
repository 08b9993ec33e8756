"""The tutorial's script in a Job: processes with the variables of the manifest, restarted as its failure policy says.

Names of pods are not resolved here: `MASTER_ADDR` is replaced.
"""

import re
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("yaml", reason="needs PyYAML: pip install '.[docs]'")
from pods import decide, job_spec, make_pods, object_of
from workers.conftest import QUIET, ROOT

from unisono.distribute.workers.addresses import free_ports

pytestmark = [pytest.mark.process, pytest.mark.long, pytest.mark.slow]
TUTORIAL = (ROOT / "docs/tutorials/several-machines.md").read_text(encoding="utf-8")
SCRIPT = re.search(r"```python\n(# train.py\n.*?)```", TUTORIAL, re.DOTALL)[1]
KILLED = """
import os, signal
class Killed(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if os.environ["JOB_COMPLETION_INDEX"] == WHO and int(self.model.optimizer.iterations) == 25:
            if not os.path.exists("killed"):
                open("killed", "w").close()
                os.kill(os.getpid(), signal.NUMBER)
"""


class Job:
    """Runs the pods of a manifest as processes until the Job completes or fails."""

    def __init__(self, name, kind, script, folder):
        manifest = object_of(name, kind)
        self.spec = job_spec(manifest)
        self.spec["completions"] = self.spec["parallelism"] = 2
        (folder / "train.py").write_text(script)
        (port,) = free_ports(1)
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
        here["UNISONO_TIMEOUT"] = "60"
        self.env = [{**QUIET, **pod.env, **here} for pod in make_pods(manifest)]
        self.folder, self.log = folder, (folder / "log").open("w")
        self.failed, self.statuses, self.pods = 0, [], {}

    def start(self, index):
        command = [sys.executable, "-u", "train.py"]
        self.pods[index] = subprocess.Popen(
            command, env=self.env[index], cwd=self.folder, stdout=self.log, stderr=subprocess.STDOUT
        )

    def run(self):
        """The Job's end: "Complete", or the reason of its failure."""
        for index in range(2):
            self.start(index)
        try:
            while self.pods:
                time.sleep(0.05)
                for index, process in list(self.pods.items()):
                    code = process.poll()
                    if code is None:
                        continue
                    del self.pods[index]
                    status = 128 - code if code < 0 else code
                    if not status:
                        continue
                    self.statuses.append(status)
                    action = decide(self.spec, status)
                    self.failed += action == "Count"
                    if action == "FailJob":
                        return "PodFailurePolicy"
                    if self.failed > max(self.spec["backoffLimit"], 8):
                        return "BackoffLimitExceeded"
                    self.start(index)
            return "Complete"
        finally:
            for process in self.pods.values():
                process.kill()
                process.wait()
            self.log.close()

    def printed(self):
        return (self.folder / "log").read_text()


def weights_of(folder):
    import unisono

    return unisono.load_model(folder / "model.keras").get_weights()


def run_job(folder, script):
    folder.mkdir()
    job = Job("kubernetes.yaml", "Job", script, folder)
    return job, job.run()


def test_lost_and_preempted_pods_are_replaced_and_end_with_the_same_bits(tmp_path):
    job, end = run_job(tmp_path / "undisturbed", SCRIPT)
    assert (end, job.statuses) == ("Complete", []), job.printed()
    expected = weights_of(tmp_path / "undisturbed")
    cases = {
        "kill 1": ("1", "SIGKILL", {137, 75}),
        "kill 0": ("0", "SIGKILL", None),
        "term": ("1", "SIGTERM", {143}),
    }
    for name, (who, number, statuses) in cases.items():
        add = KILLED.replace("WHO", repr(who)).replace("NUMBER", number)
        script = SCRIPT.replace("random =", f"{add}\nrandom =").replace(
            '("backup")]', '("backup"), Killed()]'
        )
        assert script.count("Killed()") == 1
        began = time.monotonic()
        job, end = run_job(tmp_path / name, script)
        print(name, job.statuses, f"{time.monotonic() - began:.1f} s")
        assert end == "Complete", job.printed()
        assert statuses is None or {*job.statuses} == statuses, job.printed()
        assert 1 not in job.statuses and 2 not in job.statuses
        assert "Resuming from backup/backup-" in job.printed() and "waiting up to" not in job.printed()
        for one, other in zip(weights_of(tmp_path / name), expected):
            np.testing.assert_array_equal(one, other)


def test_a_typo_is_not_tried_again(tmp_path):
    for name, script in {
        "on all": SCRIPT.replace("epochs=5", "epoch=5"),
        "on one": SCRIPT + "\n" + "if strategy.cluster_resolver.task_id == 1: raise ValueError('mine')\n",
    }.items():
        job, end = run_job(tmp_path / name, script)
        assert end == "PodFailurePolicy", job.printed()
        assert job.statuses[-1] == 1 and len(job.statuses) <= 2, job.statuses
