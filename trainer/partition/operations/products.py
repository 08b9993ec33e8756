"""Products: operations in the notation of einsum, attention, biases, filters."""

from collections.abc import Callable
from typing import Any

from ....distribute.attention.operation import BACKWARD, FORWARD, letters_of
from ..labels import PARTIAL_SUM
from ..sizes.size import broadcast_extent
from .call import Call, name_axes
from .row import COMPARES, add_rows, is_factor
from .terms import PRODUCT, SUM, Terms


def _find_matrix_terms(first: str, second: str) -> Callable[[Call], Terms]:
    """Return the terms of a product of matrices that may be transposed, by these attributes; axes before are broadcast."""

    def find_terms(call: Call) -> Terms:
        shapes = [call.shape(number) for number in (0, 1)]
        names = name_axes(max(map(len, shapes)) - 2)
        ends = ["KI" if call.attr(first) else "IK", "JK" if call.attr(second) else "KJ"]
        leads = [zip(names[len(names) - len(shape) + 2 :], shape) for shape in shapes]
        terms = ["".join("1" if n == 1 else name for name, n in lead) + end for lead, end in zip(leads, ends)]
        out = "".join(name if name in "".join(terms) else "1" for name in names) + "IJ"
        return Terms(terms, [out], reduced=PARTIAL_SUM, join=broadcast_extent)

    return find_terms


def _find_einsum_terms(call: Call) -> Terms:
    left, _, result = call.attr("equation").replace(" ", "").partition("->")
    terms = left.split(",")
    if "..." in left:
        hidden = [call.rank(n) - len(term) + 3 if "..." in term else 0 for n, term in enumerate(terms)]
        names = "αβγδεζηθ"[: max(hidden)]
        terms = [term.replace("...", names[len(names) - count :]) for term, count in zip(terms, hidden)]
        result = result.replace("...", names)
    twice = any(len(set(term)) < len(term) for term in [*terms, result])
    return Terms(terms, [result], "".join(terms) if twice else "", PARTIAL_SUM, join=broadcast_extent)


_PRODUCT: Any = {"linear": PRODUCT, "scales": is_factor, "reason": COMPARES}
add_rows("MatMul", terms=_find_matrix_terms("transpose_a", "transpose_b"), **_PRODUCT)
add_rows("BatchMatMul BatchMatMulV2 BatchMatMulV3", terms=_find_matrix_terms("adj_x", "adj_y"), **_PRODUCT)
add_rows("Einsum", terms=_find_einsum_terms, **_PRODUCT)


def _find_attention_terms(call: Call) -> Terms:
    """Return the axes. Heads of keys that groups of queries share get a part of their gradient from each part of a group."""
    ones = [[extent == 1 for extent in tensor.shape] for tensor in call.op.inputs]
    inputs, outputs = letters_of(call.type, ones)
    return Terms(inputs, outputs, mixed="TSHV", reduced=PARTIAL_SUM)


add_rows(f"{FORWARD} {BACKWARD}", terms=_find_attention_terms, reason=COMPARES)


def _find_bias_terms(call: Call) -> Terms:
    names = call.names()
    channels = names[1 if call.attr("data_format") == "NCHW" else -1]
    return (
        Terms([names, channels], [names])
        if len(call.values) == 2
        else Terms([names], [channels], reduced=PARTIAL_SUM)
    )


add_rows("BiasAdd BiasAddGrad", terms=_find_bias_terms, linear=SUM)


def _find_filter_terms(call: Call) -> Terms:
    """Return the terms of the gradient of a filter: a sum over the samples of pictures and gradients, its axes are new."""
    count = call.rank() - 1
    rest = name_axes(2 * count, 1)
    terms = ["a" + rest[:count], None, "a" + rest[count:]]
    return Terms(terms, [name_axes(count + 1, 1 + len(rest))], rest, PARTIAL_SUM)


add_rows(
    "Conv2DBackpropFilter DepthwiseConv2dNativeBackpropFilter Conv3DBackpropFilterV2",
    terms=_find_filter_terms,
)
