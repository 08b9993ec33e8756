"""Whether a backup belongs to this training run: the table of what identifies a run, and what differs if it does not.

=================  ==============================================  =============================================
name               value                                           a difference means
=================  ==============================================  =============================================
declared           `BackupAndRestore(identity=)`                   you say that it is another run
model variables    name, shape and dtype of each                   another architecture: values have no place
settings           configurations, functions by source and values  other layers, update rules or losses
seeds              those set before the first step                 another order, other random numbers
data, validation   checksums of samples and pipelines, sizes       other batches
versions           of Keras, TensorFlow, Python and these sums     that checksums of code may differ: no difference
=================  ==============================================  =============================================

`docs/design/0004-backups.md` lists what may differ in a resumed run.
"""

import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.seed_generators import seeds_as_set
from ...compat.keras_private.variables import raw_value
from ..trained_model import FitState, TrainedModel
from . import described_values

_MOST_LISTED = 12


def identity(model: TrainedModel, fit_state: FitState, declared: str | None = None) -> dict[str, Any]:
    """Return what distinguishes this run from others and is constant: settings, seeds, content of the data.

    JSON values. What cannot be known is None. It can take a second where the data is large; call it once in a `fit`.
    """

    def of_data(source: Any) -> Any:
        return source.identity() if hasattr(source, "identity") else None

    return {
        **({} if declared is None else {"declared": declared}),
        "settings": described_values.settings_of(model),
        "seeds": seeds_as_set(),
        "data": of_data(fit_state.source),
        "validation data": of_data(fit_state.validation),
        "versions": {
            "keras": keras.__version__,
            "tensorflow": tf.__version__,
            "python": ".".join(platform.python_version_tuple()[:2]),
            "functions": "by source",  # backups without it have checksums of compiled code
        },
    }


def fingerprint(
    variables: Mapping[str, Sequence[Any]],
    fit_state: FitState,
    source_state: Mapping[str, Any],
    who: Mapping[str, Any],
) -> dict[str, Any]:
    """Return what must be equal for a backup to fit, as JSON values.

    These are the `variables` of `variables_of`, the data, and `who`, the `identity`.
    """

    def described(v: Any) -> list[Any]:
        return [
            getattr(v, "path", None) or v.name,
            list(map(int, v.shape)),
            tf.as_dtype(raw_value(v).dtype).name,
        ]

    spec, samples = getattr(fit_state.source, "spec", None), source_state.get("rows")
    layout = [
        f"{part.dtype.name}{part.shape[1:] if part.shape.rank else part.shape}"
        if isinstance(part, tf.TensorSpec)
        else type(part).__name__
        for part in tf.nest.flatten(spec)
    ]
    return {
        "variables": {group: list(map(described, members)) for group, members in variables.items()},
        "data": {
            "rows": None if samples is None else int(samples),
            "batch_rows": getattr(fit_state.source, "batch_size", None),
            "steps_per_epoch": fit_state.steps_per_epoch,
            "layout": None if spec is None else layout,
        },
        "identity": dict(who),
    }


def differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Yield one phrase for each thing that differs between two fingerprints; empty when the backup fits."""

    def of_variables(*groups: str) -> Iterator[str]:
        for group in groups:
            kind = f"{group} variable"
            old, new = (
                [_show_variable(*entry) for entry in each["variables"][group]] for each in (saved, now)
            )
            if len(old) == len(new):
                yield from (f"{kind} {a} in the backup, {b} now" for a, b in zip(old, new) if a != b)
            else:
                yield f"{len(old)} {kind}s in the backup, {len(new)} now"
                yield from (f"{kind} {entry} only in the backup" for entry in old if entry not in new)
                yield from (f"{kind} {entry} only now" for entry in new if entry not in old)

    old, new = saved["identity"], now["identity"]
    found = described_values.differences("identity", old.get("declared"), new.get("declared"))
    found = [*found, *of_variables("model", "other")]
    same_versions = old["versions"] == new["versions"]
    parts = ["optimizer", "other optimizers", "loss", "loss_weights"]
    for part in parts if found else [*parts, "model", "code"]:  # its variables say it better
        old_part, new_part = old["settings"].get(part), new["settings"].get(part)
        if same_versions or part in old["settings"]:
            what = "model" if part == "code" else part
            found += described_values.differences(what, old_part, new_part, same_versions)
    found += described_values.differences("seed of", old["seeds"], new["seeds"])
    for part in ("data", "validation data"):
        found += _find_differences(part, old[part], new[part], same_versions)
    found = found or [*of_variables("optimizer", "metrics")]
    found += _find_differences("data", saved["data"], now["data"])
    if len(found) > _MOST_LISTED:
        found[_MOST_LISTED:] = [f"and {len(found) - _MOST_LISTED} more"]
    return found


def _find_differences(what: str, saved: Any, now: Any, same_versions: bool = True) -> list[str]:
    """Return what differs and is known on both sides. A graph may have another checksum in another version of TensorFlow."""
    names = [name for name in saved or {} if name in (now or {}) and (same_versions or name != "pipeline")]
    return [
        f"{what} {name.replace('batch_rows', 'batch size').replace('rows', 'samples')}: "
        f"{saved[name]} in the backup, {now[name]} now"
        for name in names
        if saved[name] != now[name] and None not in (saved[name], now[name])
    ]


def _show_variable(path: str, shape: list[int], dtype: str) -> str:
    """Return a variable without the numbers that Keras appends when a process makes several models: `dense_3/kernel`."""
    return "/".join(re.sub(r"_\d+(?=_|$)", "", part) for part in path.split("/")) + f" {dtype}{shape}"
