"""Copies of Unisono's models and optimizers stay Unisono's, whatever copies them, and continue bit for bit."""

import copy
import pickle

import joblib
import keras
import numpy as np
import pytest
from helpers import FLOAT32, assert_close, assert_equal, mirrored, train
from sklearn.base import clone

import unisono

X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
Y = X[:, :1]


@keras.saving.register_keras_serializable("test_copies")
class Subclassed(unisono.Model):
    def __init__(self, units=3, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.hidden, self.last = keras.layers.Dense(units, "tanh"), keras.layers.Dense(1)

    def call(self, x):
        return self.last(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def layers():
    return [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]


def functional():
    inputs, hidden, last = layers()
    return unisono.Model(inputs, last(hidden(inputs)))


MODELS = {
    "sequential": lambda: unisono.Sequential(layers()),
    "functional": functional,
    "subclassed": Subclassed,
    "adopted": lambda: unisono.adopt(keras.Sequential(layers())),
}


def trained(kind, replicas=2):
    def adam():
        clip = unisono.optimizers.ClipByGlobalNorm(0.5)
        return unisono.optimizers.Adam(0.1, gradient_transformers=[clip])

    compiled, batches = {"optimizer": adam, "metrics": ["mae"]}, {"batch_size": 5, "epochs": 1}
    return train(MODELS[kind], (X, Y), mirrored(replicas), batches, **compiled)[0]


def fit(model):
    model.fit(X, Y, batch_size=5, shuffle=False, verbose=0)
    return model.get_weights()


def by_joblib(model, folder):
    joblib.dump(model, folder / "model.joblib")
    return joblib.load(folder / "model.joblib")


def by_file(model, folder):
    model.save(folder / "model.keras")
    return unisono.load_model(folder / "model.keras")


COPIES = {
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, folder: copy.deepcopy(model),
    "copy": lambda model, folder: copy.copy(model),
    "joblib": by_joblib,
    "file": by_file,
}
CLONES = {
    "json": lambda model: unisono.models.model_from_json(model.to_json()),
    "clone": unisono.clone_model,
    "clone by Keras": keras.models.clone_model,
    "configuration": lambda model: type(model).from_config(model.get_config()),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", MODELS)
def test_copies_are_ours_and_train_on_with_the_bits_of_the_original(kind, tmp_path):
    model = trained(kind)
    copies = {how: make(model, tmp_path) for how, make in COPIES.items()}
    weights, expected = model.get_weights(), None
    for how, copied in copies.items():
        assert isinstance(copied, unisono.Model) and type(copied).__name__ == type(model).__name__, how
        assert type(copied.optimizer) is type(model.optimizer), how
        assert copied.optimizer.gradient_transformers, how
        assert copied._auto_jit and copied._auto_steps, how
        assert_equal(copied.get_weights(), weights, how)
        if how not in ("deepcopy", "file"):
            continue
        after = fit(copied)
        assert_equal(after, expected or after, how)
        expected = expected or after
    assert_close(fit(model), expected, FLOAT32)  # two replicas; the copies have one


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.short("adopted")
def test_clones_are_ours(kind):
    model = trained(kind, replicas=1)
    for how, make in CLONES.items():
        cloned = make(model)
        assert isinstance(cloned, unisono.Model) and type(cloned).__name__ == type(model).__name__, how
        if how != "configuration":  # as in Keras, it has no compile arguments
            assert type(cloned.optimizer) is type(model.optimizer), how
            assert cloned.optimizer.gradient_transformers and cloned._auto_jit, how
            cloned.run_eagerly = True
            fit(cloned)


def test_clones_of_plain_keras_stay_plain():
    plain = keras.Sequential(layers())
    plain.compile("adam", "mse")
    cloned = keras.models.clone_model(plain)
    assert type(cloned) is keras.Sequential and type(cloned.optimizer) is keras.optimizers.Adam
    inputs = keras.Input((1,))
    read = keras.models.model_from_json(functional().to_json())
    assert type(read) is type(keras.Model(inputs, inputs))


@pytest.mark.parametrize("kind", ["sequential", "functional", "adopted"])
def test_types_are_printed_as_ours(kind):
    assert repr(type(MODELS[kind]())).startswith("<class 'unisono.")


def test_saved_configuration_under_our_name_gives_our_optimizer():
    optimizer = unisono.optimizers.Adam(0.1, gradient_transformers=[unisono.optimizers.ClipByValue(1.0)])
    config = keras.optimizers.serialize(optimizer)
    for read in (keras.optimizers.deserialize, keras.optimizers.get, keras.saving.deserialize_keras_object):
        read_back = read(copy.deepcopy(config))
        assert isinstance(read_back, unisono.optimizers.Adam) and read_back.gradient_transformers


@pytest.mark.filterwarnings("ignore:Skipping variable loading")  # of an unused optimizer, as in Keras
def test_wrapper_of_keras_for_scikit_learn_trains_with_ours():
    def build(X, y, units=3):
        hidden, last = keras.layers.Dense(units), keras.layers.Dense(2, "softmax")
        model = unisono.Sequential([keras.Input((4,)), hidden, last])
        model.compile("adam", "categorical_crossentropy")
        return model

    wrapper = keras.wrappers.SKLearnClassifier(build, fit_kwargs={"verbose": 0})
    fitted = clone(wrapper).fit(X, (Y[:, 0] > 0).astype(int))
    assert isinstance(fitted.model_, unisono.Model)
    model = functional()
    model.compile("adam", "mse")
    regressor = keras.wrappers.SKLearnRegressor(model, fit_kwargs={"verbose": 0}).fit(X, Y[:, 0])
    assert isinstance(regressor.model_, unisono.Model)
    assert isinstance(copy.deepcopy(regressor).model_, unisono.Model)
