"""Keras' layers, losses and metrics as small functions of a batch, for `Parts`; which of them gather samples, and why."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

_R = np.random.default_rng(0)
N = 7
X, P = _R.normal(size=(N, 4)), _R.dirichlet(np.ones(3), N)
S, IMAGES, VOLUMES = _R.normal(size=(N, 6, 3)), _R.normal(size=(N, 6, 6, 2)), _R.normal(size=(N, 4, 4, 4, 2))
INTEGERS, CODES = _R.integers(0, 3, N), np.eye(3)[_R.integers(0, 3, N)]
TOKENS = np.where(np.arange(6) < _R.integers(2, 7, (N, 1)), _R.integers(1, 7, (N, 6)), 0)
BINARY, SCORES, WEIGHTS = _R.integers(0, 2, (N, 3)).astype("float64"), _R.random((N, 3)), _R.random(N)
POSITIVE = _R.random((N, 3)) + 0.1
ACTIVATIONS = ["relu", "elu", "selu", "swish", "softplus", "tanh", "sigmoid", "softmax", "mish"]
ACTIVATIONS += ["hard_sigmoid"]
layers, mean = keras.layers, tf.reduce_mean


def of_layers(build, x):
    """A function of a batch: a loss of the layers' outputs, and its gradients with respect to weights and input."""
    inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
    model = keras.Model(inputs, build(inputs))

    def fn(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            out = model(x, training=True)
            loss = mean(tf.cast(out, tf.float64) ** 2)
        wanted = [v.value for v in model.trainable_variables] + ([x] if x.dtype.is_floating else [])
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, wanted) if g is not None]
        return [loss, tf.identity(out), *gradients]

    return fn


L = layers
LAYERS = {
    "Dense": (lambda x: L.Dense(3, "gelu")(x), X),
    "Dense of time": (lambda x: L.Dense(3, "relu")(x), S),
    "EinsumDense": (lambda x: L.EinsumDense("abc,cd->abd", (None, 4), bias_axes="d")(x), S),
    "activations": (
        lambda x: L.Concatenate()(
            [L.Activation(a)(x) for a in ACTIVATIONS]
            + [L.LeakyReLU()(x), L.PReLU()(x), L.ReLU(1.0, 0.1)(x), L.Softmax()(x), L.ELU()(x)]
        ),
        X,
    ),
    "Conv1D": (lambda x: L.Conv1D(4, 2, padding="causal")(x), S),
    "Conv2D": (lambda x: L.Conv2D(4, 3, strides=2, padding="same", groups=2)(x), IMAGES),
    "dilated Conv2D": (lambda x: L.Conv2D(3, 2, dilation_rate=2, padding="same")(x), IMAGES),
    "Conv3D": (lambda x: L.Conv3D(3, 2)(x), VOLUMES),
    "Conv1DTranspose": (lambda x: L.Conv1DTranspose(3, 2, strides=2)(x), S),
    "Conv2DTranspose": (lambda x: L.Conv2DTranspose(3, 3, strides=2, padding="same")(x), IMAGES),
    "Conv3DTranspose": (lambda x: L.Conv3DTranspose(2, 2)(x), VOLUMES),
    "DepthwiseConv1D": (lambda x: L.DepthwiseConv1D(2)(x), S),
    "DepthwiseConv2D": (lambda x: L.DepthwiseConv2D(3, padding="same")(x), IMAGES),
    "SeparableConv1D": (lambda x: L.SeparableConv1D(3, 2)(x), S),
    "SeparableConv2D": (lambda x: L.SeparableConv2D(3, 3)(x), IMAGES),
    "poolings of time": (
        lambda x: L.Concatenate()(
            [L.Flatten()(p(2)(x)) for p in (L.MaxPooling1D, L.AveragePooling1D)]
            + [L.GlobalMaxPooling1D()(x), L.GlobalAveragePooling1D()(x)]
        ),
        S,
    ),
    "poolings of images": (
        lambda x: L.Concatenate()(
            [L.Flatten()(p(2, 1)(x)) for p in (L.MaxPooling2D, L.AveragePooling2D)]
            + [L.GlobalMaxPooling2D()(x), L.GlobalAveragePooling2D()(x)]
        ),
        IMAGES,
    ),
    "poolings of volumes": (
        lambda x: L.Concatenate()(
            [L.Flatten()(p(2, dtype="float32")(x)) for p in (L.MaxPooling3D, L.AveragePooling3D)]
            + [L.GlobalAveragePooling3D()(x)]
        ),
        VOLUMES,
    ),
    "adaptive poolings": (
        lambda x: (
            L.Add()([L.AdaptiveAveragePooling2D(2)(x), L.AdaptiveMaxPooling2D(2)(x)])
            if hasattr(L, "AdaptiveAveragePooling2D")
            else L.AveragePooling2D(3)(x)
        ),
        IMAGES,
    ),
    "LayerNormalization": (lambda x: L.LayerNormalization()(x), S),
    "RMSNormalization": (lambda x: L.RMSNormalization()(x), S),
    "GroupNormalization": (lambda x: L.GroupNormalization(2)(x), IMAGES),
    "UnitNormalization": (lambda x: L.UnitNormalization()(x), S),
    "synchronized BatchNormalization": (lambda x: L.BatchNormalization(synchronized=True)(x), IMAGES),
    "BatchNormalization of features": (lambda x: L.BatchNormalization()(x), X),
    "BatchNormalization with a mask": (
        lambda x: L.BatchNormalization()(L.Embedding(7, 3, mask_zero=True)(x)),
        TOKENS,
    ),
    "SimpleRNN": (lambda x: L.SimpleRNN(3)(x), S),
    "LSTM": (lambda x: L.LSTM(3, return_sequences=True)(x), S),
    "GRU": (lambda x: L.GRU(3)(x), S),
    "masked LSTM": (lambda x: L.LSTM(3)(L.Embedding(7, 3, mask_zero=True)(x)), TOKENS),
    "Bidirectional": (lambda x: L.Bidirectional(L.GRU(2, return_sequences=True))(x), S),
    "unrolled GRU": (lambda x: L.GRU(2, unroll=True)(x), S),
    "stacked cells": (lambda x: L.RNN([L.LSTMCell(2), L.GRUCell(3)])(x), S),
    "ConvLSTM1D": (lambda x: L.ConvLSTM1D(2, 2)(L.Reshape((3, 6, 4))(L.Flatten()(x))), IMAGES),
    "TimeDistributed": (lambda x: L.TimeDistributed(L.Dense(2))(x), S),
    "MultiHeadAttention": (lambda x: L.MultiHeadAttention(2, 3)(x, x, use_causal_mask=True), S),
    "masked attention": (
        lambda x: L.MultiHeadAttention(2, 3)(*[L.Embedding(7, 3, mask_zero=True)(x)] * 2),
        TOKENS,
    ),
    "GroupQueryAttention": (lambda x: L.GroupQueryAttention(3, 4, 2)(x, x), S),
    "Attention": (lambda x: L.Attention()([x, x]), S),
    "AdditiveAttention": (lambda x: L.AdditiveAttention()([x, x]), S),
    "Embedding": (lambda x: L.Embedding(7, 3)(x), TOKENS),
    "pooled Embedding": (lambda x: L.GlobalAveragePooling1D()(L.Embedding(7, 3, mask_zero=True)(x)), TOKENS),
    "ReversibleEmbedding": (lambda x: (e := L.ReversibleEmbedding(7, 3), e(e(x), reverse=True))[1], TOKENS),
    "merging": (
        lambda x: L.Concatenate()(
            [
                merge()([x, L.Dense(4)(x)])
                for merge in (L.Add, L.Subtract, L.Multiply, L.Average, L.Maximum, L.Minimum)
            ]
            + [L.Dot(1, normalize=True)([x, L.Dense(4)(x)])]
        ),
        X,
    ),
    "shapes": (
        lambda x: L.Flatten()(
            L.UpSampling1D(2)(L.Cropping1D(1)(L.ZeroPadding1D(2)(L.Permute((2, 1))(L.Reshape((9, 2))(x)))))
        ),
        S,
    ),
    "shapes of images": (
        lambda x: L.Cropping2D(1)(
            L.ZeroPadding2D(1)(L.UpSampling2D(2, interpolation="bilinear")(L.UpSampling2D()(x)))
        ),
        IMAGES,
    ),
    "resized images": (lambda x: L.Resizing(3, 3)(L.CenterCrop(4, 4)(x)), IMAGES),
    "shapes of volumes": (lambda x: L.Cropping3D(1)(L.ZeroPadding3D(1)(L.UpSampling3D(2)(x))), VOLUMES),
    "RepeatVector": (lambda x: L.RepeatVector(3)(x), X),
    "Normalization": (lambda x: L.Normalization(mean=[0.1] * 4, variance=[2.0] * 4)(x), X),
    "Rescaling": (lambda x: L.Rescaling(2.0, 1.0)(x), X),
    "Discretization": (lambda x: L.Discretization([-0.5, 0.5], output_mode="one_hot")(x), X),
    "CategoryEncoding": (lambda x: L.CategoryEncoding(7, output_mode="multi_hot")(x), TOKENS),
    "counting CategoryEncoding": (lambda x: L.CategoryEncoding(7, output_mode="count")(x), TOKENS),
    "IntegerLookup": (lambda x: L.IntegerLookup(vocabulary=[1, 2, 3, 4])(x), TOKENS),
    "Hashing": (lambda x: L.Hashing(5)(x), TOKENS),
    "Masking": (lambda x: L.SimpleRNN(2)(L.Masking(5.0)(x)), S),
}


def _plain(names, *data):
    """Losses or metrics without options, for some data."""
    return {name: (name, {}, *data) for name in names.split()}


LOSSES = {
    **_plain("MeanSquaredError MeanAbsoluteError CosineSimilarity Huber LogCosh Hinge SquaredHinge", BINARY, SCORES),
    **_plain("BinaryCrossentropy Dice Tversky", BINARY, SCORES),
    **_plain("MeanAbsolutePercentageError MeanSquaredLogarithmicError Poisson", POSITIVE, SCORES),
    **_plain("CategoricalHinge", CODES, SCORES),
    **_plain("KLDivergence", P, P[::-1].copy()),
    **_plain("CategoricalFocalCrossentropy", CODES, P),
    **_plain("SparseCategoricalCrossentropy CategoricalGeneralizedCrossEntropy", INTEGERS, P),
    **_plain("CTC", (TOKENS[:, :2] % 3 + 1).astype("int32"), _R.normal(size=(N, 6, 4))),
    **_plain("Circle", INTEGERS, SCORES),
    "BinaryCrossentropy of logits": ("BinaryCrossentropy", {"from_logits": True, "label_smoothing": 0.1}, BINARY, SCORES),
    "BinaryFocalCrossentropy": ("BinaryFocalCrossentropy", {"apply_class_balancing": True}, BINARY, SCORES),
    "CategoricalCrossentropy": ("CategoricalCrossentropy", {"label_smoothing": 0.1}, CODES, P),
    "SparseCategoricalCrossentropy of logits": (
        "SparseCategoricalCrossentropy", {"from_logits": True, "ignore_class": 2}, INTEGERS, SCORES,
    ),
    "Dice of samples": ("Dice", {"axis": 1}, BINARY, SCORES),
}  # fmt: skip

METRICS = {
    **_plain("Mean Sum", SCORES),
    **_plain("MeanAbsoluteError RootMeanSquaredError CosineSimilarity R2Score PearsonCorrelation", BINARY, SCORES),
    **_plain("ConcordanceCorrelation BinaryAccuracy BinaryCrossentropy Hinge Poisson LogCoshError", BINARY, SCORES),
    **_plain("Recall TruePositives FalseNegatives", BINARY, SCORES),
    **_plain("CategoricalAccuracy CategoricalCrossentropy F1Score", CODES, P),
    **_plain("SparseCategoricalAccuracy SparseCategoricalCrossentropy", INTEGERS, P),
    **_plain("KLDivergence", P, P[::-1].copy()),
    **_plain("Accuracy", INTEGERS, INTEGERS[::-1].copy()),
    **_plain("BinaryIoU", BINARY[:, 0], SCORES[:, 0]),
    "TopKCategoricalAccuracy": ("TopKCategoricalAccuracy", {"k": 2}, CODES, P.astype("float32")),
    "SparseTopKCategoricalAccuracy": ("SparseTopKCategoricalAccuracy", {"k": 2}, INTEGERS, P.astype("float32")),
    "AUC": ("AUC", {"num_thresholds": 9}, BINARY, SCORES),
    "AUC with given thresholds": ("AUC", {"thresholds": [0.2, 0.7], "curve": "PR"}, BINARY, SCORES),
    "AUC of several labels": ("AUC", {"num_thresholds": 9, "multi_label": True, "num_labels": 3}, BINARY, SCORES),
    "Precision": ("Precision", {"thresholds": [0.3, 0.6]}, BINARY, SCORES),
    "Precision of the best": ("Precision", {"top_k": 2, "class_id": 1}, BINARY, SCORES),
    "PrecisionAtRecall": ("PrecisionAtRecall", {"recall": 0.5, "num_thresholds": 9}, BINARY, SCORES),
    "SensitivityAtSpecificity": (
        "SensitivityAtSpecificity", {"specificity": 0.5, "num_thresholds": 9}, BINARY, SCORES,
    ),
    "FBetaScore": ("FBetaScore", {"beta": 2.0, "threshold": 0.4, "average": "macro"}, BINARY, SCORES),
    "IoU": ("IoU", {"num_classes": 3, "target_class_ids": [0, 1]}, INTEGERS, INTEGERS[::-1].copy()),
    "MeanIoU": ("MeanIoU", {"num_classes": 3}, INTEGERS, INTEGERS[::-1].copy()),
    "OneHotMeanIoU": ("OneHotMeanIoU", {"num_classes": 3}, CODES, P),
    "OneHotIoU": ("OneHotIoU", {"num_classes": 3, "target_class_ids": [1]}, CODES, P),
}  # fmt: skip


def of_loss(name, options, weighted):
    """A function of targets, predictions and weights: the loss, and its gradient with respect to the predictions."""
    loss_of = getattr(keras.losses, name)(**options)

    def fn(y, p, weights):
        with tf.GradientTape() as tape:
            tape.watch(p)
            loss = loss_of(y, p, weights if weighted else None)
        return [loss, tape.gradient(loss, p)]

    return fn


def of_metric(name, options, weighted):
    """A function of targets, predictions and weights: their contribution to the state of a metric."""
    metric = getattr(keras.metrics, name)(**options)

    def fn(*batch):
        before = [tf.zeros(v.shape, v.dtype) for v in metric.variables]
        *given, weights = batch
        return metric.stateless_update_state(
            before, *given, **({"sample_weight": weights} if weighted else {})
        )

    return fn
