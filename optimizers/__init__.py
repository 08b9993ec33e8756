"""Every optimizer that Keras has, with our stages around its update rule, and the ready pieces for these stages."""

from typing import TYPE_CHECKING
from typing import Any as _Any

import keras as _keras

from ..compat.keras_private.serialization import our_classes as _our_classes
from ..compat.upstream import need as _need
from . import multi_optimizer as _multi_optimizer  # noqa: F401  (registers its class)
from . import schedules
from .adoption import adopt
from .adoption import publish as _publish
from .loss_scale.loss_scale_optimizer import LossScaleOptimizer
from .optimizer import Optimizer
from .stages.aggregators import (
    HalfPrecisionAggregation,
    PackedAggregation,
    all_reduce_sum_pairs,
    no_aggregation,
)
from .stages.call_options import updates_so_far
from .stages.transformers import (
    AdaptiveClip,
    AddDecayedWeights,
    ClipByGlobalNorm,
    ClipByNorm,
    ClipByValue,
    GradientNoise,
    centralize,
)

if TYPE_CHECKING:
    from .signatures import *  # noqa: F403

_need("Unisono")
OptimizerMap = _keras.optimizers.OptimizerMap

_published = {
    name: _publish(cls, __name__)
    for name, cls in vars(_keras.optimizers).items()
    if isinstance(cls, type) and issubclass(cls, _keras.optimizers.Optimizer)
    if cls not in (_keras.optimizers.Optimizer, _keras.optimizers.LossScaleOptimizer)
}
globals().update(_published)

__all__ = [
    "AdaptiveClip",
    "AddDecayedWeights",
    "ClipByGlobalNorm",
    "ClipByNorm",
    "ClipByValue",
    "GradientNoise",
    "HalfPrecisionAggregation",
    "LossScaleOptimizer",
    "Optimizer",
    "OptimizerMap",
    "PackedAggregation",
    "adopt",
    "all_reduce_sum_pairs",
    "centralize",
    "deserialize",
    "get",
    "no_aggregation",
    "schedules",
    "serialize",
    "updates_so_far",
]
__all__ += _published  # pyright: ignore[reportUnsupportedDunderAll]  (signatures.pyi names them)


def __dir__() -> list[str]:
    return sorted(__all__)


def get(identifier: _Any) -> Optimizer:
    """Get an optimizer as `keras.optimizers.get` does; the result is a `unisono.optimizers.Optimizer`.

    Examples:
        >>> isinstance(unisono.optimizers.get("adam"), unisono.optimizers.Adam)
        True
    """
    with _our_classes():
        return adopt(identifier)


def serialize(optimizer: _Any) -> _Any:
    """Serialize as `keras.optimizers.serialize` does; `deserialize` reverses it.

    Examples:
        >>> config = unisono.optimizers.serialize(unisono.optimizers.SGD(momentum=0.9))
        >>> unisono.optimizers.deserialize(config).momentum
        0.9
    """
    return _keras.optimizers.serialize(optimizer)


def deserialize(config: dict[str, _Any], custom_objects: dict[str, _Any] | None = None) -> Optimizer:
    """Deserialize as `keras.optimizers.deserialize` does; the result is a `unisono.optimizers.Optimizer`."""
    with _our_classes():
        return adopt(_keras.optimizers.deserialize(config, custom_objects))
