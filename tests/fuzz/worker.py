"""`python -m tests.fuzz.worker CASE FILE`: one of several workers; writes the results of a case into a file."""

from __future__ import annotations

import sys

import numpy as np

import unisono

from .case import read
from .run import run

if __name__ == "__main__":
    np.savez(sys.argv[2], **run(read(sys.argv[1]), unisono, unisono.distribute.auto_strategy()).shown)
