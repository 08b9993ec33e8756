"""Weights that a layout map of Keras divides over a mesh, compared with one device."""

from __future__ import annotations

import collections
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from meshes import check_equal, float64, strategy_for  # noqa: F401  (a fixture)

import unisono
from unisono.distribute import global_batch_size, sharded
from unisono.distribute.mesh import combine_in_groups
from unisono.trainer.partition.steps import step_collectives

R = np.random.default_rng(0)
X = R.normal(size=(16, 4))
TOKENS = R.integers(0, 16, (16, 6)).astype("int32")
NEXT = R.integers(0, 16, (16, 6))
MLP = {".*up/kernel": (None, "model"), ".*up/bias": ("model",), ".*down/kernel": ("model", None)}
MEGATRON = {
    ".*attention/(query|key|value)/kernel": (None, "model", None),
    ".*attention/(query|key|value)/bias": ("model", None),
    ".*attention/attention_output/kernel": ("model", None, None),
    **MLP,
}
ROWS, COLUMNS = {"embedding/embeddings": ("model", None)}, {"embedding/embeddings": (None, "model")}
HEAD = {"head/kernel": (None, "model"), "head/bias": ("model",)}


def mlp(kind=unisono.Model):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((4,))
    x = keras.layers.Dense(8, "tanh", name="up")(inputs)
    x = keras.layers.BatchNormalization(synchronized=True)(x)
    return kind(inputs, keras.layers.Dense(2, name="down")(x))


def transformer():
    """An embedding, a block with pre-normalization, and a head."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(16, 8, name="embedding")(tokens)
    h = layers.LayerNormalization()(x)
    h = layers.MultiHeadAttention(4, 4, name="attention")(h, h, use_causal_mask=True)
    x = layers.Add()([x, h])
    h = layers.LayerNormalization()(x)
    h = layers.Dense(16, activation="gelu", name="up")(h)
    x = layers.Add()([x, layers.Dense(8, name="down")(h)])
    return unisono.Model(tokens, layers.Dense(16, name="head")(layers.LayerNormalization()(x)))


def compiled(model, optimizer, loss="mse", **options):
    model.compile(optimizer, loss, jit_compile=False, **options)
    return model


def fitted(model, x, y, epochs=1):
    """Everything that a fit, an evaluation and a prediction in batches of 7, 7 and 2 samples give."""
    history = model.fit(x, y, batch_size=7, epochs=epochs, shuffle=False, verbose=0).history
    results = model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True)
    outputs = model.predict(x, batch_size=7, verbose=0)
    state = [v.numpy() for v in model.optimizer.variables]
    return [*history.values(), *results.values(), outputs, *model.get_weights(), *state]


def parts_of(variable):
    return [tuple(part.shape) for part in variable._value.shards]


def check_parts(model):
    """Replicas with the same part, or with copies, have equal bits."""
    for variable in model.variables:
        if (layout := getattr(variable._value, "layout", None)) is None:
            copies = [[copy.numpy() for copy in variable._value.values]]
        else:
            whole = variable.numpy()
            copies = [(layout.part(whole, n), part.numpy()) for n, part in enumerate(variable._value.shards)]
        for each in copies:
            assert all(np.array_equal(each[0], other) for other in each)


def of_mlp():
    optimizer = unisono.optimizers.Adam(0.05, global_clipnorm=0.5, weight_decay=0.01)
    return fitted(compiled(mlp(), optimizer, metrics=["mae"]), X, X[:, :2])


@pytest.mark.parametrize("shape", [(1, 2), (2, 2), (1, 4), (2, 1)], ids=str)
@pytest.mark.long
def test_mlp_on_a_mesh_trains_evaluates_and_predicts_as_on_one_device(shape, tmp_path):
    expected = of_mlp()
    with strategy_for(shape, MLP).scope():
        found = of_mlp()
    check_equal(found, expected)


@pytest.mark.long
def test_parts_of_weights_and_of_optimizer_state_are_what_the_layout_says(tmp_path):
    with strategy_for((2, 2), MLP).scope():
        model = compiled(mlp(), unisono.optimizers.Adam(0.05))
    for one, other in zip(mlp().weights, model.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())  # initial weights are those of one device
    fitted(model, X, X[:, :2])
    assert parts_of(model.get_layer("up").kernel) == [(4, 4)] * 4
    assert parts_of(model.get_layer("down").kernel) == [(4, 2)] * 4
    divided = [v for v in model.optimizer.variables if "up_kernel" in v.path]
    assert len(divided) == 2
    assert all(parts_of(v) == [(4, 4)] * 4 for v in divided)
    check_parts(model)
    path = str(tmp_path / "model.keras")
    model.save(path)
    plain = keras.saving.load_model(path)
    check_equal([plain.predict(X, verbose=0)], [model.predict(X, verbose=0)])
    with strategy_for((1, 4), MLP).scope():
        other = unisono.load_model(path)
    assert parts_of(other.get_layer("up").kernel) == [(4, 2)] * 4
    check_equal(
        [v.numpy() for v in other.optimizer.variables], [v.numpy() for v in model.optimizer.variables]
    )
    check_equal([other.predict(X, verbose=0)], [model.predict(X, verbose=0)])
    model.load_weights(path)
    check_parts(model)


def of_transformer():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = unisono.optimizers.SGD(0.1, momentum=0.9)
    model = compiled(transformer(), optimizer, loss, metrics=["sparse_categorical_accuracy"])
    return model, fitted(model, TOKENS, NEXT)


GEMMA = {  # as in KerasHub: over both axes
    "embedding/embeddings": ("model", "batch"),
    ".*attention/(query|key|value)/kernel": ("batch", "model", None),
    ".*attention/attention_output/kernel": ("model", None, "batch"),
    ".*up/kernel": ("batch", "model"),
    ".*down/kernel": ("model", "batch"),
}
LLAMA = GEMMA | {
    ".*attention/(query|key|value)/kernel": ("model", "batch", None)
}  # divides the contracted axis
HIDDEN = {
    ".*attention/attention_output/kernel": ("batch", None, "model"),
    ".*down/kernel": ("batch", "model"),
}
BATCH_ALONE = {".*(up|down|head)/kernel": ("batch", None), "embedding/embeddings": (None, "batch")}
LAYOUTS = {
    "block": MEGATRON, "rows": MEGATRON | ROWS | HEAD, "columns": MEGATRON | COLUMNS,
    "contracted": {".*attention/(query|key|value)/kernel": ("model", None, None), ".*up/kernel": ("model", None)},
}  # fmt: skip


OVER_BATCH = {  # the layouts, the mesh and the parts of the kernel of `down`, of shape (16, 8)
    "gemma": (GEMMA, (2, 2), (8, 4)),
    "llama": (LLAMA, (2, 2), (8, 4)),
    "four of the batch": (GEMMA, (4, 1), (16, 2)),
    "two of the batch": (LLAMA, (2, 1), (16, 4)),
    "two of the model": (GEMMA, (1, 2), (8, 8)),
    "hidden": (HIDDEN, (2, 2), (8, 4)),
    "batch alone": (BATCH_ALONE, (4, 1), (4, 8)),
}


@pytest.mark.parametrize("name", OVER_BATCH)
@pytest.mark.long
def test_maps_that_divide_weights_over_the_batch_too_train_as_one_device(name):
    layouts, shape, part = OVER_BATCH[name]
    _, expected = of_transformer()
    with strategy_for(shape, layouts).scope():
        model, found = of_transformer()
    check_equal(found, expected)
    check_parts(model)
    assert {*parts_of(model.get_layer("down").kernel)} == {part}


def test_gradients_of_weights_over_the_batch_are_reduce_scattered():
    layouts = {".*up/kernel": ("batch", "model"), ".*down/kernel": ("model", "batch")}
    with strategy_for((2, 2), layouts).scope():
        model = compiled(mlp(), "sgd")
    text = str(model.explain_step(X[:8], X[:8, :2]))
    assert "reduce-scatter over 'batch' of the gradients of 2 variables" in text
    # Parts along the model; they are still whole along the batch when the backward pass begins.
    assert text.count("all-gather over 'batch' of 4x4 float64") == 1
    assert text.count("all-gather over 'batch' of 4x2 float64") == 1


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.long
def test_transformer_on_a_mesh_trains_as_on_one_device(name):
    _, expected = of_transformer()
    with strategy_for((2, 2), LAYOUTS[name]).scope():
        model, found = of_transformer()
    check_equal(found, expected)
    check_parts(model)


def test_block_of_a_transformer_communicates_as_megatron_does():
    with strategy_for((2, 2), MEGATRON).scope():
        model = compiled(transformer(), "sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    found = model.explain_step(TOKENS[:8], NEXT[:8]).collectives
    along = [(each.kind, each.what) for each in found if each.over == "model"]
    # Forward: one for the attention, one for the MLP. Backward: the same.
    assert collections.Counter(along) == {("all-reduce", "4x6x8 float64"): 4}  # of half of the samples


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.short("False")
def test_divided_vocabulary_is_never_gathered(tied):
    class Tied(keras.layers.Layer):
        def call(self, x):
            return keras.ops.matmul(x, keras.ops.transpose(embedding.embeddings))

    keras.utils.set_random_seed(1)
    with strategy_for((1, 4), ROWS if tied else ROWS | HEAD).scope():
        tokens = keras.Input((6,), dtype="int32")
        embedding = keras.layers.Embedding(16, 8, name="embedding")
        x = keras.layers.LayerNormalization()(embedding(tokens))
        out = Tied()(x) if tied else keras.layers.Dense(16, name="head")(x)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model = compiled(unisono.Model(tokens, out), "sgd", loss, metrics=["sparse_categorical_accuracy"])
    found = model.explain_step(TOKENS[:8], NEXT[:8]).collectives
    along = [(each.kind, each.what) for each in found if each.over == "model"]
    # Of activations: one sum of the embedding forward, and one of the head backward. Of the loss: the largest logit, the
    # sum of the powers, the logit of the class. Of the accuracy: the largest logit, and its place.
    assert collections.Counter(along) == {
        ("all-reduce", "8x6x8 float64"): 2, ("all-reduce", "48x1 float64"): 2, ("all-reduce", "8x6 float64"): 1,
        ("all-reduce", "8x6x1 float64"): 1, ("all-reduce", "8x6 int32"): 1,
    }  # fmt: skip


@pytest.mark.long
def test_sums_of_gradients_share_packs(monkeypatch):
    """As many collectives along the batch with eight layers as with two: one of the kernels and biases of all of them."""
    sent = []

    def counted(tensors, axes, *rest):
        sent.extend((axis, tuple(tensor.shape)) for tensor, axis in zip(tensors, axes))
        return combine_in_groups(tensors, axes, *rest)

    monkeypatch.setattr(step_collectives, "combine_in_groups", counted)

    def trained(layers):
        keras.utils.set_random_seed(1)
        inputs = x = keras.Input((4,))
        for _ in range(layers):
            x = keras.layers.Dense(4, name=f"down_{_}")(keras.layers.Dense(8, "tanh", name=f"up_{_}")(x))
        model = compiled(unisono.Model(inputs, x), unisono.optimizers.SGD(0.1))
        model.fit(X, X, batch_size=7, shuffle=False, verbose=0)
        return model.get_weights()

    layouts = {
        ".*up.*/kernel": (None, "model"),
        ".*up.*/bias": ("model",),
        ".*down.*/kernel": ("model", None),
    }
    counts = []
    for layers in (1, 4):
        expected = trained(layers)
        sent.clear()
        with strategy_for((2, 2), layouts).scope():
            found = trained(layers)
        check_equal(found, expected)
        counts.append(sum(axis == 0 for axis, _ in sent))
    assert counts[0] == counts[1]


class Contrastive(unisono.Model):
    """A loss that compares samples, in a custom step."""

    def train_step(self, data):
        x, _ = data
        with tf.GradientTape() as tape:
            out = self(x, training=True)
            loss = tf.reduce_mean(tf.matmul(out, out, transpose_b=True) ** 2) + tf.reduce_mean(out)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"own": loss, "norm": tf.linalg.global_norm(gradients)}


def of_custom_step():
    model = compiled(mlp(Contrastive), unisono.optimizers.SGD(0.1))
    history = model.fit(X, X, batch_size=7, epochs=1, shuffle=False, verbose=0).history
    return [*history.values(), *model.get_weights()]


def test_custom_step_that_compares_samples_trains_as_on_one_device():
    expected = of_custom_step()
    with strategy_for((2, 2), MLP).scope():
        found = of_custom_step()
    check_equal(found, expected)


def of_options(optimizer):
    model = compiled(mlp(), optimizer)
    model.fit(X, X[:, :2], batch_size=4, epochs=1, shuffle=False, verbose=0)
    return [*model.get_weights(), *[v.numpy() for v in model.optimizer.variables]]


OPTIONS = {
    "clipnorm and accumulation": lambda: unisono.optimizers.AdamW(
        0.05, clipnorm=0.1, gradient_accumulation_steps=2
    ),
    "loss scale": lambda: unisono.mixed_precision.LossScaleOptimizer(
        unisono.optimizers.RMSprop(0.05, global_clipnorm=0.1), initial_scale=8.0
    ),
    "transformers": lambda: unisono.optimizers.SGD(
        0.1, gradient_transformers=[unisono.optimizers.ClipByGlobalNorm(0.1)]
    ),
    "rule of whole weights": lambda: unisono.optimizers.Lamb(0.1),
    "averages": lambda: unisono.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
}
OVER_BOTH = MLP | {".*up/kernel": ("batch", "model"), ".*down/kernel": ("model", "batch")}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.short("rule of whole weights")
def test_options_of_optimizers_work_on_parts(name):
    expected = of_options(OPTIONS[name]())
    with strategy_for((2, 2), OVER_BOTH).scope():
        found = of_options(OPTIONS[name]())
    check_equal(found, expected)


def test_samples_per_replica_are_counted_along_the_batch():
    strategy = strategy_for((2, 2), MLP)
    assert global_batch_size(8, strategy) == 16
    with strategy.scope():
        model = compiled(mlp(), "sgd")
    assert model.fit(X, X[:, :2], per_replica_batch_size=4, verbose=0).params["steps"] == 2


EXPERTS = keras.distribution.DeviceMesh((2,), ("experts",), ["cpu:0", "cpu:1"])
WRONG_MAPS = {
    "leaves a remainder": ({".*up/kernel": (None, "model")}, (1, 3)),
    "name an axis of the mesh, or None, for each": ({".*up/kernel": ("model",)}, (1, 2)),
    r"of shape \(4, 8\), names 'model' twice.*'batch', 'model'": (
        {".*up/kernel": ("model", "model")},
        (1, 2),
    ),
    "names 'experts' twice, or the mesh has no such axis": (
        {".*up/kernel": keras.distribution.TensorLayout((None, "experts"), EXPERTS)},
        (1, 2),
    ),
    "remainder: choose another axis": ({".*up/kernel": ("batch", "model")}, (3, 1)),
}


@pytest.mark.parametrize("message", WRONG_MAPS)
def test_wrong_layout_raises_when_the_model_is_made(message):
    layouts, shape = WRONG_MAPS[message]
    with strategy_for(shape, layouts).scope(), pytest.raises(ValueError, match=f"up/kernel.*{message}"):
        mlp()


def test_unknown_axis_of_a_mesh_is_an_error_of_keras():
    with pytest.raises(ValueError, match="Invalid axis names"):
        strategy_for((1, 2), {"a": ("models",)})


SHARDED = {  # the mesh, and the shapes of the parts of the state of `up/kernel` (4, 8), and of the norm's `gamma` (8,)
    (1, 2): ((16,), (8,)),
    (2, 2): ((8,), (4,)),
    (1, 4): ((8,), (8,)),
    (2, 1): ((16,), (4,)),
}


def state_of(model, path):
    return [v for v in model.optimizer.variables if path in v.path]


def of_sharded(optimizer, **options):
    model = compiled(mlp(), optimizer, **options)
    return model, fitted(model, X, X[:, :2], 2)


@pytest.mark.parametrize("level", ["optimizer", "weights"])
@pytest.mark.parametrize("shape", SHARDED, ids=str)
@pytest.mark.long
def test_state_is_divided_over_the_batch_within_each_part(shape, level, tmp_path):
    make = lambda: unisono.optimizers.Adam(0.05, global_clipnorm=0.5, weight_decay=0.01)  # noqa: E731
    _, expected = of_sharded(make())
    with sharded(strategy_for(shape, MLP), level).scope():
        model, found = of_sharded(make())
    check_equal(found, expected)
    check_parts(model)
    kernel, gamma = SHARDED[shape]
    assert [parts_of(v) for v in state_of(model, "up_kernel")] == [[kernel] * math.prod(shape)] * 2
    assert [parts_of(v) for v in state_of(model, "gamma")] == [[gamma] * math.prod(shape)] * 2
    stored = [kernel] if level == "weights" else [(4, 8 // shape[1])]
    assert shape[1] == 1 or {*parts_of(model.get_layer("up").kernel)} == {*stored}
    path = str(tmp_path / "model.keras")
    model.save(path)
    with sharded(strategy_for((4, 1), MLP)).scope():
        other = unisono.load_model(path)
    check_equal(
        [v.numpy() for v in other.optimizer.variables], [v.numpy() for v in model.optimizer.variables]
    )
    check_equal([other.predict(X, verbose=0)], [model.predict(X, verbose=0)])


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.long
def test_options_of_optimizers_work_on_state_over_both_axes(name):
    expected = of_options(OPTIONS[name]())
    for layouts in (MLP, OVER_BOTH):
        with sharded(strategy_for((2, 2), layouts)).scope():
            found = of_options(OPTIONS[name]())
        check_equal(found, expected)


@pytest.mark.long
def test_sparse_gradients_and_three_axes_work_on_state_over_both_axes():
    def trained():
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model = compiled(transformer(), unisono.optimizers.Adam(0.01), loss)
        return [*fitted(model, TOKENS, NEXT)]

    expected = trained()
    names = ("batch", "expert", "model")
    for shape, layouts in (((2, 2), MEGATRON), ((1, 2, 2), LAYOUTS["rows"])):
        with sharded(strategy_for(shape, layouts, names if len(shape) == 3 else names[::2])).scope():
            found = trained()
        check_equal(found, expected)


@pytest.mark.long
def test_mixed_precision_on_state_over_both_axes():
    def trained():
        keras.utils.set_random_seed(1)
        model = mlp()
        for layer in model.layers:
            layer.dtype_policy = "mixed_bfloat16"
        model = compiled(model, unisono.optimizers.Adam(0.05))
        model.fit(X, X[:, :2], batch_size=7, shuffle=False, verbose=0)
        return model.get_weights()

    keras.config.set_floatx("float32")
    expected = trained()
    with sharded(strategy_for((2, 2), MLP)).scope():
        found = trained()
    check_equal(found, expected, 0.05)


NOT_SUPPORTED = {
    "gradient_aggregator": lambda: {
        "optimizer": unisono.optimizers.SGD(0.1, gradient_aggregator=lambda pairs: pairs)
    },
    "your own code": lambda: {
        "optimizer": unisono.optimizers.SGD(0.1, gradient_transformers=[lambda pairs: pairs])
    },
    "would run on one replica": lambda: {"optimizer": "sgd", "run_eagerly": True},
}


@pytest.mark.parametrize("message", NOT_SUPPORTED)
@pytest.mark.short("would run on one replica")
def test_what_divided_weights_do_not_support_raises_before_the_first_step(message):
    with strategy_for((1, 2), MLP).scope():
        model = compiled(mlp(), loss="mse", **NOT_SUPPORTED[message]())
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        model.fit(X, X[:, :2], verbose=0)
    check_equal(model.get_weights(), before, 0)


def test_constraint_of_a_divided_weight_sees_the_whole_weight():
    def trained():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        dense = keras.layers.Dense(2, kernel_constraint=keras.constraints.MaxNorm(0.3), name="dense")
        model = compiled(unisono.Model(inputs, dense(inputs)), "sgd")
        model.fit(X, X[:, :2], batch_size=8, shuffle=False, verbose=0)
        return model.get_weights()

    expected = trained()
    with strategy_for((2, 2), {"dense/kernel": ("batch", "model")}).scope():
        found = trained()
    check_equal(found, expected)


def test_pattern_without_a_variable_warns_with_the_nearest_path():
    with strategy_for((1, 2), {"upper/kernel": (None, "model")}).scope():
        model = compiled(mlp(), "sgd")
    with pytest.warns(UserWarning, match="'upper/kernel'.*matches no variable.*'up/kernel'"):
        model.fit(X, X[:, :2], batch_size=8, verbose=0)


@pytest.mark.short("sharded")
@pytest.mark.parametrize("over", [lambda each: each, sharded], ids=["parts", "sharded"])
def test_backup_of_divided_weights_resumes_on_another_mesh(over, tmp_path):
    def trained(epochs):
        model = compiled(mlp(), unisono.optimizers.Adam(0.05))
        backup = unisono.callbacks.BackupAndRestore(str(tmp_path / "backup"), delete_checkpoint=False)
        model.fit(X, X[:, :2], batch_size=8, epochs=epochs, verbose=0, callbacks=[backup])
        return [*model.get_weights(), *[v.numpy() for v in model.optimizer.variables]]

    expected = compiled(mlp(), unisono.optimizers.Adam(0.05))
    expected.fit(X, X[:, :2], batch_size=8, epochs=2, verbose=0)
    with over(strategy_for((2, 2), MLP)).scope():
        trained(1)
    with over(strategy_for((1, 4), MLP)).scope():
        found = trained(2)
    state = [v.numpy() for v in expected.optimizer.variables]
    check_equal(found, [*expected.get_weights(), *state])


@pytest.mark.long
def test_model_under_set_distribution_has_its_layouts():
    expected = of_options("sgd")
    strategy = strategy_for((2, 2), MLP)
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"))
    layouts = keras.distribution.LayoutMap(mesh)
    for pattern, axes in MLP.items():
        layouts[pattern] = axes
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layouts))
    model = compiled(mlp(), "sgd")
    assert model.distribute_strategy.mesh == strategy.mesh
    assert parts_of(model.get_layer("up").kernel) == [(4, 4)] * 4
    check_equal(of_options("sgd"), expected)
    keras.distribution.set_distribution(None)


@pytest.mark.long
def test_steps_that_xla_compiles_work_on_parts():
    expected = compiled(mlp(), "sgd")
    expected.fit(X, X[:, :2], batch_size=8, shuffle=False, verbose=0)
    with strategy_for((1, 2), MLP).scope():
        model = mlp()
        model.compile("sgd", "mse", jit_compile=True)
    model.fit(X, X[:, :2], batch_size=8, shuffle=False, verbose=0)
    check_equal(model.get_weights(), expected.get_weights())
