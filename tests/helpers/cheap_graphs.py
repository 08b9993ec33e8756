"""Turns off TensorFlow features that cost a third of a test's time, except in tests that are about them."""

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
    """Sets how TensorFlow works in this process from now on. No numeric result depends on it.

    The defaults for users are: Grappler, which optimizes graphs (a quarter of the cost of building one); one function for
    every kind of eager operation, rebuilt after each `set_random_seed` (half the cost of eager steps); the Python stack of
    every operation of a graph, for error messages (a tenth of the cost of building a graph); a full garbage
    collection in every `clear_session`, which visits the objects of all earlier tests (a third of some tests).
    """
    vars(global_state)["gc"] = gc if on else _no_collector
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": not on})
    ops._create_c_op.__wrapped__.__defaults__ = (None, on)  # the defaults of op_def and extract_traceback
    pywrap_tfe.TFE_ContextOptionsSetRunEagerOpAsFunction = functools.partial(_set_functions, on)
    if context.context()._context_handle is not None:
        pywrap_tfe.TFE_ContextSetRunEagerOpAsFunction(context.context()._handle, on)


def _set_functions(on: bool, options: object, _: bool) -> None:
    _set_of_new_context(options, on)
