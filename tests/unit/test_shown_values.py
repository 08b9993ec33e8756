"""Values in messages: no object dump, shapes and specs as "(batch, 4) float32"."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.distribute.arguments import show


def test_values_are_shown_as_a_person_reads_them():
    spec = tf.TensorSpec([None, 4])
    ragged = tf.RaggedTensorSpec([None, None], tf.string)
    seen = {
        "(batch, 4) float32": (spec, keras.Input((4,))),
        "(batch,) string": (tf.TensorSpec([None], tf.string),),
        "(batch, ?) string": (ragged,),
        "(...) int32": (tf.TensorSpec(None, tf.int32),),
        "() float32": (tf.TensorSpec([]),),
        "(8, 4) float64": (
            np.ones((8, 4)),
            tf.Variable(np.ones((8, 4))),
            keras.Variable(np.ones((8, 4)), dtype="float64"),
        ),
        "((batch, 4) float32,)": ((spec,),),
        "{'a': [(batch, 4) float32, None]}": ({"a": [spec, None]},),
        "array([1, 2])": (np.array([1, 2]),),
        "np.float32(0.5)": (np.float32(0.5),),
        "<function print_nothing>": (print_nothing,),
        "MeanSquaredError": (keras.losses.MeanSquaredError(),),
    }
    for text, values in seen.items():
        assert [show(value) for value in values] == [text] * len(values)


def print_nothing():
    pass


@pytest.mark.parametrize("names", [["cat", "dog"], [["cat"], ["dog"]]])
def test_labels_that_are_strings_are_shown_without_a_dump(names):
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(ValueError, match="`y` contains strings") as caught:
        model.fit(np.ones((2, 3), "float32"), np.array(names), verbose=0)
    text = str(caught.value)
    assert "loss=SparseCategoricalCrossentropy takes" in text
    assert text.endswith(
        "Received: (batch,) string" if np.ndim(names) == 1 else "Received: (batch, 1) string"
    )
    assert not re.search("0x|TensorSpec|tf[.]", text)
