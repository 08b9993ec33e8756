"""The content that `BackupAndRestore` would write into a backup, built without a model."""

import random

import numpy as np

SUMMARY = {"epoch": 1, "step": 2, "total_steps": 5, "run": "1"}


def python_state():
    version, words, gauss = random.Random(1).getstate()
    return {"version": version, "words": np.asarray(words, np.uint32), "gauss": gauss}


def backup_content(**extra):
    """The content of a small backup: the required keys and `extra`."""
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    return {
        "fingerprint": {
            "variables": {
                "model": [["dense/kernel", [2, 3], "float32"]],
                "optimizer": [],
                "metrics": [["total", [], "float32"]],
                "other": [],
            },
            "data": {"rows": 10, "batch_rows": 4, "steps_per_epoch": None, "layout": ["float32(2,)"]},
            "identity": {
                "settings": {"optimizer": {"class": "Adam", "beta_1": 0.9}},
                "seeds": {},
                "data": {"content": "1", "pipeline": None},
                "validation data": None,
                "versions": {"keras": "3", "python": "3.11"},
            },
        },
        "calendar": {
            "epoch": 1,
            "step": 2,
            "in_validation": False,
            "step_logs": {"loss": float("nan")},
            "epoch_logs": {},
            "stop_training": False,
        },
        "variables": {
            "model": [weights],
            "optimizer": [],
            "metrics": [{"copies": [np.ones((), np.float32), np.zeros((), np.float32)]}],
            "other": [],
        },
        "workers": [
            {
                "random": {"python": python_state(), "numpy": np.random.RandomState(1).get_state()},
                "source": {"epoch": 1, "step": 2, "iterator": b"abc"},
            }
        ],
        "callbacks": [{"name": "Mine", "purpose": {}, "state": {"seen": [1, (2, None)], "$odd": {3: b"x"}}}],
        "counters": {"steps_before_epoch": 3},
        **extra,
    }
