"""Agreements of the workers of one loop between compiled calls: the number of next steps, and whether to continue."""

import hashlib
import signal
from collections.abc import Iterator, Mapping
from typing import Any

from ...distribute.workers.agreement import check_same_everywhere, gather_numbers, spans_workers
from ...state.identity.described_values import settings_of
from ...state.trained_model import TrainedModel
from ..inputs.same_input import check_same_data, describe_counts
from ..inputs.sources.arrays import ArraySource
from ..inputs.sources.dataset_source import DatasetSource
from ..inputs.sources.source import Source


class Workers:
    """The agreement of all workers about one loop. With one worker it does nothing.

    Callbacks end the loop with the attribute `stop` of the model: "stop_training", "stop_evaluating" or "stop_predicting".
    """

    def __init__(self, model: TrainedModel, stop: str) -> None:
        self._model, self._stop = model, stop
        self._strategy = model.distribute_strategy
        self.several = spans_workers(self._strategy)
        self._begun = self._checked = False

    def settle(self, steps: int, source: Source | None = None) -> int:
        """Return the fewest steps that a worker wants, 0 if one ends the loop; share requests to exit. One all-reduce.

        A `source` of the same batches everywhere that has ended on some workers alone is a ValueError on all.
        """
        if not self.several:
            return steps
        state = self._model.fit_state
        asked = (
            0 if state is None or state.asked_to_exit is None else int(signal.Signals[state.asked_to_exit])
        )
        stop = self._begun and bool(getattr(self._model, self._stop, False))
        self._begun = True
        position = None if source is None or source.per_worker else source.position
        left, taken = (1, 0) if position is None else (position.count_left(1), position.taken)
        rows = gather_numbers([steps, stop, asked, left, taken], self._strategy)
        if any(row[3:] != rows[0][3:] for row in rows):
            raise ValueError(describe_counts([f"{row[4]:.0f}{'' if row[3] else ' (all)'}" for row in rows]))
        number = int(max(row[2] for row in rows))
        if state is not None and number:
            state.save_and_exit = signal.Signals(number).name
        if any(row[1] for row in rows):
            setattr(self._model, self._stop, True)
            return 0
        return int(min(row[0] for row in rows))

    def is_stopped(self) -> bool:
        """Return whether any worker wants to end the loop."""
        if not self.several:
            return bool(getattr(self._model, self._stop))
        self._begun = True
        return self.settle(1) == 0

    def check_input(self, source: Source) -> None:
        """Reject inputs that differ between workers, before steps on them: a `ValueError` on all workers."""
        once = isinstance(source, ArraySource | DatasetSource)  # the others change in each compiled call
        if not (once and self._checked):
            check_same_data(source, self._strategy)
        self._checked = True

    def check_pass(self, source: Source) -> None:
        """Reject datasets that yielded different batches on different workers, at the end of a pass."""
        if isinstance(source, DatasetSource):
            self.settle(0, source)
            check_same_data(source, self._strategy, whole=True)


def check_same_begin(model: TrainedModel) -> None:
    """Reject a `fit` that another worker does not begin now, or begins with a different model, before any exchange."""
    if spans_workers(model.distribute_strategy):
        count = len(model.variables)
        check_same_everywhere(
            {"the number of the model's variables": count}, "fit", model.distribute_strategy
        )


def _leaves(what: str, settings: Any) -> Iterator[tuple[str, Any]]:
    """Yield each setting within `settings` with its name: "activation of layers[1] of the model"."""
    if not isinstance(settings, Mapping):
        yield what, settings
        return
    for key, value in settings.items():
        if isinstance(value, list):
            for number, item in enumerate(value):
                yield from _leaves(f"{key}[{number}] of {what}", item)
        else:
            yield from _leaves(f"{key} of {what}", value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check_same_fit(
    model: TrainedModel, source: Source, validation: Source | None, arguments: Mapping[str, Any]
) -> None:
    """Reject a `fit` of a built model that differs between workers: `ValueError` on all of them.

    `arguments` are JSON values that must be the same, too. Raise a `TimeoutError` if a worker does not reach its `fit`.
    """
    if not spans_workers(model.distribute_strategy):
        return
    settings = settings_of(model)
    variables = " ".join(
        f"{v.name}:{v.dtype}{tuple(v.shape)}{'' if v.trainable else '!'}" for v in model.variables
    )
    values = {
        "the number of the model's weights": model.count_params(),
        "the model's variables (a digest of their names, shapes and dtypes)": _digest(variables),
        **{f"the settings of the {part} (a digest)": _digest(repr(each)) for part, each in settings.items()},
        "the kind of input": type(source).__name__,
        **arguments,
    }
    for name, part in (("training", source), ("validation", validation)):
        if part is not None and not part.per_worker:
            values[f"the number of {name} batches (steps) in an epoch"] = part.steps_per_epoch
            values[f"the size of a {name} batch"] = part.batch_size
            values[f"the number of {name} samples"] = getattr(part.position, "samples", None)
            values[f"the structure of a {name} batch"] = repr(part.spec)
            values[f"the order of the {name} samples"] = part.position.identity()
            values[f"`class_weight` of {name}"] = part.class_weights
    try:
        check_same_everywhere(values, "fit", model.distribute_strategy)
    except ValueError:  # raised on all workers, as each differs from one at least
        each = {name: value for part in settings for name, value in _leaves(f"the {part}", settings[part])}
        check_same_everywhere(each, "fit", model.distribute_strategy)
        raise
    for part in filter(None, (source, validation)):
        check_same_data(part, model.distribute_strategy)
