"""Every optimizer that Keras has, with our pipeline around its update rule, and the ready pieces for its stages."""

from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

import keras as _keras

from .adoption import adopt as adopt
from .adoption import class_for as _class_for
from .adoption import publish as _publish
from .adoption import register_class as register_class
from .aggregators import HalfPrecisionAggregation as HalfPrecisionAggregation
from .aggregators import PackedAggregation as PackedAggregation
from .aggregators import all_reduce_sum_pairs as all_reduce_sum_pairs
from .aggregators import no_aggregation as no_aggregation
from .building import ensure_built as ensure_built
from .call_options import updates_so_far as updates_so_far
from .optimizer import Optimizer as Optimizer
from .optimizer import apply_contributions as apply_contributions
from .pipeline import run_stages as run_stages

if _TYPE_CHECKING:
    from keras.optimizers import *  # noqa: F403


def _publish_all() -> list[str]:
    """Makes a class of ours for every optimizer class of the installed Keras."""
    made = []
    for name, cls in vars(_keras.optimizers).items():
        if isinstance(cls, type) and issubclass(cls, _keras.optimizers.Optimizer):
            if cls is not _keras.optimizers.Optimizer:
                globals()[name] = _publish(cls, __name__)
                made.append(name)
    return made


_published = _publish_all()


def get(identifier: _Any) -> _Any:
    """`keras.optimizers.get`, with our pipeline."""
    return adopt(identifier)


def serialize(optimizer: _Any) -> dict[str, _Any]:
    """`keras.optimizers.serialize`."""
    return _keras.optimizers.serialize(optimizer)


def deserialize(config: dict[str, _Any], custom_objects: dict[str, _Any] | None = None) -> _Any:
    """`keras.optimizers.deserialize`, with our pipeline."""
    return adopt(_keras.optimizers.deserialize(config, custom_objects))
