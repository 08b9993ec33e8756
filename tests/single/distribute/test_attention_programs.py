"""Models with attention of every kind train as with plain Keras, with blocks and without them, on one device and several."""

import attention_programs as programs
import keras
import pytest
from attention_decoder import compute_in_blocks  # noqa: F401  (a fixture)
from helpers import FLOAT64, assert_close, scope
from helpers import strategy as strategy_named

import unisono

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings(
        "ignore:.*destroy the mask information"
    ),  # of `GroupQueryAttention`, in Keras too
]


def trained(name, kind=unisono.Model, strategy=None, **options):
    """Losses and variables of a short fit, whose last batch has one sample."""
    with scope(strategy):
        model = programs.build(name, kind)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", jit_compile=False, **options)
    x, y = programs.inputs_of(name), programs.Y
    history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0).history
    return [history["loss"], [v.numpy() for v in model.variables if v.dtype.startswith("float")]]


@pytest.fixture(scope="module")
def expected():
    """What Keras computes, once for each program."""
    found = {}

    def of(name):
        if name not in found:
            found[name] = trained(name, keras.Model, run_eagerly=True)
        return found[name]

    return of


@pytest.mark.long
@pytest.mark.parametrize("where", ["none", "mirrored2", "mirrored3"])
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_program_in_blocks_equals_keras(name, where, expected, in_blocks):
    if name == "multi-head, dropout" and where != "none":
        pytest.skip("replicas draw masks of their own")
    assert_close(trained(name, strategy=strategy_named(where)), expected(name), FLOAT64, name)
    assert bool(in_blocks) == (name in programs.BLOCKS)


@pytest.mark.short("own, a bias")
@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_program_without_blocks_equals_keras(name, expected):
    assert_close(trained(name), expected(name), FLOAT64, name)
