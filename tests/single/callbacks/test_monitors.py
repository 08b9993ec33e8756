"""A monitor that no log can have is an error before the first step."""

import keras
import numpy as np
import pytest

import unisono

X = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
Y = X[:, :1]


def fit(*callbacks, validates=True, model_class=unisono.Sequential, **options):
    keras.utils.set_random_seed(1)
    model = model_class([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    data = {"validation_data": (X, Y)} if validates else {}
    model.fit(X, Y, epochs=2, verbose=0, callbacks=list(callbacks), **data, **options)
    return model


class Tracker(keras.callbacks.Callback):
    """As the callbacks of wandb: hooks of batches alone."""

    def on_train_batch_end(self, batch, logs=None):
        pass


class AddsScore(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = float(epoch)


MISSPELT = {
    "EarlyStopping": lambda path: keras.callbacks.EarlyStopping(monitor="val_los"),
    "ReduceLROnPlateau": lambda path: keras.callbacks.ReduceLROnPlateau(monitor="val_los"),
    "Keras' ModelCheckpoint": lambda path: keras.callbacks.ModelCheckpoint(
        path / "a.keras", monitor="val_los", save_best_only=True
    ),
    "ModelCheckpoint": lambda path: unisono.callbacks.ModelCheckpoint(
        path / "{epoch}.keras", monitor="val_los", keep_best=1
    ),
}


@pytest.mark.parametrize("kind", MISSPELT)
@pytest.mark.parametrize("before", [[], [Tracker()]], ids=["alone", "after a tracker"])
def test_misspelt_monitor_is_an_error_before_the_first_step(tmp_path, kind, before):
    steps = []
    counting = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    with pytest.raises(ValueError, match=r"`monitor='val_los'` of .* did you mean 'val_loss'\?.*val_mae"):
        fit(*before, MISSPELT[kind](tmp_path), counting)
    assert not steps


def test_monitor_of_a_validation_that_the_fit_has_not_says_so():
    with pytest.raises(ValueError, match="pass `validation_data`"):
        fit(keras.callbacks.EarlyStopping(), validates=False)


@pytest.mark.long
@pytest.mark.parametrize("monitor", ["loss", "mae", "val_mae", "learning_rate"])
def test_right_monitors_are_accepted(tmp_path, monitor):
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss")
    found = fit(plateau, keras.callbacks.EarlyStopping(monitor=monitor, mode="min"))
    assert monitor in found.history.history
    # "val_loss" is not read
    fit(unisono.callbacks.ModelCheckpoint(tmp_path / "{epoch}.keras"), validates=False)
    assert (tmp_path / "1.keras").exists()


@pytest.mark.parametrize(
    "added", [AddsScore, lambda: keras.callbacks.LambdaCallback(on_epoch_end=AddsScore().on_epoch_end)]
)
def test_log_that_an_earlier_callback_adds_may_be_monitored(added):
    model = fit(added(), keras.callbacks.EarlyStopping(monitor="score", mode="max"))
    assert model.history.history["score"] == [0.0, 1.0]


def test_callback_and_model_of_the_users_may_have_logs_of_their_own():
    class Own(keras.callbacks.EarlyStopping):
        def get_monitor_value(self, logs):
            return 1.0

    class WithLog(unisono.Sequential):
        def get_metrics_result(self):
            return {**super().get_metrics_result(), "score": 1.0}

    assert len(fit(Own(monitor="nothing", mode="max")).history.epoch) == 2
    scored = fit(keras.callbacks.EarlyStopping(monitor="score", mode="max"), model_class=WithLog)
    assert scored.history.history["score"] == [1.0, 1.0]
