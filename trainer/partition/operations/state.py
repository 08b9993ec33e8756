"""Constants, reads and writes of variables, and operations that TensorFlow says have effects, but have none here."""

import tensorflow as tf

from ..labels import PARTIAL_SUM, REPLICATED
from ..program import NotPartitioned
from ..sizes.bounds import bounds_of_constant
from ..sizes.size_arrays import as_sizes
from .call import Ruling, View
from .row import add_rows

add_rows(
    "Const",
    numbers=lambda call, number: as_sizes(tf.make_ndarray(call.attr("value"))),
    bounds=lambda call: bounds_of_constant(tf.make_ndarray(call.attr("value"))),
)


def _label_write(view: View) -> Ruling:
    """Label a write of the first input, a variable of which each replica has a copy; the other inputs are whole."""
    if view.labels[0] == PARTIAL_SUM:
        raise NotPartitioned(f"{view.op.name} writes a variable that is summed when it is read")
    return [None, *[REPLICATED] * (len(view.labels) - 1)], []


add_rows("ReadVariableOp", label=lambda view: ([None], [view.labels[0]]), reads=True)
add_rows("VarIsInitializedOp", label=lambda view: ([None], [REPLICATED]), reads=True)
_SCATTERS = "Add Sub Mul Div Min Max Update NdAdd NdSub NdMin NdMax NdUpdate"
add_rows(
    "AssignVariableOp AssignAddVariableOp AssignSubVariableOp ResourceStridedSliceAssign "
    + " ".join(f"ResourceScatter{kind}" for kind in _SCATTERS.split()),
    label=_label_write,
    writes=True,
    effect=(
        "has effects",
        "write outside of it, for example `variable.assign(tf.where(condition, new, variable))`",
    ),
)
_python = "runs Python code, which may have effects"
_instead = "pass `stateful=False` to `tf.numpy_function` if it has none, or compute it in the input pipeline or a callback"
add_rows("PyFunc EagerPyFunc", calls_python=True, effect=(_python, _instead))
_instead = "use `keras.random` with a `keras.random.SeedGenerator`"
add_rows("RngReadAndSkip RngSkip", effect=("draws from a `tf.random.Generator`", _instead))


add_rows(  # it may print this replica's values
    "Assert", label=lambda view: ([REPLICATED, *[None] * (len(view.labels) - 1)], []), harmless=True
)
add_rows("PrintV2 StringFormat LookupTableExportV2 LookupTableSizeV2", harmless=True)
add_rows("VariableShape", of_sizes=True, harmless=True)
