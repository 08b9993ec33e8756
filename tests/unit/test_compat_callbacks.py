"""The attributes of Keras' callbacks that backups hold."""

import keras
import pytest

from unisono.compat.keras_private.callbacks import CALLBACK_ATTRIBUTES


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
