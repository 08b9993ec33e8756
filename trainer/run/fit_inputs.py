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
from ..inputs import GivenData, Reading, Source, make_source
from ..inputs.input_checks import name_arguments
from .checks.batch_checks import check_batches


@dataclasses.dataclass
class FitArguments:
    """The arguments of `fit`, checked; `data` are those that say what is read, of which `batch_size` is the global batch."""

    model: dataclasses.InitVar[TrainedModel]
    x: dataclasses.InitVar[Any] = None
    y: dataclasses.InitVar[Any] = None
    batch_size: dataclasses.InitVar[int | None] = None
    epochs: int = 1
    verbose: Any = "auto"
    callbacks: Any = None
    validation_split: float = 0.0
    validation_data: Any = None
    shuffle: Any = True
    class_weight: Any = None
    sample_weight: dataclasses.InitVar[Any] = None
    initial_epoch: int = 0
    steps_per_epoch: dataclasses.InitVar[int | None] = None
    validation_steps: int | None = None
    validation_batch_size: int | None = None
    validation_freq: Any = 1
    per_replica_batch_size: dataclasses.InitVar[int | None] = None
    fast_dev_run: bool = False
    overfit_batches: int | None = None

    def __post_init__(self, model: TrainedModel, *given: Any) -> None:
        x, y, batch_size, sample_weight, steps_per_epoch, per_replica_batch_size = given
        data = GivenData(x, y, sample_weight, batch_size, steps_per_epoch)
        self.data = fit_checks.with_global_batch(model, data, per_replica_batch_size)
        fit_checks.check_fit(model, self)
        if self.fast_dev_run:
            self.callbacks, self.validation_freq = one_batch_of_everything(self.callbacks), 1


def sources(model: TrainedModel, a: FitArguments) -> tuple[Source, Source | None]:
    """Return the inputs of training and of validation (None without one). Context: host, on every worker."""
    strategy = model.distribute_strategy
    data, validation_data, shuffle = a.data, a.validation_data, a.shuffle
    if a.validation_split and validation_data is None:
        data, validation_data = data.split(a.validation_split)
    if a.overfit_batches is not None:
        data, shuffle = data.first(a.overfit_batches), False
    how = Reading(
        strategy,
        custom_step=model._overrides_step("train_step"),
        shuffle=shuffle,
        seed=int(from_chief([float(_peek_seed())], strategy)[0]) if shuffle else 0,
        class_weight=a.class_weight,
        named=find_named_generators(keras.tree.flatten(a.callbacks)),
    )
    source = make_source(data, how)
    if validation_data is None:
        return source, None
    names = {"batch_size": "validation_batch_size", "steps_per_epoch": "validation_steps"}
    with name_arguments("validation_data", **names):
        x, y, sample_weight = unpack_x_y_sample_weight(validation_data)
        given = GivenData(x, y, sample_weight, a.validation_batch_size, a.validation_steps)
        if given.batch_size is None and given.has_arrays:
            given = dataclasses.replace(given, batch_size=a.data.batch_size)
        how = Reading(strategy, custom_step=model._overrides_step("test_step"), named=how.named, other=source)
        validation = make_source(given, how)
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
