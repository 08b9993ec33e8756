"""The optimizer signatures for type checkers (`optimizers/signatures.pyi`) match the installed Keras."""

import ast
import inspect
import pathlib

import keras
import pytest

from unisono import optimizers

STUB = ast.parse(pathlib.Path(optimizers.__file__).with_name("signatures.pyi").read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
OPTIONS = ("_Clipping", "_Options")
SHARED = [field.target.id for name in OPTIONS for field in CLASSES[name].body]
OPTIMIZERS = [name for name in CLASSES if name not in OPTIONS]


def arguments_in_stub(name):
    """name -> default of the arguments that the stub lists for a class, in order."""
    arguments = CLASSES[name].body[0].args
    positional = dict(zip([a.arg for a in arguments.args[1:]], arguments.defaults, strict=True))
    return positional | dict(zip([a.arg for a in arguments.kwonlyargs], arguments.kw_defaults, strict=True))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_signature_of_an_optimizer_is_that_of_keras(name):
    own = {argument: ast.literal_eval(default) for argument, default in arguments_in_stub(name).items()}
    keras_parameters = inspect.signature(getattr(keras.optimizers, name)).parameters
    listed = {argument: p.default for argument, p in keras_parameters.items() if argument in own}
    assert list(own.items()) == list(listed.items())
    assert set(keras_parameters) - set(own) - {"kwargs"} <= set(SHARED)


def test_every_optimizer_of_the_package_has_a_signature():
    made = {name for name, value in vars(keras.optimizers).items() if inspect.isclass(value)}
    by_hand = {"LossScaleOptimizer", "MultiOptimizer", "Optimizer", "OptimizerMap"}
    assert set(OPTIMIZERS) == made - by_hand
    for name in ("gradient_transformers", "gradient_aggregator"):
        assert name in SHARED and hasattr(optimizers.Adam(), name)
