"""What is known of Keras' losses and callbacks, and the state of a thread that computes for another."""

import random

import keras
import pytest
from helpers import in_threads
from keras.src.backend.common import global_state

from unisono.compat.keras_private.callbacks import CALLBACK_ATTRIBUTES
from unisono.compat.keras_private.seed_generators import global_seed_generator_state, thread_state
from unisono.trainer.step import global_loss as exact_loss


def test_no_reduction_is_unknown_to_us():
    with pytest.raises(ValueError, match="reduction") as caught:
        keras.losses.MeanSquaredError(reduction="mystery")
    known = {"sum_over_batch_size", "sum", "None", "none", "mean", "mean_with_sample_weight"}
    named = set(str(caught.value).split("{")[1].split("}")[0].replace("'", "").replace('"', "").split(", "))
    assert named <= known


def test_stock_losses_that_work_on_samples_are_found():
    losses = keras.losses
    for loss in (losses.MeanSquaredError, losses.SparseCategoricalCrossentropy, losses.Huber):
        assert exact_loss.works_on_samples(loss())
    for loss in (losses.Dice, losses.Circle):
        assert not exact_loss.works_on_samples(loss())
    assert len(exact_loss._ROWWISE_FUNCTIONS) == len(exact_loss._ROWWISE_NAMES.split())


def test_thread_state_carries_the_seed_generator_and_the_policy():
    keras.utils.set_random_seed(5)
    before = random.getstate()
    state = thread_state()
    assert random.getstate() == before, "reading the state drew a random number"
    seen = []

    def other():
        state.enter()
        seen.append(global_seed_generator_state(make=True))

    with in_threads(other):
        pass
    assert seen == [global_seed_generator_state(make=True)]
    assert {"stateless_scope", "name_scope_stack"} & set(vars(global_state.GLOBAL_STATE_TRACKER))


@pytest.mark.parametrize("name", sorted(CALLBACK_ATTRIBUTES))
def test_attributes_of_keras_callbacks_exist_when_training_begins(name):
    make = {
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint("a.keras"),
        "TensorBoard": lambda: keras.callbacks.TensorBoard("nowhere"),
    }
    if name == "OrbaxCheckpoint":
        source = keras.callbacks.OrbaxCheckpoint.__init__.__code__.co_names
        assert set(CALLBACK_ATTRIBUTES[name]) <= {*source, "best"}
        return
    callback = make.get(name, getattr(keras.callbacks, name))()
    if name in ("EarlyStopping", "ReduceLROnPlateau", "History"):
        callback.on_train_begin()
    missing = [a for a in CALLBACK_ATTRIBUTES[name] if not hasattr(callback, a)]
    assert not missing
