"""`compile` and `make_train_function` in a callback, and versions of it that a user writes."""

import helpers
import keras
import numpy as np
import pytest

import unisono

X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")


def unfreeze_in(hook, makes=True):
    """A callback that trains the first layer too, from a hook on."""

    def unfreeze(self, *_, **__):
        if not self.model.layers[0].trainable:
            self.model.layers[0].trainable = True
            self.model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], jit_compile=False)
            if makes:
                self.model.make_train_function()

    return type("Unfreeze", (keras.callbacks.Callback,), {hook: unfreeze})()


def unfrozen(cls, callback, name="none"):
    keras.utils.set_random_seed(1)
    with helpers.scope(helpers.strategy(name)):
        model = cls.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
        model.layers[0].trainable = False
        model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    data = (X, X[:, 1:2])
    history = model.fit(
        X, X[:, :1], 4, 2, 0, [callback], shuffle=False, validation_data=data
    ).history  # batches of 4, 4 and 2
    return [history[name] for name in sorted(history)], model.get_weights()


HOOKS = ["on_train_begin", "on_epoch_begin", "on_train_batch_end", "on_test_end", "on_epoch_end"]


@pytest.mark.long
@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("name", ["none", "mirrored2", "mirrored3"])
def test_compile_in_a_callback_trains_on_as_keras_does(name, hook):
    ours, plain = unfrozen(unisono, unfreeze_in(hook), name), unfrozen(keras, unfreeze_in(hook))
    helpers.assert_close(ours, plain, helpers.FLOAT32)


@pytest.mark.long
def test_compile_in_a_callback_makes_the_steps_by_itself():
    ours, plain = (
        unfrozen(unisono, unfreeze_in("on_epoch_end", makes=False)),
        unfrozen(keras, unfreeze_in("on_epoch_end")),
    )
    helpers.assert_close(ours, plain, helpers.FLOAT32)


@pytest.mark.parametrize("name", ["none", "mirrored2"])
@pytest.mark.parametrize("phase", ["train", "test", "predict"])
def test_a_function_that_a_user_makes_is_refused_before_the_first_step(phase, name):
    def make(self, force=False):
        setattr(self, f"{phase}_function", lambda iterator: getattr(self, f"{phase}_step")(next(iterator)))

    cls = type("Own", (unisono.Sequential,), {f"make_{phase}_function": make})
    with helpers.scope(helpers.strategy(name)):
        model = cls([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    calls = {"train": [model.fit, model.train_on_batch], "test": [model.evaluate, model.test_on_batch]}
    for call in calls.get(phase, [model.predict, model.predict_on_batch]):
        data = (X,) if phase == "predict" else (X, X[:, :1])
        with pytest.raises(ValueError, match=f"`make_{phase}_function` of Own .* override `{phase}_step`"):
            call(*data)


def test_a_users_version_may_keep_what_ours_makes():
    class Counting(unisono.Sequential):
        made = 0

        def make_train_function(self, force=False):
            self.made += 1
            return super().make_train_function(force)

    model = Counting([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], verbose=0)
    assert model.made
