"""Programs that break without a function that is wrapped, or a name that is added; see `changes_off.py`."""

from __future__ import annotations

import json
import os
from typing import Any

import keras
import meshes
import numpy as np
import resumed_inputs
import tensorflow as tf
from changes_off import breaks
from helpers import resumed
from step_programs import X, Y, dense, fit, two

import unisono
from unisono.compat.register import WRITES_OF_PLACES
from unisono.distribute.workers.cluster import ClusterError

TWO = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
KERAS_OWN = "has no attribute 'chunks'"  # of what our functions get


def sequential(package: Any) -> Any:
    """Return a model of Keras or of ours."""
    return package.Sequential([keras.Input((3,)), dense()])


@breaks("CollectiveAllReduceExtended._initialize_strategy", says="TensorFlow's own error")
def worker_that_is_not_in_its_cluster() -> None:
    os.environ["TF_CONFIG"] = json.dumps({**TWO, "task": {"type": "worker", "index": 5}})
    try:
        tf.distribute.MultiWorkerMirroredStrategy()
    except ClusterError:
        return
    except Exception as error:
        raise AssertionError("TensorFlow's own error") from error
    raise AssertionError("no error")


def sum_of_copies(dtype: str) -> Any:
    """Return a count to which each replica adds in its own copy."""
    with two().scope():
        sequential(unisono)
        kind: Any = {"aggregation": "sum", "synchronization": "on_read", "dtype": dtype}
        return keras.Variable(3, trainable=False, **kind)


@breaks("BackendVariable._initialize")
def initial_value_of_a_sum_of_copies() -> Any:
    return [sum_of_copies("int32").numpy()], [3]


@breaks("BackendVariable._direct_assign")
def number_that_the_host_writes_into_a_sum_of_copies() -> Any:
    count = sum_of_copies("int32")
    count.assign(5)
    return [count.numpy()], [5]


@breaks("TFOptimizer.add_variable_from_reference", says="Mixing different tf.distribute.Strategy objects")
def optimizer_from_outside_the_scope() -> Any:
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    strategy = two()
    with strategy.scope():
        sequential(unisono)
        weight = keras.Variable(1.0)
        optimizer.build([weight])
        strategy.run(lambda: optimizer.apply([tf.constant(1.0)], [weight]))
    return [weight.numpy()], [0.8]


class Dropped(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.out = dense()

    def call(self, x: Any, training: bool = False) -> Any:
        return self.out(x)


@breaks("backend_with_remat.remat", says="supports keywords arguments only when eager")
def rematerialized_layer_in_a_graph() -> Any:
    found = []
    modes: Any = (unisono, "full"), (keras, None)
    for package, mode in modes:
        with keras.RematScope(mode=mode):
            model = package.Sequential([keras.Input((3,)), Dropped()])
        found.append(fit(model))
    return found


@breaks("backend_nn.dot_product_attention", says="Flash attention is not supported")
def flash_attention() -> Any:
    q = tf.random.stateless_normal((2, 4, 2, 8), (1, 2))
    return [keras.ops.dot_product_attention(q, q, q, flash_attention=each) for each in (True, False)]


@breaks("FuncRegistry.__call__", says="other bits")
def resumed_pipeline_that_draws_in_python() -> None:
    def train(*callbacks: Any) -> Any:
        resumed_inputs.fresh()
        data = resumed_inputs.numpy_in_py_function()
        model = resumed_inputs.drawing_model()
        model.fit(data, epochs=3, verbose=0, callbacks=[*callbacks])
        return [weight.tobytes() for weight in model.get_weights()]

    assert resumed(train, "backup", 14) == train(), "other bits"


def patched(name: str) -> Any:
    """Let a tool that has stored a method of `keras.Model` patch it; return what ours calls it with."""
    original, found = getattr(keras.Model, name), []

    def by_tool(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = keras.callbacks.Callback()
        begins = lambda logs=None: found.append(self.fit_state)  # noqa: E731
        watch.on_train_begin = watch.on_test_begin = watch.on_predict_begin = begins
        return original(self, *args, callbacks=[watch], **kwargs)

    setattr(keras.Model, name, by_tool)
    model = sequential(unisono)
    model.compile("sgd", "mse")
    getattr(model, name)(*(X,) if name == "predict" else (X, Y), verbose=0)
    return found


@breaks("TensorFlowTrainer.fit", says=KERAS_OWN)
def fit_that_a_tool_has_patched() -> None:
    assert patched("fit")


@breaks("TensorFlowTrainer.evaluate", says=KERAS_OWN)
def evaluation_that_a_tool_has_patched() -> None:
    assert patched("evaluate")


@breaks("TensorFlowTrainer.predict", says=KERAS_OWN)
def prediction_that_a_tool_has_patched() -> None:
    assert patched("predict")


def rejected(method: str) -> None:
    """Raise an error unless ours rejects a plain model whose weights are divided."""
    with unisono.distribute.sharded(two(), "weights").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    try:
        getattr(model, method)(*(np.ones((4, 4)), np.ones((4, 2)))[: 1 + (method != "predict")])
    except ValueError as error:
        if "The model is a plain keras.Model" in str(error):
            return
        raise
    raise AssertionError("not rejected")


@breaks("TensorFlowTrainer.make_predict_function", says="not rejected")
def plain_model_that_predicts_with_divided_weights() -> None:
    rejected("predict")


@breaks("TensorFlowTrainer._assert_compile_called", says="not rejected")
def plain_model_that_trains_divided_weights() -> None:
    rejected("evaluate")


@breaks("backend_distribution.initialize", says="has no attribute 'initialize'")
def cluster_of_keras_distribution() -> None:
    os.environ["TF_CONFIG"] = json.dumps(TWO)
    keras.distribution.initialize()


@breaks("backend_distribution.list_devices", says="AssertionError: ['cpu:0'")
def devices_of_two_workers() -> None:
    os.environ.update(TF_CONFIG=json.dumps(TWO), UNISONO_REPLICAS_PER_WORKER="1")
    keras.distribution.initialize()
    assert keras.distribution.list_devices() == ["cpu:0", "cpu:1"], keras.distribution.list_devices()


@breaks("backend_distribution.distribute_tensor", says="raises AttributeError")
def layout_of_an_output() -> Any:
    with meshes.distribution_for((2, 2), {".*up/output": ("batch", None)}).scope():
        model = unisono.Sequential([keras.Input((3,)), dense(name="up")])
        fit(model)
        found = model(X)
    fit(plain := sequential(keras))
    return [found], [plain(X)]


@breaks("cloning._clone_sequential_model", says="AssertionError: <class 'keras.")
def clone_of_a_sequential() -> None:
    clone = keras.models.clone_model(sequential(unisono))
    assert isinstance(clone, unisono.Sequential), type(clone)


def write_places(name: str) -> Any:
    """Return a program that calls a method of a variable with two copies."""

    def program() -> Any:
        places: Any = [[1]] if name != "batch_scatter_update" else tf.IndexedSlices([4.0], [1])
        arguments = (places,) if name == "batch_scatter_update" else (places, [4.0])
        with two().scope():
            variable = tf.Variable(tf.ones(3), trainable=False)
        getattr(variable, name)(*arguments)
        return [variable.numpy()], [
            {"scatter_nd_add": [1, 5, 1], "scatter_nd_sub": [1, -3, 1]}.get(name, [1, 4, 1])
        ]

    return program


for _name in WRITES_OF_PLACES:
    breaks(f"DistributedVariable.{_name}", says="NotImplementedError")(write_places(_name))
