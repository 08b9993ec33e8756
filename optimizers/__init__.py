"""Every optimizer that Keras has, with our pipeline around its update rule, and the ready pieces for its stages."""

from typing import TYPE_CHECKING
from typing import Any as _Any

import keras as _keras

from . import multi_optimizer as _multi_optimizer  # noqa: F401  (registers its class)
from . import schedules as schedules
from .adoption import adopt as adopt
from .adoption import class_for as _class_for
from .adoption import publish as _publish
from .adoption import register_class as register_class
from .building import ensure_built as ensure_built
from .call_options import updates_so_far as updates_so_far
from .optimizer import Optimizer as Optimizer
from .optimizer import apply_contributions as apply_contributions
from .stages.aggregators import HalfPrecisionAggregation as HalfPrecisionAggregation
from .stages.aggregators import PackedAggregation as PackedAggregation
from .stages.aggregators import all_reduce_sum_pairs as all_reduce_sum_pairs
from .stages.aggregators import no_aggregation as no_aggregation
from .stages.run_stages import run_stages as run_stages
from .stages.transformers import AdaptiveClip as AdaptiveClip
from .stages.transformers import AddDecayedWeights as AddDecayedWeights
from .stages.transformers import ClipByGlobalNorm as ClipByGlobalNorm
from .stages.transformers import ClipByNorm as ClipByNorm
from .stages.transformers import ClipByValue as ClipByValue
from .stages.transformers import GradientNoise as GradientNoise
from .stages.transformers import centralize as centralize

if TYPE_CHECKING:
    from .signatures import *  # noqa: F403


OptimizerMap = _keras.optimizers.OptimizerMap

_LATE = {"LossScaleOptimizer": _keras.optimizers.LossScaleOptimizer}
"""Made by a package above this one: imported when it is first used."""


def _published() -> dict[str, type]:
    """A class of ours for every optimizer class of the installed Keras."""
    return {
        name: _publish(cls, __name__)
        for name, cls in vars(_keras.optimizers).items()
        if isinstance(cls, type) and issubclass(cls, _keras.optimizers.Optimizer)
        if cls is not _keras.optimizers.Optimizer and name not in _LATE
    }


globals().update(_published())


if not TYPE_CHECKING:  # a type checker would take every name for one that is found here

    def __getattr__(name: str) -> _Any:
        if name not in _LATE:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return _class_for(_LATE[name])


def get(identifier: _Any) -> _Any:
    """`keras.optimizers.get`, with our pipeline."""
    return adopt(identifier)


def serialize(optimizer: _Any) -> dict[str, _Any]:
    """`keras.optimizers.serialize`."""
    return _keras.optimizers.serialize(optimizer)


def deserialize(config: dict[str, _Any], custom_objects: dict[str, _Any] | None = None) -> _Any:
    """`keras.optimizers.deserialize`, with our pipeline."""
    return adopt(_keras.optimizers.deserialize(config, custom_objects))
