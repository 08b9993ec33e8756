"""The arguments of `fit`, and the inputs that they describe."""

import dataclasses
import random
from typing import Any

import keras

from ...callbacks.callback import find_named_generators
from ...callbacks.fast_dev_run import one_batch_of_everything
from ...compat.upstream_places import unpack_x_y_sample_weight
from ...distribute.workers.agreement import from_chief
from ...state.trained_model import TrainedModel
from .. import fit_checks
from ..inputs import Source, make_source, split_for_validation
from ..inputs.input_checks import name_arguments
from ..inputs.sources.derived_inputs import first_batches
from ..inputs.sources.make_source import kind_of
from .checks.batch_checks import check_batches


@dataclasses.dataclass
class FitArguments:
    """The arguments of `fit`, checked; `batch_size` is the global batch."""

    model: dataclasses.InitVar[TrainedModel]
    x: Any = None
    y: Any = None
    batch_size: int | None = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: Any = True
    class_weight: Any = None
    sample_weight: Any = None
    initial_epoch: int = 0
    steps_per_epoch: int | None = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: Any = 1
    per_replica_batch_size: dataclasses.InitVar[int | None] = None
    fast_dev_run: bool = False
    overfit_batches: int | None = None

    def __post_init__(self, model: TrainedModel, per_replica_batch_size: int | None) -> None:
        self.batch_size = fit_checks.global_batch_size(model, self.x, self.batch_size, per_replica_batch_size)
        fit_checks.check_fit(model, self)
        if self.fast_dev_run:
            self.callbacks, self.validation_freq = one_batch_of_everything(self.callbacks), 1


def sources(model: TrainedModel, a: FitArguments) -> tuple[Source, Source | None]:
    """Return the inputs of training and of validation (None without one). Context: host, on every worker."""
    strategy = model.distribute_strategy
    x, y, sample_weight, validation_data = a.x, a.y, a.sample_weight, a.validation_data
    if a.validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split_for_validation(
            x, y, sample_weight, validation_split=a.validation_split
        )
    batch_size, steps, shuffle = a.batch_size, a.steps_per_epoch, a.shuffle
    if a.overfit_batches is not None:
        x, y, sample_weight, batch_size = first_batches(
            x, y, sample_weight, a.overfit_batches, batch_size, steps
        )
        steps, shuffle = None, False
    named = find_named_generators(keras.tree.flatten(a.callbacks))
    source = make_source(
        x,
        y,
        sample_weight,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=shuffle,
        class_weight=a.class_weight,
        seed=int(from_chief([float(_peek_seed())], strategy)[0]) if shuffle else 0,
        strategy=strategy,
        custom_step=model._overrides_step("train_step"),
        named=named,
    )
    if validation_data is None:
        return source, None
    val_x, val_y, val_weight = unpack_x_y_sample_weight(validation_data)
    val_size = a.validation_batch_size
    names = {"batch_size": "validation_batch_size", "steps_per_epoch": "validation_steps"}
    with name_arguments("validation_data", **names):
        if val_size is None and kind_of(val_x) == "array":
            val_size = a.batch_size
        validation = make_source(
            val_x,
            val_y,
            val_weight,
            batch_size=val_size,
            steps_per_epoch=a.validation_steps,
            strategy=strategy,
            other=source,
            custom_step=model._overrides_step("test_step"),
            named=named,
        )
        check_batches(model, validation.spec, "test_step")
    return source, validation


def _peek_seed() -> int:
    """Peek at the next number of Python's generator, so that layers built now get the weights that Keras would make."""
    stream = random.Random()
    stream.setstate(random.getstate())
    return draw_seed(stream)


def draw_seed(stream: Any = random) -> int:
    """Return the next shuffle seed of a generator of Python: by default of the global one."""
    return stream.randrange(2**31)
