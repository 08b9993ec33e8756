"""Benchmarks; each compares Unisono with its peers in the same run. `python -m benchmarks` compares training speed."""

import os

os.environ.setdefault(
    "UNISONO_CACHE", ""
)  # first steps are measured as on a machine that has compiled nothing yet
