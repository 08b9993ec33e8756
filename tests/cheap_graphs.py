"""What TensorFlow does for users and what is a third of the cost of a test: off, but where a test is about it."""

from __future__ import annotations

import functools
import gc
import types

import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

_no_collector = types.SimpleNamespace(collect=lambda: 0)
_set_of_new_context = pywrap_tfe.TFE_ContextOptionsSetRunEagerOpAsFunction


def as_for_users(on: bool) -> None:
    """Says how TensorFlow works in this process from now on. No number depends on it.

    What users have: Grappler, which makes graphs faster (a quarter of what it costs to make one); a function for
    every kind of eager operation, made again after each `set_random_seed` (half the cost of steps that run eagerly); the
    stack of Python of every operation of a graph, which errors show (a tenth of what it costs to make a graph); a full
    collection in every `clear_session`, which looks at what all tests before have left (a third of some tests).
    """
    vars(global_state)["gc"] = gc if on else _no_collector
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not on})
    ops._create_c_op.__wrapped__.__defaults__ = (None, on)  # of op_def and extract_traceback
    pywrap_tfe.TFE_ContextOptionsSetRunEagerOpAsFunction = functools.partial(_set_functions, on)
    if context.context()._context_handle is not None:
        pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(context.context()._handle, on)


def _set_functions(on: bool, options: object, _: bool) -> None:
    _set_of_new_context(options, on)
