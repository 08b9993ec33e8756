"""An image classifier: augmentation inside of the model, averaged weights, early stopping, and a rate that follows the loss.

Validation uses the averages (EMA), and the model has them at the end. All of it is Keras; several devices give the
single-device result.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import sklearn.datasets
import sklearn.model_selection

import unisono


def make_model() -> unisono.Sequential:
    return unisono.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.RandomTranslation(0.1, 0.1, fill_mode="constant"),  # at work in training alone
            keras.layers.RandomRotation(0.03, fill_mode="constant"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, help="steps of an epoch; default: all samples")
    parser.add_argument("--epochs", type=int, default=60, help="at most")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    digits = sklearn.datasets.load_digits()
    x_train, x_test, y_train, y_test = sklearn.model_selection.train_test_split(
        (digits.images[..., None] / 16).astype("float32"), digits.target, test_size=0.25, random_state=1
    )
    with unisono.distribute.auto_strategy().scope():
        model = make_model()
        model.compile(
            unisono.optimizers.AdamW(3e-3, weight_decay=1e-4, use_ema=True, ema_momentum=0.98),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    callbacks = [
        unisono.callbacks.SwapEMAWeights(swap_on_epoch=True),  # before those that look at the validation
        unisono.callbacks.ReduceLROnPlateau(patience=3, factor=0.3),
        unisono.callbacks.EarlyStopping(patience=8, restore_best_weights=True),
    ]
    history = model.fit(
        x_train,
        y_train,
        batch_size=64,
        epochs=options.epochs,
        steps_per_epoch=options.steps,
        validation_data=(x_test, y_test),
        callbacks=callbacks,
        verbose=2,
    )
    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(
        f"\n{len(history.epoch)} epochs; {accuracy:.1%} of {len(y_test)} unseen digits are classified correctly"
    )


if __name__ == "__main__":
    main()
