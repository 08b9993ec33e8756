"""Converts array-like inputs to NumPy arrays and tensors: pandas, SciPy, JAX, PyTorch, lists of numbers.

Dtypes follow Keras: floating point numbers become `keras.config.floatx()`; integers, booleans, strings are unchanged.
"""

import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...distribute.arguments import show
from .batch import name_leaves
from .sparse import sparse_rows
from .value_checks import check_values

_SCALARS = (bool, int, float, complex, str, bytes, np.generic)


def _standard_nest(structure: Any) -> Any:
    """Return a nest with tuples for lists, as in `tf.data`; a list of Python numbers or strings alone is one array."""
    if isinstance(structure, dict):
        return {key: _standard_nest(part) for key, part in structure.items()}
    if not isinstance(structure, list | tuple):
        return structure
    named = hasattr(structure, "_fields")
    if not named and _holds_scalars(structure):
        return np.asarray(structure)
    parts = [_standard_nest(part) for part in structure]
    return type(structure)(*parts) if named else tuple(parts)


def _holds_scalars(structure: Any) -> bool:
    if isinstance(structure, list | tuple):
        return len(structure) > 0 and all(_holds_scalars(part) for part in structure)
    return isinstance(structure, _SCALARS)


def host_arrays(name: str, structure: Any, complaint: str) -> Any:
    """Return the argument `name`, a nest of array-like objects, as a nest of NumPy arrays and tensors, see `_standard_nest`.

    A leaf that is not an array raises a TypeError with the message `complaint`, which contains `{place}` and `{kind}`.
    """
    try:
        structure = _standard_nest(structure)
    except ValueError as error:  # NumPy's, for irregular lists
        raise ValueError(
            f"`{name}` has lists of different lengths, which are not an array: pass a tf.RaggedTensor "
            f"(tf.ragged.constant), or pad them to one length. Received: {show(structure)}"
        ) from error
    for place, leaf in name_leaves(name, structure):
        if not is_array(leaf):
            raise TypeError(complaint.format(place=place, kind=type(leaf).__name__))
    return tf.nest.map_structure(as_host_array, structure)


def standard_arrays(x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Return nests of NumPy arrays and tensors, None for None; weights without targets are dropped, as in Keras."""
    complaint = "`{place}` is a {kind}: pass arrays or tensors with samples."
    sources = (
        " `fit`, `evaluate` and `predict` also take a tf.data.Dataset, a keras.utils.PyDataset, a torch DataLoader or a "
        "generator of batches."
    )
    x = host_arrays("x", x, complaint + sources)
    y, sample_weight = host_arrays("y", y, complaint), host_arrays("sample_weight", sample_weight, complaint)
    if y is None or sample_weight is None:
        return x, y, None
    if not tf.nest.flatten(sample_weight):
        raise ValueError(f"`sample_weight` must have at least one array. Received: {show(sample_weight)}")
    check_values(sample_weight)
    if tf.nest.is_nested(y) and not tf.nest.is_nested(sample_weight):  # one array counts for every output
        sample_weight = tf.nest.map_structure(lambda _: sample_weight, y)
    return x, y, sample_weight


def is_array(leaf: Any) -> bool:
    """Return whether `as_host_array` accepts it."""
    if isinstance(leaf, keras.KerasTensor):  # a symbolic tensor, without values
        return False
    return (
        leaf is None
        or isinstance(leaf, np.ndarray | tf.Tensor | tf.Variable | tf.experimental.ExtensionType)
        or tf.is_tensor(leaf)
        or _is_scipy_sparse(leaf)
        or _is_defined_in(leaf, "jax.experimental.sparse")
        or hasattr(leaf, "__array__")
    )


def as_host_array(leaf: Any) -> Any:
    """Return an array (see `is_array`), not yet cast or read: dense ones as NumPy's, others as tensors."""
    if leaf is None:
        return None
    if isinstance(leaf, tf.Variable | keras.Variable):
        return tf.convert_to_tensor(leaf)
    if tf.is_tensor(leaf) or isinstance(leaf, tf.experimental.ExtensionType):
        return leaf
    if _is_scipy_sparse(leaf):
        rows = leaf.tocsr().tocoo()
        indices = np.stack([rows.row, rows.col], 1).astype("int64")
        return tf.sparse.reorder(tf.SparseTensor(indices, rows.data, rows.shape))
    if _is_defined_in(leaf, "jax.experimental.sparse"):
        return tf.sparse.reorder(tf.SparseTensor(np.asarray(leaf.indices), np.asarray(leaf.data), leaf.shape))
    if _is_defined_in(leaf, "torch"):
        leaf = leaf.detach().cpu()
        leaf = leaf.float() if str(leaf.dtype) == "torch.bfloat16" else leaf
    elif _is_pandas(leaf, "Series"):
        leaf = leaf.to_numpy()[:, None]
    elif _is_pandas(leaf, "DataFrame"):
        leaf = leaf.to_numpy()
    return _check_numpy(leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf))


def _check_numpy(array: np.ndarray) -> Any:
    if array.dtype.kind in "US":
        return tf.constant(array)
    if array.dtype == object:
        return _from_objects(array)
    try:
        tf.as_dtype(array.dtype)
    except TypeError:
        raise TypeError(
            f"An array has dtype {array.dtype}, which TensorFlow does not support; convert it to numbers or strings first."
        ) from None
    return array


def _from_objects(array: np.ndarray) -> Any:
    flat = array.ravel()
    if all(isinstance(item, str | bytes) for item in flat):
        return tf.constant(array.tolist(), tf.string, shape=array.shape)
    if all(isinstance(item, bool | np.bool_) for item in flat):
        return array.astype(bool)
    if all(isinstance(item, int | float | np.number | np.bool_) for item in flat):
        whole = all(isinstance(item, int | np.integer | np.bool_) for item in flat)
        return array.astype("int64" if whole else keras.config.floatx())
    kinds = sorted({type(item).__name__ for item in flat})
    raise TypeError(
        f"An array of dtype object contains {', '.join(kinds)}; only strings, numbers and booleans can be converted: "
        "convert it first, or pass samples of different lengths as a tf.RaggedTensor."
    )


def _is_scipy_sparse(leaf: Any) -> bool:
    return type(leaf).__module__.startswith("scipy.sparse") and hasattr(leaf, "tocsr")


def _is_pandas(leaf: Any, name: str) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(leaf, getattr(pandas, name))


def _is_defined_in(leaf: Any, package: str) -> bool:
    return any(f"{kind.__module__}.".startswith(f"{package}.") for kind in type(leaf).__mro__)


def cast_floats(leaf: Any) -> Any:
    """Cast a NumPy array or tensor with floating point numbers to floatx, as Keras does; others are unchanged."""
    if not isinstance(leaf, np.ndarray | tf.Tensor | tf.RaggedTensor | tf.SparseTensor):
        return leaf
    dtype = tf.as_dtype(leaf.dtype)
    wanted = tf.as_dtype(keras.config.floatx())
    if not dtype.is_floating or dtype == wanted:
        return leaf
    if isinstance(leaf, np.ndarray):
        return leaf.astype(wanted.as_numpy_dtype)
    return tf.cast(leaf, wanted)


def resident_size(leaf: Any) -> int:
    """Return the bytes of an array or a tensor of numbers after the cast, wherever it is; 0 for other types."""
    if not isinstance(leaf, np.ndarray | tf.Tensor) or tf.as_dtype(leaf.dtype) == tf.string:
        return 0
    dtype = tf.as_dtype(leaf.dtype)
    return int(np.prod(leaf.shape)) * tf.as_dtype(keras.config.floatx() if dtype.is_floating else dtype).size


def as_resident(leaf: Any) -> Any:
    """Return the array as a tensor in the memory of the current device that supports gathering samples."""
    leaf = cast_floats(leaf)
    if isinstance(leaf, tf.SparseTensor):
        return sparse_rows(leaf)
    if isinstance(leaf, np.ndarray):
        return tf.constant(leaf)
    return tf.identity(leaf) if isinstance(leaf, tf.Tensor) else leaf
