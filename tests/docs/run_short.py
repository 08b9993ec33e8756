"""Runs an example with few epochs: `run_short.py EXAMPLE`. Tests that the program runs, not that the model learns."""

import os
import runpy
import sys

import keras

keras.config.set_max_epochs(2)
program = sys.argv[1]
sys.argv, sys.path[0] = [program], os.path.dirname(program)
runpy.run_path(program, run_name="__main__")
