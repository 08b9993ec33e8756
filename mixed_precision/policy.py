"""The global policy: in which dtype layers compute and keep their variables, and how the loss is scaled.

It is Keras' own policy object, which a model keeps; the requested loss scale is kept next to it.
"""

import contextlib
import copy
import warnings
import weakref
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import keras

from ..compat.keras_private.layers import layers_of
from ..compat.keras_private.optimizers import scope_of
from ..compat.side_table import SideTable
from ..distribute.arguments import show
from ..optimizers.adoption import adopt
from ..optimizers.loss_scale.loss_scale_optimizer import LossScaleOptimizer
from ..optimizers.loss_scale.scale_rule import positive_scale
from .hardware import warn_if_slow

Policy: TypeAlias = keras.DTypePolicy
LossScale: TypeAlias = float | Literal["dynamic"] | None

POLICIES = ("mixed_float16", "mixed_bfloat16", "float32", "float64")
# "loss_scale" of a policy that `set_global_policy` or `policy_scope` made.
_record_of = SideTable(dict[str, Any]).of
_replaced: list[weakref.ref[Any]] = []


def set_global_policy(name: str | Policy, loss_scale: LossScale = "dynamic") -> None:
    """Set the policy that layers built from now on follow.

    | policy | layers compute in | variables | loss |
    |---|---|---|---|
    | `"mixed_float16"` | float16 | float32 | scaled |
    | `"mixed_bfloat16"` | bfloat16 | float32 | as it is: bfloat16 has float32's range |
    | `"float32"`, `"float64"` | that dtype | that dtype | as it is |

    Args:
        name: one of the names above, that of any other policy of Keras, or a `keras.DTypePolicy`.
        loss_scale: how `compile` scales the loss of a model that computes in float16. `"dynamic"`: see
            `LossScaleOptimizer`. A number above 0, for float16 policies only: always that scale. None: not at all.

    Raises:
        ValueError: the policy is unknown or not for training (`"float16"`), or `loss_scale` is invalid.
        TypeError: `name` or `loss_scale` has a wrong type.

    Context: host, before the model is built; `compile` raises for a model that was built before.

    Examples:
        >>> unisono.mixed_precision.set_global_policy("mixed_bfloat16")
        >>> keras.layers.Dense(1).compute_dtype
        'bfloat16'
        >>> unisono.mixed_precision.set_global_policy("float32")
    """
    policy = _make_policy(name, loss_scale)
    outgoing = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    _replaced[:] = [ref for ref in _replaced if ref() is not None] + [weakref.ref(outgoing)]
    _explain(policy, stacklevel=3)


def global_policy() -> Policy:
    """Return the policy that layers built now follow: Keras' global dtype policy.

    Examples:
        >>> unisono.mixed_precision.global_policy().name
        'float32'
    """
    return keras.config.dtype_policy()


@contextlib.contextmanager
def policy_scope(name: str | Policy, loss_scale: LossScale = "dynamic") -> Iterator[Policy]:
    """Make `name` the global policy for a block, for instance to build one part of a model in float32.

    Its arguments are those of `set_global_policy`. The previous policy is restored after the block, also after an error.

    Yields:
        The policy of the block.

    Examples:
        >>> with unisono.mixed_precision.policy_scope("float64"):
        ...     keras.layers.Dense(1).compute_dtype
        'float64'
    """
    policy = _make_policy(name, loss_scale)
    outer = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        _explain(policy, stacklevel=5)  # contextlib stands between
        yield policy
    finally:
        keras.config.set_dtype_policy(outer)


def loss_scale_of(policy: Policy) -> LossScale:
    """Return the loss scale that goes with `policy`: `"dynamic"`, a float, or None for no scaling.

    A policy that did not come from `set_global_policy` or `policy_scope` (set through Keras, or read from a file) follows
    the global policy of the same name; if there is none, it is dynamic where it computes in float16.
    """
    if policy.compute_dtype != "float16":
        return None
    current = keras.config.dtype_policy()
    of_current = _record_of(current) if current.name == policy.name else {}
    return {"loss_scale": "dynamic", **of_current, **_record_of(policy)}["loss_scale"]


def check_policy_order(model: keras.Model, unless_trained: bool = False) -> None:
    """Raise a `ValueError` if the model was built before its mixed policy was set; `unless_trained`: only if untrained."""
    current, own = keras.config.dtype_policy(), model.dtype_policy
    if current.compute_dtype == current.variable_dtype or not any(ref() is own for ref in _replaced):
        return
    if any(layer.dtype_policy.name == current.name for layer in layers_of(model)):
        return
    optimizer = getattr(model, "optimizer", None)
    if unless_trained and optimizer is not None and int(optimizer.iterations.numpy()) > 0:
        return
    raise ValueError(
        f"The model {model.name!r} was built under policy {own.name!r} and does not follow the later "
        f"set_global_policy({current.name!r}): call set_global_policy before building the model, "
        f"or build it within policy_scope({own.name!r}) to keep {own.name!r}."
    )


def wrap_optimizer(optimizer: Any, model: keras.Model, auto_scale_loss: bool = True) -> Any:
    """Return `optimizer`, with `auto_scale_loss` in a `LossScaleOptimizer` if the model or a layer computes in float16."""
    if optimizer is None:
        return None
    optimizer = adopt(optimizer)
    if isinstance(optimizer, LossScaleOptimizer) or not auto_scale_loss:
        return optimizer
    policies = (layer.dtype_policy for layer in layers_of(model))
    first = next((each for each in policies if each.compute_dtype == "float16"), None)
    loss_scale = None if first is None else loss_scale_of(first)
    if loss_scale is None:
        return optimizer
    scales = ("initial_scale", "min_scale", "max_scale")
    fixed: Any = {} if loss_scale == "dynamic" else dict.fromkeys(scales, loss_scale)
    with scope_of(optimizer):
        return LossScaleOptimizer(optimizer, name="loss_scale_optimizer", **fixed)


def _make_policy(name: Any, loss_scale: Any) -> Policy:
    """Return the policy object, not yet set, with its loss scale."""
    if isinstance(loss_scale, str) and loss_scale != "dynamic":
        raise ValueError(
            f"`loss_scale` must be 'dynamic', a positive number or None. Received: {show(loss_scale)}"
        )
    if loss_scale is not None and loss_scale != "dynamic":
        loss_scale = positive_scale("loss_scale", loss_scale)
    if not isinstance(name, str | keras.DTypePolicy):
        raise TypeError(
            f"`name` must be the name of a policy, such as 'mixed_float16', or a keras.DTypePolicy. Received: "
            f"{name!r} of type {type(name).__name__}"
        )
    known = ", ".join(map(repr, POLICIES))
    try:
        policy = copy.copy(keras.dtype_policies.get(name))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise ValueError(f"Unknown policy {show(name)} as name: use one of {known}.") from error
    if isinstance(name, str) and "float" not in policy.compute_dtype:
        raise ValueError(
            f"Policy {name!r} computes in {policy.compute_dtype}, which has no gradients: use one of {known}."
        )
    if policy.name == "float16":
        raise ValueError(
            "Policy 'float16' is invalid for training, because float16 variables lose small updates: use 'mixed_float16' "
            "(float16 computations, float32 variables), or for inference only "
            "keras.config.set_dtype_policy('float16')."
        )
    if isinstance(loss_scale, float) and policy.compute_dtype != "float16":
        raise ValueError(
            f"`loss_scale={loss_scale:g}` is invalid with policy {policy.name!r}, whose gradients do not "
            "underflow: leave `loss_scale` out, or use policy 'mixed_float16'."
        )
    _record_of(policy)["loss_scale"] = loss_scale
    return policy


def _explain(policy: Policy, stacklevel: int) -> None:
    """Warn about the limits of the policy; after it is set, so that a warning that is an error changes no state."""
    if policy.name == "bfloat16":
        warnings.warn(
            "Policy 'bfloat16' keeps the variables in bfloat16 too, with three significant digits, so small "
            "updates are lost: use 'mixed_bfloat16' for training.",
            stacklevel=stacklevel,
        )
    warn_if_slow(policy.compute_dtype, stacklevel + 1)
