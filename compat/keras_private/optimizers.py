"""Private state of Keras' optimizers."""

import contextlib
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import keras
import tensorflow as tf

from ..upstream_places import KerasOptimizer
from . import private_method


def track_apart(optimizer: keras.optimizers.Optimizer, name: str, variable: keras.Variable) -> None:
    """Make `variable` an attribute that `tf.train.Checkpoint` saves, but none of Keras' own list of variables."""
    optimizer.__dict__[name] = variable
    optimizer._track_trackable(variable, name, overwrite=True)


def know_variable(optimizer: keras.optimizers.Optimizer, variable: Any, index: int) -> None:
    """Let the optimizer find the state of its variable number `index` by another variable as well."""
    optimizer._trainable_variables_indices[optimizer._var_key(variable)] = index


def overwritten_by_gradient(variable: Any) -> bool:
    """Return whether `variable` takes its "gradient" as its new value, like the scales of Keras' float8 layers."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def build_base_optimizer(optimizer: keras.optimizers.LossScaleOptimizer, variables: list[Any]) -> None:
    """Call `Optimizer.build`, past `LossScaleOptimizer.build`, which would create the scale's variables again."""
    KerasOptimizer.build(optimizer, variables)


def set_strategy(optimizer: keras.optimizers.Optimizer, strategy: Any) -> None:
    """Note that the variables of `optimizer` belong to `strategy`."""
    optimizer._distribution_strategy = strategy


def scope_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the scope of the optimizer's strategy; a null context where one is active, into which it is moved later."""
    strategy = optimizer_strategy(optimizer)
    if tf.distribute.has_strategy() or strategy is tf.distribute.get_strategy():
        return contextlib.nullcontext()
    return strategy.scope()


call_count = attrgetter("_iterations")
"""The variable that counts calls; with accumulation several calls make one update."""
own_variables = attrgetter("_variables")
"""The variables of `optimizer` itself, without those of nested optimizers."""
trained_variables = attrgetter("_trainable_variables")
"""The variables that `optimizer` was built for."""
own_learning_rate = attrgetter("_learning_rate")
"""The learning rate as it was given: a variable, a schedule or a function."""
accumulators_of = attrgetter("_accumulated_gradients")
"""The variables that accumulate gradients, one for each trained variable."""
averages_of = attrgetter("_model_variables_moving_average")
"""The moving average of each trained variable, or None."""
optimizer_strategy = attrgetter("_distribution_strategy")
"""The `tf.distribute.Strategy` under which `optimizer` made its variables."""
variable_key = private_method("_var_key")
"""`variable_key(optimizer, variable)`: the key under which it knows the variable."""
decays = private_method("_use_weight_decay")
"""`decays(optimizer, variable)`: whether weight decay is applied to the variable."""
check_known = private_method("_check_variables_are_known")
"""`check_known(optimizer, variables)` raises for variables that it was not built for."""


def accumulator_of(optimizer: keras.optimizers.Optimizer, variable: Any) -> Any:
    """Return the variable that accumulates the gradients of `variable`."""
    return optimizer._accumulated_gradients[optimizer._get_variable_index(variable)]


def state_of(optimizer: keras.optimizers.Optimizer) -> Callable[[Any], list[Any]]:
    """Return the optimizer state of a trained variable: its item in each list with one per variable, such as momentums."""
    number = len(trained_variables(optimizer))
    every = own_variables(optimizer)  # count, rate and all state, in the order of creation
    lists = [each for each in vars(optimizer).values() if isinstance(each, list) and each is not every]
    lists = [each for each in lists if len(each) == number]

    def state(variable: Any) -> list[Any]:
        index = optimizer._get_variable_index(variable)
        return [each[index] for each in lists if isinstance(each[index], keras.Variable)]

    return state


def find_wrapped_optimizers(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Return the optimizers in a `MultiOptimizer`; none in any other."""
    return list(getattr(optimizer, "_inner_optimizers", ()))


def index_of_optimizer(optimizer: Any, variable: Any) -> int:
    """Return the number, in `find_wrapped_optimizers`, of the optimizer with which a `MultiOptimizer` trains `variable`."""
    return optimizer._var_to_optimizer_idx[optimizer._var_key(variable)]


@contextlib.contextmanager
def change_chosen_optimizer(optimizer: Any, change: Callable[[Any], Any]) -> Iterator[None]:
    """Let a `MultiOptimizer` use, inside, what `change` makes of the optimizer that it chooses for a variable."""
    choose = optimizer._optimizer_map
    optimizer.__dict__["_optimizer_map"] = lambda variable: change(choose(variable))
    try:
        yield
    finally:
        optimizer.__dict__["_optimizer_map"] = choose
