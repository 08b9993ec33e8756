"""Simulated GPUs: steps are traced for GPUs that do not exist, and TensorFlow places their operations as if they did.

Tracing needs no device. To place operations, TensorFlow asks each worker of a cluster for its devices. `PretendedMachine` is
a worker that reports GPUs, receives the placed graph and computes nothing. So TensorFlow's own placer, with its own registry
of GPU kernels, decides where each operation runs.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any
from unittest import mock

import grpc
import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from tensorflow.core.framework import device_attributes_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import kernels, ops
from tensorflow.python.ops import resource_variable_ops

from unisono.distribute.workers.addresses import free_ports

MACHINE = "/job:localhost/replica:0/task:0"
HOST = f"{MACHINE}/device:CPU:0"
GPU_BYTES = 2**34
_MOVES = (
    "Identity",
    "IdentityN",
    "NoOp",
    "Enter",
    "Exit",
    "Merge",
    "Switch",
    "NextIteration",
    "LoopCond",
    "Const",
)

_asked_for: dict[
    int, tuple[Any, str]
] = {}  # variable handle -> (the handle, the device the variable was created on)


@contextlib.contextmanager
def absent_gpus(count: int) -> Iterator[list[str]]:
    """Makes `count` GPUs visible: strategies, variables and graphs can be created for them, but nothing may run on them."""
    gpus = {
        "list_logical_devices": [context.LogicalDevice(f"/device:GPU:{i}", "GPU") for i in range(count)],
        "list_physical_devices": [
            context.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(count)
        ],
    }
    with contextlib.ExitStack() as patches:
        for name, fakes in gpus.items():
            listed = functools.partial(_listed, getattr(tf.config, name), fakes)
            patches.enter_context(mock.patch.object(tf.config, name, listed))
        memory = lambda device: {"current": 2**30, "peak": 2**30}  # noqa: E731
        patches.enter_context(mock.patch.object(tf.config.experimental, "get_memory_info", memory))
        details = lambda device: {"device_name": "absent"}  # noqa: E731
        patches.enter_context(mock.patch.object(tf.config.experimental, "get_device_details", details))
        made = functools.partial(_handle, resource_variable_ops.eager_safe_variable_handle)
        patches.enter_context(mock.patch.object(resource_variable_ops, "eager_safe_variable_handle", made))
        owner = resource_variable_ops.BaseResourceVariable
        patches.enter_context(mock.patch.object(owner, "device", property(_device_of)))
        real = ops.EagerTensor.device
        handles = property(lambda tensor: _asked_for.get(id(tensor), (None, None))[1] or real.__get__(tensor))
        patches.enter_context(mock.patch.object(ops.EagerTensor, "device", handles))
        yield [f"GPU:{i}" for i in range(count)]
        _asked_for.clear()


def _listed(real: Any, fakes: list[Any], device_type: str | None = None) -> list[Any]:
    there = [] if device_type == "GPU" else list(real(device_type))
    return [*there, *fakes] if device_type in (None, "GPU") else there


def _handle(real: Any, *args: Any, **kwargs: Any) -> Any:
    handle = real(*args, **kwargs)
    if tf.executing_eagerly():
        _asked_for[id(handle)] = handle, context.context().device_name or f"{MACHINE}/device:GPU:0"
    return handle


def _device_of(variable: Any) -> str:
    return _device_of_handle(variable.handle)


def _device_of_handle(handle: Any) -> str:
    _, device = _asked_for.get(id(handle), (None, handle.device))
    return device


@dataclasses.dataclass(frozen=True)
class Transfer:
    """A tensor that is copied between devices, or between a device and its host, in each step."""

    producer: str
    consumer: str
    dtype: str
    source: str
    target: str


class Placed:
    """A graph in which TensorFlow has placed every operation: `nodes` by name, with functions inlined."""

    def __init__(self, graph_def: Any) -> None:
        for node in graph_def.node:  # TensorFlow adds names that cannot be imported
            node.name = node.name.lstrip("_")
            node.input[:] = [
                f"^{n[1:].lstrip('_')}" if n.startswith("^") else n.lstrip("_") for n in node.input
            ]
        self.nodes = {node.name: node for node in graph_def.node}
        with tf.Graph().as_default() as graph:
            bare = tf.compat.v1.GraphDef()
            bare.CopyFrom(graph_def)
            for node in bare.node:
                node.device = ""
            tf.import_graph_def(bare, name="")
        self.graph = graph

    def on(self, kind: str) -> list[Any]:
        """The operations on devices of one kind, "CPU" or "GPU"."""
        return [node for node in self.nodes.values() if f"device:{kind}" in node.device]

    def of(self, *operations: str) -> list[Any]:
        """The operations of these types."""
        return [node for node in self.nodes.values() if node.op in operations]

    def host_operations(self) -> list[Any]:
        """The operations that compute on the host, without constants and operations that only forward a tensor."""
        return [node for node in self.on("CPU") if node.op not in _MOVES]

    def in_step(self, node: Any) -> bool:
        """Whether the operation runs in every step: inside the loop body, or anywhere if there is no loop."""
        return "/while/body/" in node.name or not self._loops

    @functools.cached_property
    def _loops(self) -> bool:
        return any("/while/body/" in name for name in self.nodes)

    def waits(self) -> list[str]:
        """Values the host must wait for from a GPU in every step, as "producer type -> consumer types"."""
        found = []
        received = {n.attr["tensor_name"].s: n.name for n in self.of("_Recv", "_HostRecv")}
        for send in self.of("_Send"):
            if "GPU" in send.device and self.in_step(send):
                producer = self.nodes[send.input[0].partition(":")[0]]
                there = received.get(send.attr["tensor_name"].s)
                users = {
                    n.op for n in self.nodes.values() if any(i.partition(":")[0] == there for i in n.input)
                }
                found.append(f"{producer.op} -> {', '.join(sorted(users))}")
        for move in self.transfers:
            if (
                move.source.startswith("GPU")
                and move.target == "host"
                and self.in_step(self.nodes[move.consumer])
            ):
                found.append(f"{self.nodes[move.producer].op} -> {self.nodes[move.consumer].op}")
        return sorted(found)

    def is_sent_each_step(self, move: Transfer) -> bool:
        """Whether a transfer copies from the host to a GPU in every step."""
        consumer = self.nodes[move.consumer]
        return (
            move.source == "host"
            and "GPU" in consumer.device
            and "Call" not in consumer.op
            and self.in_step(consumer)
        )

    def shape(self, name: str) -> str:
        shape = self.graph.get_operation_by_name(name).outputs[0].shape
        return "[?]" if shape.rank is None else str(shape.as_list())

    def host_between_forward_and_update(self) -> list[str]:
        """Host operations on a path from a matrix product to a write of a variable on a GPU."""
        after = self._reached([n for n in self.nodes.values() if n.op == "MatMul"], self._consumers)
        writes = [n for n in self.on("GPU") if n.op.startswith("Assign") and n.op.endswith("VariableOp")]
        before = self._reached(
            writes, lambda node: [self.nodes[i.partition(":")[0]] for i in node.input if i[0] != "^"]
        )
        both = [node for node in self.host_operations() if node.name in after and node.name in before]
        return sorted({node.op for node in both})

    @functools.cached_property
    def _users(self) -> dict[str, list[Any]]:
        users: dict[str, list[Any]] = {}
        for producer, _, consumer, _ in self.edges():
            if consumer.op != "NextIteration":
                users.setdefault(producer.name, []).append(consumer)
        return users

    def _consumers(self, node: Any) -> list[Any]:
        return self._users.get(node.name, [])

    @staticmethod
    def _reached(start: list[Any], following: Any) -> set[str]:
        seen, left = set(), list(start)
        while left:
            for node in following(left.pop()):
                if node.name not in seen:
                    seen.add(node.name)
                    left.append(node)
        return seen

    def dtype(self, name: str, index: int = 0) -> tf.DType:
        return self.graph.get_operation_by_name(name).outputs[index].dtype

    def edges(self) -> Iterator[tuple[Any, int, Any, int]]:
        """(producer, output, consumer, input) of every data edge."""
        for node in self.nodes.values():
            for index, name in enumerate(n for n in node.input if not n.startswith("^")):
                producer, _, output = name.partition(":")
                yield self.nodes[producer], int(output or 0), node, index

    @functools.cached_property
    def transfers(self) -> list[Transfer]:
        """Every tensor that has to be copied, once per destination."""
        found = {}
        for producer, output, consumer, index in self.edges():
            source = self._memory(producer, output, "outputs")
            target = self._memory(consumer, index, "inputs")
            dtype = self.dtype(producer.name, output)
            if source != target and dtype != tf.resource:
                key = producer.name, output, target
                found[key] = Transfer(producer.name, consumer.name, dtype.name, source, target)
        return list(found.values())

    def _memory(self, node: Any, index: int, side: str) -> str:
        """Where an input or output of an operation is stored: its device, or the host."""
        device = node.device.rpartition("device:")[2]
        if not device.startswith("GPU"):
            return "host"
        tensors = getattr(self.graph.get_operation_by_name(node.name), side)
        operation = self.graph.get_operation_by_name(node.name)  # includes types that the NodeDef omits
        kept_on_host = _host_arguments(node.op, tuple(_types(operation.node_def)))
        name = _argument(operation, index, side)
        if kept_on_host is None:
            return "host" if tensors[index].dtype in (tf.int32, tf.string) else device
        return "host" if name in kept_on_host else device


def _types(node: Any) -> Iterator[tuple[str, int]]:
    for name, value in sorted(node.attr.items()):
        if value.WhichOneof("value") == "type":
            yield name, value.type


@functools.cache
def _host_arguments(operation: str, types: tuple[tuple[str, int], ...]) -> frozenset[str] | None:
    """The arguments that the GPU kernel for these types reads from or writes to host memory."""
    given = dict(types)
    best = None
    for kernel in kernels.get_registered_kernels_for_op(operation).kernel:
        allowed = {c.name: list(c.allowed_values.list.type) for c in kernel.constraint}
        fits = all(given.get(name) in values for name, values in allowed.items())
        if kernel.device_type in ("GPU", "DEFAULT") and fits and not kernel.label:
            rank = (kernel.device_type == "GPU", kernel.priority)
            if best is None or rank > best[0]:
                best = rank, frozenset(kernel.host_memory_arg)
    return None if best is None else best[1]


def _argument(operation: Any, index: int, side: str) -> str:
    """The name of an input or output in the operation's definition."""
    definition = operation.op_def.input_arg if side == "inputs" else operation.op_def.output_arg
    for argument in definition:
        length = 1
        if argument.number_attr:
            length = operation.get_attr(argument.number_attr)
        elif argument.type_list_attr:
            length = len(operation.get_attr(argument.type_list_attr))
        if index < length:
            return argument.name
        index -= length
    raise IndexError(index)


class PretendedMachine:
    """A TensorFlow worker that reports GPUs and keeps the placed graph it receives.

    It needs a separate process: TensorFlow's server, which does the placement, cannot be stopped.
    """

    def __init__(self, gpus: int) -> None:
        self._gpus, self._graphs = gpus, []
        self._server = grpc.server(
            futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)]
        )
        self._server.add_generic_rpc_handlers((_Handler(self._answer),))
        port = self._server.add_insecure_port("localhost:0")
        self._server.start()
        (master,) = free_ports(1)
        cluster = {"localhost": [f"localhost:{port}"], "placer": [f"localhost:{master}"]}
        self._placer = tf.distribute.Server(cluster, job_name="placer", task_index=0)

    def _answer(self, method: str, request: bytes) -> bytes:
        if method == "GetStatus":
            kinds = [("CPU", 0), *(("GPU", i) for i in range(self._gpus))]
            response = _message()["Status"]()
            for number, (kind, index) in enumerate(kinds):
                response.devices.add().CopyFrom(
                    device_attributes_pb2.DeviceAttributes(
                        name=f"{MACHINE}/device:{kind}:{index}",
                        device_type=kind,
                        memory_limit=GPU_BYTES,
                        incarnation=number + 1,
                    )
                )
            return response.SerializeToString()
        if method == "RegisterGraph":
            graph = tf.compat.v1.GraphDef()
            graph.ParseFromString(_message()["Register"].FromString(request).graph)
            self._graphs.append(graph)
            return _message()["Registered"](handle="1").SerializeToString()
        return b""

    def place(self, function: Any, inputs: Sequence[str] = ()) -> Placed:
        """Where the operations of a `ConcreteFunction` and of the functions it calls run on the machine.

        `inputs` are the devices of its first arguments. Others are on the host, variables where they were created.
        """
        self._graphs.clear()
        graph = tf.Graph()
        with graph.as_default():
            call = _call_of(function, list(inputs))
        definition = graph.as_graph_def()
        for called in definition.library.function:
            called.attr.pop("_noinline", None)
            for node in called.node_def:
                node.device = node.device or MACHINE
                _inline(node)
        for node in definition.node:
            _inline(node)
        with tf.Graph().as_default() as whole:
            tf.import_graph_def(definition, name="")
            options = tf.compat.v1.ConfigProto(allow_soft_placement=True)
            with tf.compat.v1.Session(self._placer.target, config=options) as session:
                with contextlib.suppress(tf.errors.OpError):
                    session.run(whole.get_operation_by_name(call.name))
        return Placed(max(self._graphs, key=lambda graph: len(graph.node)))


def _call_of(function: Any, inputs: list[str]) -> Any:
    """A call of the function in the current graph, with each variable on the device it was created for."""
    function.add_to_graph()
    arguments = []
    captured = {id(inner): outer for outer, inner in function.graph.captures}
    for tensor in function.graph.inputs:
        outer = captured.get(id(tensor))
        is_variable = outer is not None and id(outer) in _asked_for
        given = inputs.pop(0) if outer is None and inputs else HOST
        with tf.device(_device_of_handle(outer) if is_variable else given):
            if is_variable:
                arguments.append(_variable(outer))
            elif tensor.dtype == tf.resource:
                arguments.append(
                    tf.raw_ops.AnonymousIteratorV2(output_types=[tf.float32], output_shapes=[[]])[0]
                )
            else:
                arguments.append(tf.compat.v1.placeholder_with_default(_zeros(tensor), tensor.shape))
    kinds = [t.dtype for t in function.graph.outputs]
    with tf.device(MACHINE):
        results = tf.raw_ops.StatefulPartitionedCall(args=arguments, Tout=kinds, f=function.name)
    return results[0].op if isinstance(results, list) else results


def _inline(node: Any) -> None:
    """Lets TensorFlow inline a call before it places operations; an XLA call stays one operation."""
    if node.op.endswith("PartitionedCall") and not node.attr["_XlaMustCompile"].b:
        node.attr["_lower_as_multi_device_function"].b = True
        node.attr.pop("_noinline", None)
    elif "_XlaMustCompile" in node.attr and not node.attr["_XlaMustCompile"].b:
        node.attr.pop("_XlaMustCompile")


def _zeros(tensor: Any) -> Any:
    return tf.zeros([size or 1 for size in tensor.shape], tensor.dtype)


def _variable(handle: Any) -> Any:
    data = handle._handle_data.shape_and_type[0]
    return tf.raw_ops.VarHandleOp(
        dtype=data.dtype, shape=tf.TensorShape(data.shape), shared_name=f"variable_{id(handle)}"
    )


class _Handler(grpc.GenericRpcHandler):
    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def service(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(lambda request, _: self._answer(method, request))


_FIELD = descriptor_pb2.FieldDescriptorProto


def _message_classes() -> dict[str, Any]:
    """The fields of TensorFlow's `worker.proto` that are used here; its Python module is not installed."""
    file = descriptor_pb2.FileDescriptorProto(name="pretended.proto", package="pretended")
    file.dependency.append("tensorflow/core/framework/device_attributes.proto")
    status = file.message_type.add(name="Status").field.add(
        name="devices", number=1, type=_FIELD.TYPE_MESSAGE
    )
    status.label, status.type_name = _FIELD.LABEL_REPEATED, ".tensorflow.DeviceAttributes"
    for message, text, number, kind in [
        ("Register", "graph", 2, _FIELD.TYPE_BYTES),
        ("Registered", "handle", 1, _FIELD.TYPE_STRING),
    ]:
        field = file.message_type.add(name=message).field.add(name=text, number=number, type=kind)
        field.label = _FIELD.LABEL_OPTIONAL
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    names = ("Status", "Register", "Registered")
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pretended.{n}")) for n in names}


_message = functools.cache(_message_classes)
