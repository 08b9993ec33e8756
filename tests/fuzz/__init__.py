"""A seeded differential tester: it draws programs and compares replicas, one device and plain Keras.

    seed -> draw.py: a case (case.py, rules.py) -> run.py: a program (parts/) and its results -> check.py -> shrink.py

A case is a plain specification that can be printed and run again; see `python -m tests.fuzz --help`.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault(
    "UNISONO_CACHE", ""
)  # what is drawn compiles anew, and leaves nothing in the user's folder

HELPERS = str(Path(__file__).resolve().parents[1] / "helpers")
if HELPERS not in sys.path:  # pytest's `pythonpath` has it
    sys.path.append(HELPERS)
from children import import_tested_tree  # noqa: E402

import_tested_tree()  # also for the workers that the tester starts
