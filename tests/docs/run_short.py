"""Runs an example with few epochs: `run_short.py EXAMPLE`. What it shows is that the program runs, not what it learns."""

import os
import runpy
import sys

import keras

keras.config.set_max_epochs(2)
program = sys.argv[1]
sys.argv, sys.path[0] = [program], os.path.dirname(program)
runpy.run_path(program, run_name="__main__")
