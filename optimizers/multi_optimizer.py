"""Different optimizers for different variables, behind one aggregation and one finite check."""

from collections.abc import Sequence
from typing import Any

import keras

from ..compat.keras_private.optimizers import (
    change_chosen_optimizer,
    find_wrapped_optimizers,
    index_of_optimizer,
)
from ..compat.upstream import need
from ..compat.wrong_use import WrongUse
from ..distribute.arguments import show, takes_arguments
from .adoption import adopt, register_class
from .optimizer import Optimizer
from .optimizer_checks import Pairs
from .saved_state import config_of_stages, with_stages


class MultiOptimizer(keras.optimizers.MultiOptimizer, Optimizer):
    """Keras' `MultiOptimizer`: aggregates, unscales and checks once; then each optimizer transforms and applies its part.

    It owns which variable belongs to which optimizer. Transformers, clipping, decay and accumulation belong to the
    optimizers inside; `gradient_aggregator` belongs here.
    """

    def __init__(
        self, optimizer_map: Any, *args: Any, gradient_aggregator: Any = None, **kwargs: Any
    ) -> None:
        need("`MultiOptimizer`")
        if not isinstance(optimizer_map, keras.optimizers.OptimizerMap) and not (
            callable(optimizer_map)
            and not isinstance(optimizer_map, type)
            and takes_arguments(optimizer_map, 1)
        ):
            raise WrongUse(
                "`optimizer_map` must be a keras.optimizers.OptimizerMap or a function from a variable to its optimizer. "
                f"Received: {show(optimizer_map)}"
            )
        super().__init__(optimizer_map, *args, **kwargs)
        self.gradient_aggregator = gradient_aggregator
        adopt(self)

    def build(self, variables: Sequence[Any]) -> None:
        """Build each optimizer for its variables; raise a ValueError if one of them has its own aggregator."""
        with change_chosen_optimizer(self, adopt):
            super().build(variables)
        for inner in find_wrapped_optimizers(self):
            if inner.gradient_aggregator is not None:
                raise WrongUse(
                    f"`gradient_aggregator` of {inner.name}, inside a MultiOptimizer, would never be called: gradients "
                    "are aggregated once for all. Pass it to the MultiOptimizer."
                )

    def split(self, pairs: Pairs) -> list[tuple[Any, Pairs]]:
        """Return the pairs of each optimizer, without those that have none."""
        parts: list[tuple[Any, Pairs]] = [(inner, []) for inner in find_wrapped_optimizers(self)]
        for gradient, variable in pairs:
            parts[index_of_optimizer(self, variable)][1].append((gradient, variable))
        return [(inner, part) for inner, part in parts if part]

    @property
    def gradient_transformers(self) -> list[Any]:
        """Always empty: transformers belong to the optimizers inside."""
        return []

    @gradient_transformers.setter
    def gradient_transformers(self, stages: Any) -> None:
        if stages:
            raise WrongUse(
                "`gradient_transformers` belong to the optimizers inside a MultiOptimizer: pass them to those. "
                f"Received: {stages!r}"
            )

    apply = Optimizer.apply
    set_weights = keras.optimizers.MultiOptimizer.set_weights

    def get_config(self) -> dict[str, Any]:
        """Return Keras' configuration, and the aggregator if there is one."""
        return super().get_config() | config_of_stages(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
        """Reverse `get_config`."""
        return super().from_config(with_stages(config, custom_objects), custom_objects)


register_class(keras.optimizers.MultiOptimizer, MultiOptimizer)
