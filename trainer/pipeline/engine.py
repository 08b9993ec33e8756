"""One pipelined step: the schedule's jobs as one graph over several devices. Knows of no optimizer."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.functional import flat_inputs, pack_outputs
from ...compat.keras_private.variables import raw_value, replace_value
from ...distribute.pipeline.schedule import Job, find_rematerialized
from ...distribute.sharding.sharded_value import TensorInPlace
from ...distribute.step_context import StepContext, step_scope
from .micro_batches import MicroBatchStates, concat_micro_batches
from .planning.graph import Chain, Stage
from .stage_pass import (
    Pass,
    add_gradients,
    cotangents_of,
    flatten,
    identity,
    run_stage,
    watch,
    zero_unless_alive,
)

Head = Callable[[int | None, Any], tf.Tensor]


@dataclasses.dataclass
class Result:
    """The results of a step, for the whole batch."""

    outputs: Any
    """As the model returns them."""
    loss: Any
    """Scalar tensor; loss, added losses and penalties; None if there are none."""
    gradients: dict[int, Any]
    """By the id of a variable: of the scaled loss, summed over micro-batches and replicas, on the variable's device."""
    writes: list[tuple[Any, tf.Tensor]]
    """Assignments by layers (running averages, random state)."""


class PipelinedStep:
    """One step under construction. It exists only while the step is traced (or run eagerly).

    A separate tape under the stage's device takes each stage's gradient: backward operations do not inherit the device
    of the forward ones. Control dependencies keep the order of the jobs on a device.

    On creation it reads the weights on every device that needs them.

    Args:
        inputs: for each micro-batch of each replica the model's inputs, in the order of the samples.
        steps: for each of them its part of the batch (`micro_steps`).
        replicas: R: the first len(inputs) / R micro-batches run on the first devices of the stages, and so on.
        scale: the loss scale, a linear function of a scalar.
    """

    def __init__(
        self,
        chain: Chain,
        stages: Sequence[Stage],
        inputs: Sequence[Any],
        steps: Sequence[StepContext],
        replicas: int = 1,
        training: bool = True,
        scale: Callable[[tf.Tensor], tf.Tensor] = lambda value: value,
    ) -> None:
        self.chain, self.stages, self.steps = chain, list(stages), list(steps)
        self._replicas, self._training, self._scale = replicas, training, scale
        self._run = functools.partial(run_stage, training=training, several=len(self.steps) > 1)
        self._values = [dict(zip(chain.input_ids, flat_inputs(chain.graph, value))) for value in inputs]
        self._weights = [
            [_read(stage.weights, device) for device in stage.devices[:replicas]] for stage in self.stages
        ]
        self._states = MicroBatchStates(self.stages, self.steps)
        self._losses: list[tf.Tensor] = []
        self._gradients: dict[tuple[int, int], Any] = {}  # by replica and variable
        self._cotangents: list[dict[int, list[Any]]] = [{} for _ in self.steps]
        self._passes: dict[tuple[int, int], Pass] = {}
        self._last: dict[tuple[int, int], list[Any]] = {}

    def forward(self, jobs: Sequence[Job]) -> Result:
        """Run the forward passes alone; `jobs`: the schedule (`forward_only`), for one replica."""
        for _, stage, q in self._on_replicas(jobs):
            self._forward(stage, q, keep=False)
            self._add_losses(q, self._passes.pop((stage.index, q)).added)
        return self._result()

    def train(
        self, jobs: Sequence[Job], head: Head, loss_by_micro_batch: bool, rematerialize: bool = False
    ) -> Result:
        """Run the schedule, forward and backward.

        Args:
            jobs: the schedule for one replica; all replicas follow it.
            head: `head(q, outputs)` is the loss of the samples of micro-batch q, weighted so that the sum over all
                micro-batches is that of the batch; with q None that of the whole batch.
            loss_by_micro_batch: whether `head` is called for each micro-batch or once.
            rematerialize: whether a stage keeps only its boundary and reruns its forward pass before the backward.
        """
        again = find_rematerialized(jobs) if rematerialize else set()
        done = False
        for job, stage, q in self._on_replicas(jobs):
            if job.kind == "forward":
                self._forward(stage, q, keep=(job.stage, job.micro_batch) not in again)
                continue
            if loss_by_micro_batch and stage is self.stages[-1]:
                self._head(head, q)
            elif not loss_by_micro_batch and not done:
                self._head(head, None)
                done = True
            self._backward(stage, q)
        return self._result()

    def mask_outputs(self, q: int) -> Any:
        """Return the outputs of micro-batch q, without writes, for masks: the unused rest is pruned from the graph."""
        values, state = dict(self._values[q]), self._states.of(q)
        for stage in self.stages:
            with tf.device(self._device(stage, q)), step_scope(self.steps[q]):
                inputs = {key: identity(values[key]) for key in stage.inputs}
                run = self._run(stage, inputs, self._map_values(stage, q, state), keep=False)
                values.update({key: run.made[key] for key in stage.outputs})
                state.update({id(v): (v, t) for v, t in run.writes.items() if id(v) in state})
        return pack_outputs(self.chain.graph, [values[key] for key in self.chain.output_ids])

    # Jobs.

    def _forward(self, stage: Stage, q: int, keep: bool) -> None:
        """Run a stage's layers, from boundary to boundary. With `keep` a tape keeps the activations."""
        with self._job("forward", stage, q):
            inputs = {key: identity(self._values[q][key]) for key in stage.inputs}
            run = self._run(stage, inputs, self._map_values(stage, q, self._states.of(q)), keep)
            self._states.note(q, run.writes)
            outputs = {key: run.made[key] for key in stage.outputs}
            self._values[q].update(outputs)
            if not keep:  # in eager mode this frees the memory of the activations
                run.made, run.sources = outputs, []
            self._passes[(stage.index, q)] = run
            self._finish(stage, q, [*outputs.values(), *run.added])

    def _backward(self, stage: Stage, q: int) -> None:
        """Turn cotangents of the outputs into this stage's gradients and cotangents of its inputs."""
        run = self._passes.pop((stage.index, q))
        arriving = self._cotangents[q]
        incoming = flatten([arriving.get(key, []) for key in stage.outputs])
        with self._job("backward", stage, q, incoming):
            if run.tape is None:
                run = self._run(stage, run.inputs, run.mapping, keep=True)
            targets, cotangents = cotangents_of(
                [(run.made[key], arriving.pop(key, [])) for key in stage.outputs]
            )
            for loss in run.added:
                targets.append(loss)
                cotangents.append(tf.cast(self._scale(self.steps[q].share(loss.dtype)), loss.dtype))
            flat = [tensor for _, tensors in run.sources for tensor in tensors]
            assert run.tape is not None
            gradients = run.tape.gradient(targets, flat, output_gradients=cotangents) if targets else []
            leaving = iter(gradients or [None] * len(flat))
            for key, tensors in run.sources:
                self._pass_on(stage, q, key, [next(leaving) for _ in tensors])
            self._add_losses(q, run.added)
            # The job ends with the sums: otherwise the graph optimizer would keep the gradients of all micro-batches.
            sums = [self._gradients.get((self._replica(q), id(variable))) for variable in stage.trainable]
            self._finish(stage, q, flatten([gradients, sums]))

    def _head(self, head: Head, q: int | None) -> None:
        """Compute the loss on the last stage, and its cotangents for the outputs."""
        numbers = range(len(self.steps)) if q is None else [q]
        with (
            self._job("loss", self.stages[-1], numbers[0]),
            tf.GradientTape(watch_accessed_variables=False) as tape,
        ):
            pieces = [[identity(self._values[n][key]) for key in self.chain.output_ids] for n in numbers]
            watched = [[watch(tape, value) for value in piece] for piece in pieces]
            loss = head(q, self._pack(pieces, [self.steps[n] for n in numbers]))
            scaled = self._scale(loss)
        with tf.device(self._device(self.stages[-1], numbers[0])):
            self._losses.append(loss)
            flat = [tensor for piece in watched for tensors in piece for tensor in tensors]
            gradients = iter(tape.gradient(scaled, flat))
            for n, piece in zip(numbers, watched):
                for key, tensors in zip(self.chain.output_ids, piece):
                    self._cotangents[n].setdefault(key, []).append([next(gradients) for _ in tensors])

    def _penalties(self) -> None:
        """Add the weight regularizers, once, on the device of each stage."""
        for stage in self.stages:
            for variable, value in self._weights[stage.index][0]:
                if not variable.trainable or variable.regularizer is None:
                    continue
                with tf.device(stage.devices[0]):
                    with tf.GradientTape(watch_accessed_variables=False) as tape:
                        tape.watch(value)
                        with replace_value(variable, TensorInPlace(None, value, raw_value(variable))):
                            penalty = tf.convert_to_tensor(variable.regularizer(variable))
                        scaled = self._scale(penalty)
                    self._losses.append(penalty)
                    if self._training:
                        self._add_gradient(0, id(variable), tape.gradient(scaled, value))

    # Between jobs.

    @contextlib.contextmanager
    def _job(self, kind: str, stage: Stage, q: int, after: Sequence[Any] = ()) -> Iterator[None]:
        """Enter the job's device, the stage's order, and the micro-batch's part of the batch; profiles show its name."""
        last = self._last.get((stage.index, self._replica(q)), [])
        with (
            tf.name_scope(f"stage_{stage.index}_{kind}_{q}"),
            tf.device(self._device(stage, q)),
            tf.control_dependencies([] if tf.executing_eagerly() else [*last, *after]),
            step_scope(self.steps[q]),
        ):
            yield

    def _finish(self, stage: Stage, q: int, results: Sequence[Any]) -> None:
        """Mark the job as done: the stage's next job waits for it."""
        if not tf.executing_eagerly():
            self._last[(stage.index, self._replica(q))] = [tf.group(*flatten(list(results)))]

    def _map_values(self, stage: Stage, q: int, state: dict[int, tuple[Any, Any]]) -> list[Any]:
        weights = self._weights[stage.index][self._replica(q)]
        known = {id(v) for v, _ in weights}
        return weights + [pair for key, pair in state.items() if key not in known]

    def _pass_on(self, stage: Stage, q: int, key: int, gradients: list[Any]) -> None:
        """Pass the gradients of a stage's input to the stage that made it, or add those of a weight to the sums."""
        if key in stage.inputs:
            self._cotangents[q].setdefault(key, []).append(gradients)
        elif gradients:
            self._add_gradient(self._replica(q), key, zero_unless_alive(self.steps[q], gradients[0]))

    def _add_gradient(self, replica: int, key: int, gradient: Any) -> None:
        self._gradients[replica, key] = add_gradients(self._gradients.get((replica, key)), gradient)

    def _add_losses(self, q: int, added: Sequence[tf.Tensor]) -> None:
        """Add the layers' added losses to the loss of micro-batch q, in units of its local mean."""
        self._losses += [loss * self.steps[q].share(loss.dtype) for loss in added]

    def _on_replicas(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Stage, int]]:
        """Yield each job with its stage and, replica by replica, the number of its micro-batch."""
        for job in jobs:
            for replica in range(self._replicas):
                first = replica * len(self.steps) // self._replicas
                yield job, self.stages[job.stage], first + job.micro_batch

    def _replica(self, q: int) -> int:
        return q * self._replicas // len(self.steps)

    def _device(self, stage: Stage, q: int) -> str:
        return stage.devices[self._replica(q)]

    # The results.

    def _result(self) -> Result:
        self._penalties()
        gradients = {}
        for stage in self.stages:
            with tf.device(stage.devices[0]):
                for variable in stage.trainable:
                    parts = [self._gradients.get((r, id(variable))) for r in range(self._replicas)]
                    gradients[id(variable)] = functools.reduce(add_gradients, parts)
        with tf.device(self.stages[-1].devices[0]):
            pieces = [[values[key] for key in self.chain.output_ids] for values in self._values]
            outputs = self._pack(pieces, self.steps)
            losses = [tf.cast(loss, self._losses[0].dtype) for loss in self._losses]
            loss = tf.add_n(losses) if losses else None
        return Result(outputs, loss, gradients, self._states.writes())

    def _pack(self, pieces: list[list[Any]], steps: Sequence[StepContext]) -> Any:
        outputs = [concat_micro_batches(parts, steps) for parts in zip(*pieces)]
        return pack_outputs(self.chain.graph, outputs)


def _read(variables: Sequence[Any], device: str) -> list[tuple[Any, tf.Tensor]]:
    """Return the current values of the variables, on `device` (in a scope that collects writes: the collected values)."""
    with tf.device(device):
        return [(v, tf.identity(tf.convert_to_tensor(v.value))) for v in variables]
