"""Wrong uses of `fit`, `evaluate`, `predict` and their `*_on_batch` versions."""

from __future__ import annotations

import re
from typing import Any

from uses.bench import COLUMN, NAN, Use, X, Y, keras, np, rows, tf


def fit(*words: str, **arguments: Any) -> Use:
    return lambda bench: bench.fit(**arguments), words


def generator(*words: str, of: list[Any], y: Any = None) -> Use:
    return lambda bench: bench.fit(x=(item for item in of), y=y), words


class Batches(keras.utils.PyDataset):
    def __init__(self, count: Any = 1) -> None:
        super().__init__()
        self.count = count

    def __len__(self) -> Any:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return X, Y


V = (X, Y)
BATCHES = rows(X, Y).batch(2)
TWO = {"a": COLUMN, "b": COLUMN}
VALID = "`validation_data`"
BATCHED = "batch (it|them) first"

INPUTS: dict[str, Use] = {
    "x is a file name": fit("`x` is a str", "tf.data.Dataset", x="data.csv", y=None),
    "x is a number": fit("`x` is a int", "arrays or tensors", x=3),
    "x is strings": fit(
        "`x` contains strings, but the input .* of the model takes float32",
        "StringLookup",
        x=np.array([["a", "b", "c"]] * 6),
    ),
    "x is lists of different lengths": fit(
        "`x`", "RaggedTensor", "ragged.constant", x=[[1.0, 2.0, 3.0], [1.0]] * 3
    ),
    "x is objects": fit("dtype object", "convert it first", x=np.array([{1}, 2, None, 3, 4, 5], object)),
    "x is dates": fit("datetime64", "convert it", x=np.array(["2020-01-01"] * 6, "datetime64[D]")),
    "x is None": fit("x is None", "pass at least one array", x=None, y=None),
    "x is an empty list": fit("empty structure", "pass at least one", x=[], y=None),
    "x has an unknown name": fit("`x`", "nope", r"takes in \(None, 3\)", x={"nope": X}),
    "x has other features": fit("`x`", r"\(None, 5\)", "takes in", x=np.ones((6, 5))),
    "x lacks an axis": fit("`x`", r"\(None,\)", "takes in", x=np.ones(6)),
    "x has an axis too many": fit("`x`", r"\(None, 3, 2\)", "takes in", x=np.ones((6, 3, 2))),
    "x is a scalar": fit(r"x \(array\(3.*is a scalar", "its samples", x=np.float32(3)),
    "x holds an object": fit(r"`x\[1\]` is a object", "arrays or tensors", x=[X, object()]),
    "x has parts of other lengths": fit(
        r"x\['p'\]: 6, x\['q'\]\[0\]: 4", "same number of samples", x={"p": X, "q": [X[:4]]}
    ),
    "x is a class": fit("`?x`?", "Dataset", "instance", x=tf.data.Dataset, y=None),
    "x is symbolic": fit("`?x`?", "KerasTensor", "arrays", x=keras.Input((3,))),
    "x is a generator function": fit("`x` is a function", "pass the generator", x=lambda: iter([V]), y=None),
    "x is used up": generator("generator yielded no batch", "create a new one", of=[]),
    "x is single samples": fit("dataset", BATCHED, x=rows(X, Y), y=None),
    "x is single numbers": fit(
        "x is a dataset of single samples", "batch it first", x=tf.data.Dataset.range(6), y=None
    ),
    "x never ends": fit("steps_per_epoch", "must be set", x=BATCHES.repeat(), y=None),
    "x has no targets": fit("`y` is None", "pass the targets", x=rows(X).batch(2), y=None),
    "x gives four parts": fit("`x` yields tuples of 4", "train_step", x=rows(X, Y, X, X).batch(2), y=None),
    "x is empty": fit("an empty dataset", "at least one sample", x=rows(X, Y).take(0).batch(2), y=None),
    "x is empty once it is filtered": fit(
        "dataset that yielded no batch",
        "at least one sample",
        x=rows(X, Y).filter(lambda x, y: False).batch(2),
        y=None,
    ),
    "x is single samples with one-hot labels": fit(
        r"different numbers of samples \(\[3, 10\]", BATCHED, x=rows(X, np.zeros((6, 10))), y=None
    ),
    "x gives numbers": generator("Batch 0 of the generator is a int", "must be a tuple", of=[0, 1, 2]),
    "x gives strings": generator("Batch 0 .* is a str", "must be a tuple", of=["a"]),
    "x gives None": generator("Batch 0 .* is a NoneType", "must be a tuple", of=[None, None]),
    "x gives unequal lengths": generator("x: 6, y: 2", "same number of samples", of=[(X, Y[:2])] * 2),
    "x gives another structure later": generator(
        "Batch 1 of the generator", "but the first batch is", of=[(X,), (X, Y)]
    ),
    "x generator, with y": generator(r"y \(ndarray\) must not be passed", "tuples", of=[(X,)], y=Y),
    "x gives no dataset": fit(r"returned a ndarray", "tf.data.Dataset", x=lambda context: X, y=None),
    "x is a class of batches": fit("`?x`?", "Batches", "instance", x=Batches, y=None),
    "x has no batch": fit("PyDataset has 0 batches", "at least one", x=Batches(0), y=None),
    "x has a length of text": fit("PyDataset|__len__", "'3'|str", x=Batches("3"), y=None),
    "x dataset, with y": fit(r"y \(ndarray\) must not be passed", "tuples", x=BATCHES),
    "x dataset, with weights": fit(
        "sample_weight", "let x yield tuples", x=BATCHES, y=None, sample_weight=np.ones(6)
    ),
    "x dataset, with batch_size": fit(r"batch_size \(2\)", "own batches", x=BATCHES, y=None, batch_size=2),
    "x PyDataset, with batch_size": fit(
        r"batch_size \(3\)", "own batches", x=Batches(1), y=None, batch_size=3
    ),
    "y is None": fit("`y` is None", "loss='mse'", "pass the targets", y=None),
    "y is names": fit("`y` contains strings", "StringLookup", y=np.array(["cat"] * 6)),
    "y is a list of names": fit("`y` contains strings", "StringLookup", y=["cat"] * 6),
    "y is a number": fit("`y` is a int", "arrays or tensors", y=1),
    "y has more samples": fit("x: 6, y: 8", "same number of samples", y=np.ones((8, 2))),
    "y has fewer samples": fit("x: 6, y: 3", "same number of samples", y=Y[:3]),
    "y has other columns": fit("`y`", r"\(None, 5\)", "shape of the outputs", y=np.ones((6, 5))),
    "y lacks an axis": fit("`y`", r"\(None,\)", "shape of the outputs", y=np.ones(6)),
    "y has an axis too many": fit("`y`", r"\(None, 2, 2\)", "shape of the outputs", y=np.ones((6, 2, 2))),
    "y is two arrays": fit("`y`", "structure", y=[Y, Y]),
    "y has an unknown name": fit("`y`", "nope", "structure", y={"nope": Y}),
    "y holds None": fit("NoneType", "convert it first", y=np.array([None] * 6, object)),
    "sample_weight is strings": fit(
        "`sample_weight` contains strings", "pass one number", sample_weight=np.array(["a"] * 6)
    ),
    "sample_weight is a text": fit("`sample_weight` is a str", "arrays", sample_weight="auto"),
    "sample_weight is a number": fit("`sample_weight` is a float", "arrays", sample_weight=2.0),
    "sample_weight is too short": fit("sample_weight: 4", "same number of samples", sample_weight=np.ones(4)),
    "sample_weight is of classes": fit(r"`sample_weight\[0\]` is a float", "arrays", sample_weight={0: 1.0}),
    "sample_weight has a name": fit(
        "`sample_weight`", "one weight for each sample", sample_weight={"out": np.ones(6)}
    ),
    "sample_weight has columns": fit(
        "`sample_weight`", r"\(None, 3\)", "for each sample", sample_weight=np.ones((6, 3))
    ),
    "class_weight is a list": fit(
        "class_weight", r"\[1.0\]", "must be a dict", class_weight=[1.0], y=np.ones(6)
    ),
    "class_weight is a text": fit(
        "class_weight", "'balanced'", "must be a dict", class_weight="balanced", y=COLUMN
    ),
    "class_weight has names": fit("class_weight", "'cat'", "as int", class_weight={"cat": 1.0}, y=COLUMN),
    "class_weight is NaN": fit(
        r"class_weight\[0\]", "a finite number", "nan", class_weight={0: NAN}, y=COLUMN
    ),
    "class_weight holds text": fit(
        r"class_weight\[0\]", "a finite number", "'2'", class_weight={0: "2"}, y=COLUMN
    ),
    "class_weight holds None": fit(
        r"class_weight\[0\]", "a finite number", "None", class_weight={0: None}, y=COLUMN
    ),
    "class_weight and weights": fit(
        "class_weight", "both passed", "product", class_weight={0: 1.0}, sample_weight=np.ones(6), y=COLUMN
    ),
    "class_weight, several outputs": fit("class_weight", "one output", class_weight={0: 1.0}, y={"out": Y}),
    "class_weight without targets": fit("class_weight", "pass y", class_weight={0: 2.0}, y=None),
    "class_weight of strings": fit(
        "class_weight", "strings", class_weight={0: 2.0}, y=np.array(list("ababab"))
    ),
    "class_weight of four": fit(
        "class_weight", "tuples? of 4", x=rows(X, Y, Y, Y).batch(2), y=None, class_weight={0: 2.0}
    ),
    "class_weight and weights of a dataset": fit(
        "both passed", "product", x=rows(X, Y, X[:, 0]).batch(2), y=None, class_weight={0: 2.0}
    ),
    **{
        f"sample_weight for two outputs {name}": (
            lambda b, weights=weights: b.two_outputs(True).fit(X, TWO, sample_weight=weights, verbose=0),
            ("`sample_weight` of shapes", "does not fit", "one weight for each sample"),
        )
        for name, weights in {
            "for one of them": {"a": X[:, 0]},
            "with an unknown name": {"a": X[:, 0], "c": X[:, 0]},
            "with dimensions": X,
        }.items()
    },
    "sample_weight by name for a list of outputs": (
        lambda b: b.two_outputs().fit(X, TWO, sample_weight={"a": X[:, 0], "b": X[:, 0]}, verbose=0),
        ("`sample_weight` of shapes", "does not fit", "a list, as the outputs are one"),
    ),
}


def _of(name: str, values: Any, cure: str, **others: Any) -> dict[str, Use]:
    """Invalid values of one argument; each error contains the value."""
    return {
        f"{name} is {v!r}": fit(f"`{name}`", cure, "Received: " + re.escape(repr(v)), **{name: v}, **others)
        for v in values
    }


def _numbers(name: str, values: tuple[Any, ...], **others: Any) -> dict[str, Use]:
    """Invalid numbers for an argument that takes integers."""
    return _of(name, values, "whole number", **others)


ARGUMENTS: dict[str, Use] = {
    **_numbers("batch_size", (0, -1, 2.5, "32", True, NAN, [4], np.array([4, 5]), tf.constant(2.5))),
    **_numbers("per_replica_batch_size", (0, 2.5, "4", True)),
    **_numbers("epochs", (-1, 2.5, "3", True, NAN, [3], None)),
    **_numbers("initial_epoch", (-1, "1", 0.5, None)),
    **_numbers("steps_per_epoch", (0, -1, "3", 2.5, True)),
    **_numbers("validation_steps", (0, -1, "2", 1.5), validation_data=V),
    **_numbers("validation_batch_size", (0, "8", 2.5), validation_data=V),
    **_numbers("overfit_batches", (0, -1, "3", 2.5, 0.1, True)),
    **_of("verbose", (7, "yes", -1, 1.5, "0", [1], None), '"auto", 0, 1, 2 or 3'),
    **_of("shuffle", ("rows", 2, "True", [True]), 'True, False or "batch"'),
    **_of("validation_split", (-0.2, 1.0, 1.5, "0.2", NAN, True, [0.2]), "at least 0 and below 1"),
    **_of(
        "validation_freq",
        (0, -1, "1", True, [0], [1.5], ["1"], NAN, None, {1: 2}),
        "list of epochs",
        validation_data=V,
    ),
    **_of("fast_dev_run", ("yes", 2), "True or False"),
    "both batch sizes": fit(
        "`batch_size`", "batch_size=4 and per_", "either", batch_size=4, per_replica_batch_size=2
    ),
    "validation_split leaves nothing": fit("validation_split", "0.99", "more samples", validation_split=0.99),
    "validation_split of a dataset": fit(
        "validation_split", "pass validation_data", validation_split=0.5, x=BATCHES, y=None
    ),
    "validation_split of a generator": fit(
        "validation_split", "pass validation_data", validation_split=0.5, x=iter([V]), y=None
    ),
    "validation_data is a number": fit(VALID, r"\(x, y\)", "Received: 3", validation_data=3),
    "validation_data is a file": fit(VALID, r"\(x, y\)", "'val.csv'", validation_data="val.csv"),
    "validation_data is False": fit(VALID, r"\(x, y\)", "False", validation_data=False),
    "validation_data is x": fit(VALID, "`y` is None", "pass the targets", validation_data=X),
    "validation_data has no y": fit(VALID, "`y` is None", "pass the targets", validation_data=(X, None)),
    "validation_data of four": fit(VALID, "of 4", r"\(x, y, sample_weight\)", validation_data=(X, Y, X, Y)),
    "validation_data is empty": fit(VALID, "of 0", r"\(x, y\)", validation_data=()),
    "validation_data of features": fit(
        VALID, r"\(None, 5\)", "takes in", validation_data=(np.ones((6, 5)), Y)
    ),
    "validation_data of columns": fit(VALID, r"\(None, 5\)", "outputs", validation_data=(X, np.ones((6, 5)))),
    "validation_data is a dict": fit(
        VALID, "`y` is None", "pass the targets", validation_data={"x": X, "y": Y}
    ),
    "validation_data of weights": fit(
        VALID, "`sample_weight`", "numbers", validation_data=(X, Y, np.array(["a"] * 6))
    ),
    "callbacks is a number": fit("`callbacks`", "instances", "Received: 3", callbacks=3),
    "callbacks is a text": fit("`callbacks`", "instances", "'early'", callbacks="early"),
    "callbacks holds texts": fit("`callbacks`", "instances", "'early'", callbacks=["early"]),
    "callbacks holds a class": fit(
        "`callbacks`", "instances", "History", callbacks=[keras.callbacks.History]
    ),
    "callbacks holds a function": fit("`callbacks`", "instances", "print", callbacks=[print]),
    "callbacks holds None": fit("`callbacks`", "instances", "None", callbacks=[None]),
    "callbacks is a generator": fit("`callbacks`", "instances", "generator", callbacks=(c for c in [])),
    "callbacks holds a metric": fit("`callbacks`", "instances", "Mean", callbacks=[keras.metrics.Mean()]),
    "unknown name batchsize": fit("batchsize", batchsize=3),
    "fit inside of tf.function": (
        lambda b: tf.function(b.fit, autograph=False)(),
        (r"`fit\(\)`", "tf.function", "call it outside"),
    ),
}


def method(name: str, words: tuple[str, ...], *arguments: Any, **named: Any) -> Use:
    quiet = {"verbose": 0} if name in ("evaluate", "predict") else {}
    return lambda bench: getattr(bench.model, name)(*arguments, **quiet | named), words


UNEQUAL, EMPTY = ("x: 6, y: 2", "same number"), ("no samples", "at least one")
NO_X, NO_Y = ("x is None", "pass at least one"), ("`y` is None", "pass the targets")
DATASET = tf.data.Dataset.from_tensors(V)
METHODS: dict[str, Use] = {
    f"{name} {what}": method(name, *given)
    for name, cases in {
        "evaluate": {
            "None": (NO_X, None),
            "without y": (NO_Y, X),
            "names": (("`y` contains strings", "encode"), X, np.array(["a"] * 6)),
            "columns": (("`y`", r"\(None, 5\)", "outputs"), X, np.ones((6, 5))),
            "unequal lengths": (UNEQUAL, X, Y[:2]),
            "no samples": (EMPTY, X[:0], Y[:0]),
            "forever": (("steps", "must be set"), DATASET.repeat()),
        },
        "predict": {
            "None": (NO_X, None),
            "a file": (("`x` is a str", "arrays"), "img.png"),
            "names": (("`x` contains strings", "encode"), np.array([["a", "b", "c"]])),
            "one sample": (("`x`", r"\(None,\)", "takes in"), X[0]),
            "features": (("`x`", r"\(None, 5\)", "takes in"), np.ones((6, 5))),
            "forever": (("steps", "must be set"), rows(X).batch(2).repeat()),
            "with y": (("`batch_size`", "whole number"), X, Y),
            "no samples": (EMPTY, X[:0]),
            "no batch": (("an empty dataset", "at least one"), rows(X).take(0).batch(2)),
        },
        "train_on_batch": {
            "unequal lengths": (UNEQUAL, X, Y[:2]),
            "no samples": (EMPTY, X[:0], Y[:0]),
            "None": (NO_X, None),
            "without y": (NO_Y, X),
            "of a dataset": (("`x`", "Dataset", "one batch"), DATASET),
            "of a generator": (("`x`", "generator", "one batch"), iter([V])),
            "of a pair": (NO_Y, V),
            "of text": (("`x` is a str", "arrays"), "x"),
            "columns": (("`y`", r"\(None, 5\)", "outputs"), X, np.ones((6, 5))),
            "swapped": ((r"sample_weight\[0\]", "arrays"), X, Y, {0: 1.0}),
            "both weights": (("sample_weight", "class_weight", "product"), X, Y, np.ones(6), {0: 1.0}),
        },
        "test_on_batch": {
            "unequal lengths": (UNEQUAL, X, Y[:2]),
            "without y": (NO_Y, X),
            "of a dataset": (("`x`", "Dataset", "one batch"), DATASET),
        },
        "predict_on_batch": {
            "no samples": (EMPTY, X[:0]),
            "of a dataset": (("`x`", "Dataset", "one batch"), DATASET),
            "features": (("`x`", r"\(None, 9\)", "takes in"), np.ones((2, 9))),
        },
    }.items()
    for what, given in cases.items()
} | {
    f"{name} {argument} {value!r}": method(name, (f"`{argument}`", *words), *given, **{argument: value})
    for name, given in {"evaluate": (X, Y), "predict": (X,)}.items()
    for argument, value, words in (
        ("verbose", "yes", ("'yes'", '"auto"')),
        ("steps", "2", ("'2'", "whole number")),
        ("steps", 0, ("Received: 0", "whole number")),
        ("callbacks", 3, ("Received: 3", "instances")),
        ("callbacks", [keras.callbacks.History], ("History", "instances")),
        ("batch_size", -1, ("Received: -1", "whole number")),
    )
}
