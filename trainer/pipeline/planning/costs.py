"""The costs of a model's blocks: counted in their graphs, or measured on a device."""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.variables import bytes_of
from ....compat.tensorflow_graphs.graphs import scratch_graph
from ..stage_pass import Pass, flatten, run_stage, watch
from .graph import Chain, Stage, find_taken

UNKNOWN_LENGTH = 64
_NOT_KEPT = {"ReadVariableOp", "Const", "Placeholder", "Shape", "ShapeN", "VarHandleOp"}
_PRODUCTS = {"MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"}


@dataclasses.dataclass(frozen=True)
class BlockCost:
    """The cost of one block for one micro-batch: of its passes in `unit`, and its memory in bytes."""

    forward: float
    backward: float
    activations: float
    """That the forward pass keeps for the backward pass."""
    weights: float
    """Of the trainable variables."""
    fixed: float
    """Of the other variables."""
    sends: float
    """That a cut after the block sends."""
    unit: str
    """"operations" (floating-point) or "seconds"."""

    @property
    def total(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


def estimate(chain: Chain, samples: int) -> list[BlockCost]:
    """Count the floating-point operations in the graph of each block and of its gradient.

    A product counts two operations for each multiplication and addition, every other operation one for each element of its
    result. Dimensions that the model leaves open count as 64. Nothing is computed. A micro-batch has `samples` samples.
    """
    stages = chain.cut([1] * len(chain.blocks))
    counts = [_count(stage, samples) for stage in stages]
    kept = {id(tensor) for *_, ends in counts for tensor in ends}
    result = []
    for edge, (stage, (forward, backward, inside, _)) in enumerate(zip(stages, counts), start=1):
        own = [out for node in stage.nodes for out in node.outputs if id(out) in kept]
        result.append(
            BlockCost(
                forward=forward,
                backward=backward,
                activations=inside + sum(_bytes(tensor, samples) for tensor in own),
                weights=float(sum(bytes_of(v) for v in stage.weights if v.trainable)),
                fixed=float(sum(bytes_of(v) for v in stage.weights if not v.trainable)),
                sends=sum(_bytes(tensor, samples) for tensor in chain.find_crossing(edge)),
                unit="operations",
            )
        )
    return result


def measure(chain: Chain, samples: int, device: str, repeats: int = 5) -> list[BlockCost]:
    """Measure costs in seconds: each block runs alone on `device`, on random data, and its shortest time counts."""
    result = []
    for stage, counted in zip(chain.cut([1] * len(chain.blocks)), estimate(chain, samples)):
        forward, both = _seconds(stage, samples, device, repeats)
        backward = max(both - forward, 0.0)
        result.append(dataclasses.replace(counted, forward=forward, backward=backward, unit="seconds"))
    return result


def _spec(symbolic: Any, samples: int) -> tf.TensorSpec:
    shape = list(symbolic.shape)
    if shape:
        shape = [samples] + [UNKNOWN_LENGTH if size is None else size for size in shape[1:]]
    return tf.TensorSpec(shape, symbolic.dtype)


def _bytes(symbolic: Any, samples: int) -> float:
    spec = _spec(symbolic, samples)
    return float((spec.shape.num_elements() or 1) * max(spec.dtype.size, 1))


def _forward(stage: Stage, values: Sequence[Any]) -> Pass:
    mapping = [(v, tf.convert_to_tensor(v.value)) for v in stage.weights]
    inputs = dict(zip(stage.inputs, values))
    return run_stage(stage, inputs, mapping, keep=True, training=True, several=False)


def _backward(stage: Stage, run: Pass) -> list[Any]:
    targets = watch(None, [run.made[key] for key in stage.outputs])
    sources = [tensor for _, tensors in run.sources for tensor in tensors]
    assert run.tape is not None
    return flatten(run.tape.gradient(targets, sources)) if targets else []


def _count(stage: Stage, samples: int) -> tuple[float, float, float, list[Any]]:
    """Count, in one block's graph, forward and backward operations, bytes kept inside, kept inputs and outputs."""
    inputs = find_taken(stage.blocks)
    specs = [_spec(tensor, samples) for tensor in inputs]
    try:
        with scratch_graph() as graph:
            run = _forward(stage, [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs])
            made = graph.get_operations()
            _backward(stage, run)
        added = graph.get_operations()[len(made) :]
        used = {id(tensor) for op in added for tensor in op.inputs}
        ends = [*inputs, *(out for node in stage.nodes for out in node.outputs)]
        kept = [symbolic for symbolic in ends if id(run.made.get(id(symbolic))) in used]
        inside = _count_kept_inside(made, used, {id(run.made.get(id(symbolic))) for symbolic in ends})
        forward, backward = _operations(made), _operations(added)
    except Exception:
        # A layer that cannot run on such generated inputs can still be trained: it counts as a matrix product with
        # all of its weights.
        weights = sum(v.shape.num_elements() or 0 for v in stage.weights)
        forward, backward, inside, kept = 2.0 * samples * weights, 4.0 * samples * weights, 0.0, []
    loops = sum(_loop_operations(node, specs, samples) for node in stage.nodes)
    return forward + loops, backward + 2.0 * loops, inside, kept


def _loop_operations(node: Any, specs: list[tf.TensorSpec], samples: int) -> float:
    """Return the cost of a recurrent layer, whose loop has a nested graph: a product with all weights per position."""
    if not isinstance(node.operation, keras.layers.RNN | keras.layers.Bidirectional):
        return 0.0
    length = (specs[0].shape[1] if specs and len(specs[0].shape) > 2 else 1) or 1
    return 2.0 * samples * length * sum(v.shape.num_elements() or 0 for v in node.operation.weights)


def _operations(ops: list[Any]) -> float:
    return sum(_operations_of(op) for op in ops if op.type not in _NOT_KEPT and op.outputs)


def _operations_of(op: Any) -> float:
    elements = float(op.outputs[0].shape.num_elements() or 0) if op.outputs[0].shape.rank is not None else 0.0
    shapes = [tensor.shape for tensor in op.inputs]
    if op.type in _PRODUCTS:
        transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
        return 2.0 * elements * (shapes[0][-2 if transposed else -1] or 1)
    if op.type == "Einsum":
        equation = op.get_attr("equation").decode()
        sizes: dict[str, int] = {}
        for labels, shape in zip(equation.split("->")[0].split(","), shapes):
            sizes.update({label: size or 1 for label, size in zip(labels.replace("...", ""), shape)})
        return 2.0 * float(tf.TensorShape(sizes.values()).num_elements() or 0)
    if "Conv" in op.type and len(shapes) >= 2:
        return _convolution(op, shapes, elements)
    return elements


def _convolution(op: Any, shapes: list[Any], elements: float) -> float:
    """Return two operations for each entry of the result and of its kernel; a gradient costs as much."""
    results, kernel = elements, shapes[1]
    if "Backprop" in op.type:
        results = float(shapes[2].num_elements() or 0)
        kernel = op.outputs[0].shape if "Filter" in op.type else shapes[1]
    if kernel.rank is None or kernel.rank < 3:
        return elements
    channels = kernel[-1] * kernel[-2] if "Depthwise" in op.type else kernel[-1]
    return 2.0 * results * (kernel.num_elements() or 0) / (channels or 1)


def _count_kept_inside(forward: list[Any], used: set[int], ends: set[int]) -> float:
    """Return the bytes of forward results that backward operations read, without the block's inputs and outputs."""
    made = [t for op in forward if op.type not in _NOT_KEPT for t in op.outputs if t.shape.rank is not None]
    kept = [t for t in made if id(t) in used and id(t) not in ends]
    return float(sum((t.shape.num_elements() or 0) * t.dtype.size for t in kept))


def _seconds(stage: Stage, samples: int, device: str, repeats: int) -> tuple[float, float]:
    """Return operations of the forward pass, and of the forward and backward passes together."""

    def run(backward: bool, *values: Any) -> Any:
        run = _forward(stage, values)
        return [run.made[key] for key in stage.outputs], _backward(stage, run) if backward else []

    def shortest(backward: bool) -> float:
        compiled, best = tf.function(functools.partial(run, backward), autograph=False), float("inf")
        for _ in range(repeats + 1):
            start = time.perf_counter()
            for tensor in tf.nest.flatten(compiled(*values), expand_composites=True)[:1]:
                tensor.numpy()
            best = min(best, time.perf_counter() - start)
        return best

    with tf.device(device):
        values = [_random(_spec(tensor, samples)) for tensor in find_taken(stage.blocks)]
        return shortest(False), shortest(True)


def _random(spec: tf.TensorSpec) -> tf.Tensor:
    if spec.dtype.is_floating:
        return tf.cast(tf.random.stateless_normal([size or 1 for size in spec.shape], (1, 2)), spec.dtype)
    return tf.zeros(spec.shape, spec.dtype)
