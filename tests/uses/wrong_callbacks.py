"""Wrong uses of callbacks: their arguments, and where they write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uses.bench import NAN, Bench, Use, keras, unisono

callbacks = unisono.callbacks
ExponentialDecay = keras.optimizers.schedules.ExponentialDecay


def made(make: Callable[[Bench], Any], *words: str) -> Use:
    return lambda bench: bench.called_back(make(bench), epochs=2), words


def _keras_rejects_text() -> bool:
    """Whether the constructor of Keras' own class fails, with a TypeError about `<`, before we see the argument."""
    try:
        return not keras.callbacks.EarlyStopping(patience="3")
    except TypeError:
        return True


def _of(name: str, argument: str, cure: str, *values: Any, **others: Any) -> dict[str, Use]:
    """One argument of one callback, with each of the values."""
    places = {"ModelCheckpoint": "{epoch}.keras", "JSONLines": "log.jsonl", "TrainingReport": "report.html"}
    nowhere = {"ProgressBar", "EarlyStopping", "ReduceLROnPlateau"}
    nowhere |= {"AnomalyReport"}

    def make(bench: Bench, value: Any) -> Any:
        place = [] if name in nowhere else [str(bench.folder / places.get(name, "place"))]
        return getattr(callbacks, name)(*place, **{argument: value}, **others)

    return {
        f"{name} {argument}={v!r}": made(lambda b, v=v: make(b, v), f"`{argument}`", cure, re.escape(repr(v)))
        for v in values
    }


def _below_file(bench: Bench) -> Path:
    return bench.file / "below"


def _folder(bench: Bench, name: str) -> Path:
    folder = bench.folder / name
    folder.mkdir()
    return folder


def _checkpoint(name: str, *words: str, **arguments: Any) -> Use:
    return made(lambda b: callbacks.ModelCheckpoint(b.folder / name, **arguments), *words)


def _given(name: str, value: Any, *words: str) -> Use:
    """A callback with one positional argument."""
    return made(lambda b: getattr(callbacks, name)(value), *words)


FORMAT = r"\{epoch:03d\}"
PLACES: dict[str, Use] = {}
for _name, _argument in (
    ("ModelCheckpoint", "filepath"),
    ("BackupAndRestore", "directory"),
    ("JSONLines", "path"),
    ("AnomalyReport", "path"),
    ("Profiler", "log_dir"),
    ("TensorBoard", "log_dir"),
    ("TrainingReport", "path"),
    ("CSVLogger", "filename"),
):
    _suffix = {"ModelCheckpoint": ".keras", "TrainingReport": ".html"}.get(_name, "")
    PLACES[f"{_name} below a file"] = made(
        lambda b, n=_name, s=_suffix: getattr(callbacks, n)(str(_below_file(b)) + s),
        f"`{_argument}` of `{_name}` cannot be created",
        "is a file",
        "another path",
    )
    if _name != "CSVLogger":
        PLACES[f"{_name} in a number"] = _given(_name, 3, f"`{_argument}`", "must be a path", "Received: 3")
PLACES |= {
    **{
        f"{name} in a folder": made(
            lambda b, n=name, f=folder: getattr(callbacks, n)(_folder(b, f)),
            f"`{argument}`",
            "is a folder",
            "path of a file",
        )
        for name, argument, folder in (
            ("ModelCheckpoint", "filepath", "m.keras"),
            ("JSONLines", "path", "logs"),
            ("TrainingReport", "path", "r.html"),
        )
    },
    "TrainingReport as a PDF": _given("TrainingReport", "r.pdf", "`path`", "end in .html", "r.pdf"),
    "BackupAndRestore in a file": made(
        lambda b: callbacks.BackupAndRestore(b.file), "`directory`", "is a file", "another"
    ),
    "BackupAndRestore nowhere": _given("BackupAndRestore", None, "`directory`", "None", "pass the folder"),
    "BackupAndRestore in a folder without a name": _given(
        "BackupAndRestore", "", "Empty `backup_dir` argument", "pass the folder"
    ),
    "BackupAndRestore in two folders": made(
        lambda b: callbacks.BackupAndRestore("a", backup_dir="b"), "`directory`", "`backup_dir`", "either"
    ),
    "BackupAndRestore in a bucket": _given(
        "BackupAndRestore", "abc://a", "`directory`", "abc://a", "fsspec does not know"
    ),
    "TensorBoard nowhere": _given("TensorBoard", None, "`log_dir`", "must be a path", "None"),
    **{
        f"Keras' {name} below a file": made(
            lambda b, n=name: getattr(keras.callbacks, n)(f"{_below_file(b)}.keras"),
            f"`{argument}`",
            "is a file",
            cure,
        )
        for name, argument, cure in (
            ("ModelCheckpoint", "filepath", "another"),
            ("BackupAndRestore", "backup_dir", "another path"),
        )
    },
    "ModelCheckpoint of an unknown log": _checkpoint(
        "{val_acc}.keras", "`filepath`", "'val_acc'", "use epoch"
    ),
    "ModelCheckpoint of a validation that is none": _checkpoint(
        "{val_loss}.keras", "`filepath`", "'val_loss'", "use epoch"
    ),
    "ModelCheckpoint of a bad format": _checkpoint("{epoch:03q}.keras", "`filepath`", "03q", FORMAT),
    "ModelCheckpoint of an open brace": _checkpoint("{epoch.keras", "`filepath`", "epoch.keras", FORMAT),
    "ModelCheckpoint of no name": _checkpoint("{}.keras", "`filepath`", "no name", FORMAT),
    "ModelCheckpoint of another suffix": _checkpoint("m.ckpt", "filepath", ".keras", "m.ckpt"),
    **{
        f"ModelCheckpoint of weights in {name}": _checkpoint(
            name, "filepath", ".weights.h5", save_weights_only=True
        )
        for name in ("m.keras", "m.h5")
    },
    **{
        f"ModelCheckpoint {argument} of one name": _checkpoint(
            "m.keras",
            rf"`{argument}` \(2\) needs a different name for each file",
            r"put \{epoch\}",
            **{argument: 2},
        )
        for argument in ("keep_best", "keep_last")
    },
    **{
        f"{name}(None)": _given(name, None, f"`{argument}`", "must be a path", "None")
        for name, argument in (
            ("latest_backup", "directory"),
            ("list_backups", "directory"),
            ("read_backup", "path"),
            ("verify_checkpoint", "path"),
        )
    },
}


SETTINGS: dict[str, Use] = {
    **_of("ModelCheckpoint", "monitor", "name of a log", None, 3),
    **_of("ModelCheckpoint", "save_freq", "an int of steps", 0, -1, "batch", 0.5, True, None),
    **_of("ModelCheckpoint", "verbose", "whole number", "yes"),
    **_of("ModelCheckpoint", "initial_value_threshold", "number", "a", NAN),
    **_of("ModelCheckpoint", "keep_best", "whole number", 0, "2", 1.5),
    **_of("ModelCheckpoint", "keep_last", "whole number", 0),
    **_of("ModelCheckpoint", "save_best_only", "True or False", "yes"),
    **_of("BackupAndRestore", "save_freq", "an int of steps", 0, -1, "often", NAN, "0s", "10", 0.15, True),
    **_of("BackupAndRestore", "save_freq", "an int of steps", [1], float("inf"), None),
    **_of("BackupAndRestore", "keep", "whole number", 0, "2", 1.5),
    **_of("BackupAndRestore", "background", "True or False", "no"),
    **_of("BackupAndRestore", "delete_when_done", "True or False", "no"),
    **_of("BackupAndRestore", "save_before_preemption", "True or False", "no"),
    **_of("JSONLines", "every", "whole number", 0, "step", 1.5, True, None),
    **_of("JSONLines", "clock", "function", 3),
    **_of("Profiler", "steps", "(first, last)|whole number", (20, 10), (0, 5), "10", 10, (1.0, 2), (1,), ()),
    **_of("Profiler", "port", "port", 0, 70000, "6006", True),
    **_of("TensorBoard", "update_freq", "whole number", 0, -1, "step", 1.5, None),
    **_of("TensorBoard", "histogram_freq", "whole number", -1, "1", 1.5),
    "TensorBoard of a bad range": made(
        lambda b: callbacks.TensorBoard(str(b.folder), profile_batch=(20, 10)),
        "profile_batch",
        "pair of positive",
        "20",
    ),
    **_of("TensorBoard", "write_graph", "True or False", "no"),
    **_of("TrainingReport", "refresh_seconds", "number", -1, "a", NAN, None),
    **_of("TrainingReport", "gradient_norm", "True or False", "no"),
    **_of("TrainingReport", "config", "dict whose keys are str", "lr=0.1", {1: 2}),
    **_of("TrainingReport", "notes", "None or a str", 3),
    **_of("TrainingReport", "clock", "function", 3),
    **_of("ProgressBar", "stream", "open file", 3, "log.txt"),
    **_of("ProgressBar", "clock", "function", 3),
    **_of("EarlyStopping", "patience", "at least 0|>= 0", -1, monitor="loss"),
    **({} if _keras_rejects_text() else _of("EarlyStopping", "patience", "at least 0", "3", monitor="loss")),
    **_of("EarlyStopping", "start_from_epoch", "at least 0", "2", monitor="loss"),
    **_of("EarlyStopping", "baseline", "number", "a", monitor="loss"),
    **_of("EarlyStopping", "monitor", "name of a log", 3),
    **_of("ReduceLROnPlateau", "patience", "at least 0", "2", monitor="loss"),
    **_of("ReduceLROnPlateau", "factor", "above 0", -1, monitor="loss"),
    **_of("ReduceLROnPlateau", "min_lr", "at least 0", "0", monitor="loss"),
    **{
        f"LearningRateScheduler {what}": _given("LearningRateScheduler", given, *words)
        for what, given, *words in (
            ("of a number", 0.1, "`schedule`", "function", "0.1"),
            ("of a class", ExponentialDecay, "`schedule`", "function"),
            ("of a schedule", ExponentialDecay(0.1, 10, 0.1), "`schedule`", "pass it to the optimizer"),
            ("without argument", lambda: 0.1, "`schedule`", "function"),
            ("gives NaN", lambda epoch: NAN, "`learning_rate`", "nan", "at least 0"),
            ("gives None", lambda epoch: None, "`schedule`", "None", "float"),
        )
    },
    "LambdaCallback of a number": made(
        lambda b: callbacks.LambdaCallback(on_epoch_end=3), "`on_epoch_end`", "function", "3"
    ),
    "LambdaCallback misspelt": made(
        lambda b: callbacks.LambdaCallback(on_epoc_end=print), "`on_epoc_end`", "on_epoch_end"
    ),
    "LambdaCallback without arguments": made(
        lambda b: callbacks.LambdaCallback(on_epoch_end=lambda: 0), "`on_epoch_end`", "logs"
    ),
    **{
        f"{name} of a number": _given(name, 3, f"`{argument}` of `{name}`", "must be .*, such as", "3")
        for name, argument in (("CSVLogger", "filename"), ("RemoteMonitor", "root"))
    },
    "SwapEMAWeights without averages": made(
        lambda b: callbacks.SwapEMAWeights(), "`SwapEMAWeights`", "use_ema=True", "use_ema=False"
    ),
    "CSVLogger of two separators": made(
        lambda b: callbacks.CSVLogger(b.folder / "a.csv", separator="ab"),
        "`separator`",
        "'ab'",
        "one character",
    ),
}
