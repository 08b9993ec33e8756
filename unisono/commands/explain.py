"""`python -m unisono explain`: what the replicas of a script communicate in a training step, and why."""

from __future__ import annotations

import functools
import inspect
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .parser import Parser, at_least, local

PARSER = Parser(
    "explain",
    "List the collectives in the first training step of a script, and the lines that cause them.",
    examples=["train.py", "train.py --replicas 4 -- --batch-size 64"],
    exit_codes={
        0: "the step is partitioned over the replicas",
        1: "the step runs on one replica",
        2: "an argument is wrong, or the script calls no `fit`",
    },
    details="The script runs up to its first `fit`, on simulated CPU devices; no step is run.",
)
PARSER.add_argument("script", type=local, help="a Python script that calls `fit`")
PARSER.add_argument(
    "-n", "--replicas", type=at_least(int, 2, 64), default=2, help="number of replicas (default: 2)"
)
PARSER.add_argument("arguments", nargs="*", help="arguments of the script, after `--`")


class _Explained(BaseException):
    """The script has come to its first `fit`; holds the explanation."""


def main(argv: Sequence[str]) -> int:
    """Prints the explanation; returns 0 where the step is partitioned, 1 where it is not, 2 for a wrong script."""
    options = PARSER.parse_args(argv)
    script: Path = options.script
    if not script.is_file():
        return PARSER.failed(f"script: there is no file {str(script)!r}", 2)
    import tensorflow as tf

    from ..distribute.hardware.devices import simulate_devices

    simulate_devices(options.replicas)
    strategy = tf.distribute.MirroredStrategy([f"CPU:{number}" for number in range(options.replicas)])
    sys.argv, sys.path[0] = [str(script), *options.arguments], str(script.parent)
    _explain_fits()
    try:
        with strategy.scope():
            runpy.run_path(str(script), run_name="__main__")
    except _Explained as found:
        (explanation,) = found.args
        print(explanation)
        return 1 if explanation.whole else 0
    return PARSER.failed(f"script: {str(script)!r} ended without a call of `fit` of a Unisono model", 2)


def _explain_fits() -> None:
    """Has each `fit` of this process end in `_Explained` where its first step would begin."""
    import keras

    from ..trainer.single_batches import explanation_for

    class Explain(keras.callbacks.Callback):
        """Explains the step of a fit that begins, and ends the script."""

        def on_train_begin(self, logs: Any = None) -> None:
            model: Any = self.model
            state = getattr(model, "fit_state", None)
            if state is None:
                raise TypeError(
                    f"{type(model).__name__} is a Keras model: call `unisono.adopt(model)` before `fit`."
                )
            raise _Explained(explanation_for(model, state.source.spec, state.source.batch_size))

    original: Any = keras.Model.fit
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fit(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs)
        others = keras.tree.flatten(given.arguments.get("callbacks") or [])
        given.arguments["callbacks"] = [Explain(), *others]
        return original(*given.args, **given.kwargs)

    keras.Model.fit = fit
