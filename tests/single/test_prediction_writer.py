"""`PredictionWriter` stores the results of `predict` on disk as NumPy files, completely or not at all."""

import errno
import os

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.callbacks import PredictionWriter, SaveError

ROWS = 23
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")


def make_model(strategy=None, outputs=lambda h: {"b": [h, h[:, :1] > 0], "a": h[:, :0]}, **others):
    keras.utils.set_random_seed(3)
    with helpers.scope(strategy):
        x = keras.Input((3,))
        model = unisono.Model(x, outputs(keras.layers.Dense(2, "tanh")(x)), **others)
        model.compile("sgd")
    return model


def one(h):
    return h


@pytest.mark.parametrize("kind", ["none", "mirrored2", "mirrored3"])
def test_files_hold_what_predict_returns(kind, tmp_path):
    model = make_model(helpers.strategy(kind))
    expected = model.predict(X, batch_size=5, verbose=0)
    writer = PredictionWriter(tmp_path / "new" / "outputs")
    # The second replaces the files of the first.
    for x in (X, tf.data.Dataset.from_tensor_slices(X).batch(5)):
        found = model.predict(x, batch_size=None if x is not X else 5, callbacks=[writer], verbose=0)
        keras.tree.assert_same_structure(found, expected)
        for ours, theirs in zip(keras.tree.flatten(found), keras.tree.flatten(expected)):
            assert ours.dtype == theirs.dtype and isinstance(ours, np.memmap)
            np.testing.assert_array_equal(ours, theirs)
    assert sorted(os.listdir(tmp_path / "new" / "outputs")) == ["a.npy", "b.0.npy", "b.1.npy"]
    assert os.listdir(tmp_path / "new") == ["outputs"]
    np.testing.assert_array_equal(np.load(tmp_path / "new/outputs/b.0.npy"), expected["b"][0])


def test_one_output_is_a_file_and_memory_holds_one_compiled_call(tmp_path, monkeypatch):
    model = make_model(outputs=one)
    expected, kept = model.predict(X, batch_size=4, verbose=0), []
    module = unisono.trainer.run.evaluation
    joined = module.concatenate
    monkeypatch.setattr(module, "concatenate", lambda outputs: kept.append(len(outputs)) or joined(outputs))
    writer = PredictionWriter(tmp_path / "p.npy")
    found = model.predict(X, batch_size=4, callbacks=[writer], verbose=0)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), expected)
    assert sum(kept) == 6  # each batch once, for the callbacks and for the file; not again for all batches
    assert found.flags.writeable is False
    of_one_row = model.predict(X[:1], callbacks=[writer], verbose=0)
    np.testing.assert_array_equal(of_one_row, expected[:1])
    plain = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(TypeError, match=r"call `unisono\.adopt\(model\)` first"):
        plain.predict(X, callbacks=[writer], verbose=0)


def test_numbers_that_numpy_has_not_are_widened(tmp_path):
    model = make_model(outputs=lambda h: keras.ops.cast(h, "bfloat16"))
    found = model.predict(X, callbacks=[PredictionWriter(tmp_path / "p.npy")], verbose=0)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, model.predict(X, verbose=0).astype("float32"))


def test_failed_predict_leaves_the_old_files_and_nothing_else(tmp_path, monkeypatch):
    model = make_model()
    writer = PredictionWriter(tmp_path / "p")
    model.predict(X, callbacks=[writer], verbose=0)
    before = (tmp_path / "p" / "b.0.npy").read_bytes()

    class Full(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            if batch == 1:
                raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        model.predict(X + 1, batch_size=4, callbacks=[writer, Full()], verbose=0)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("write", "fsync"):  # at a batch, and at the end
        with monkeypatch.context() as patch, pytest.raises(SaveError, match="earlier files are unchanged"):
            if name == "fsync":
                patch.setattr(os, "fsync", full)
            else:
                patch.setattr("unisono.callbacks.saving.prediction_writer._ArrayFile.append", full)
            model.predict(X + 1, callbacks=[writer], verbose=0)
    assert os.listdir(tmp_path) == ["p"] and (tmp_path / "p" / "b.0.npy").read_bytes() == before


def test_outputs_and_places_that_cannot_be_written_are_rejected(tmp_path):
    several = make_model()
    with pytest.raises(ValueError, match=r"`path` .* has 3 outputs: pass a folder.*p\.npy"):
        several.predict(X, callbacks=[PredictionWriter(tmp_path / "p.npy")], verbose=0)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    with pytest.raises(ValueError, match=r"`path` .* contains notes\.txt.*pass a separate folder"):
        several.predict(X, callbacks=[PredictionWriter(tmp_path / "mine")], verbose=0)
    with pytest.raises(SaveError, match=r"`path` of `PredictionWriter` cannot be created, .* is a file"):
        several.predict(X, callbacks=[PredictionWriter(tmp_path / "mine/notes.txt/p")], verbose=0)

    class Rows(unisono.Sequential):
        def predict_step(self, data):
            return tf.RaggedTensor.from_tensor(data)

    class Text(unisono.Sequential):
        def predict_step(self, data):
            return tf.strings.as_string(data)

    class Wider(unisono.Sequential):
        def predict_step(self, data):
            return tf.zeros([tf.shape(data)[0], tf.shape(data)[0]])

    for kind, size, message in (
        (Rows, 23, "is a RaggedTensor.*to_tensor"),
        (Text, 23, "is text"),
        (Wider, 5, r"after samples \[5\] of float32 the model returned \[3\]"),
    ):
        model = kind([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(steps_per_execution=1)
        with pytest.raises((TypeError, ValueError), match=message):
            model.predict(X, batch_size=size, callbacks=[PredictionWriter(tmp_path / "q.npy")], verbose=0)
    assert sorted(os.listdir(tmp_path)) == ["mine"] and not several.stop_training


def test_any_callback_may_take_the_outputs_of_predict():
    class Mean(keras.callbacks.Callback):
        total = samples = 0

        def take_outputs(self, outputs):
            self.total += np.asarray(outputs).sum(axis=0)
            self.samples += len(outputs)

        def outputs(self):
            return self.total / self.samples

    model = make_model(outputs=one)
    expected = model.predict(X, batch_size=4, verbose=0).mean(axis=0)
    np.testing.assert_allclose(
        model.predict(X, batch_size=4, callbacks=[Mean()], verbose=0), expected, rtol=1e-6
    )
