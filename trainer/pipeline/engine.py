"""One pipelined step: the schedule's jobs as one graph over several devices.

    for job in schedule:               on the stage's device, in this order by control dependencies
        forward:   boundary in -> layers -> boundary out
        backward:  (forward again ->) cotangents in -> the stage's gradient -> cotangents out, sums
    loss: on the last stage, once for the whole batch, or for each micro-batch as soon as it is there

Each stage's gradient is taken by a tape of its own under the stage's device: backward operations do not inherit
the device of the forward ones. Nothing here knows of optimizers; the loss is a function that is passed in.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ...compat.functional import flat_inputs, pack_outputs, run_node
from ...compat.layers import forget_losses, is_own, losses_of_layers
from ...distribute.pipeline.schedule import Job, rematerialized
from ...distribute.step_context import StepContext, step_scope
from ..step.added_losses import added_by
from .graph import Chain, Stage
from .state import NotedWrites
from .step_parts import Head, Pass, Result
from .tensors import cotangents_of, flatten, identity, join_micro_batches, watch, zero_unless
from .totals import Totals


class PipelinedStep:
    """One step under construction. It lives while the step is traced (or run eagerly), no longer.

    It reads the weights on every device that needs them when it is made.

    Args:
        chain: the model's blocks.
        stages: its stages, with their devices.
        inputs: for each micro-batch of each replica the model's inputs, in the order of the rows.
        steps: for each of them its part of the batch (`micro_steps`).
        replicas: int; R: the first len(inputs) / R micro-batches run on the first devices of the stages, and so on.
        training: bool; the mode in which layers are called.
    """

    def __init__(
        self,
        chain: Chain,
        stages: Sequence[Stage],
        inputs: Sequence[Any],
        steps: Sequence[StepContext],
        replicas: int = 1,
        training: bool = True,
    ) -> None:
        self.chain, self.stages = chain, list(stages)
        self.steps, self.replicas, self.training = list(steps), replicas, training
        self.micro_batches = len(self.steps) // replicas
        self.values = [dict(zip(chain.input_ids, flat_inputs(chain.graph, value))) for value in inputs]
        self.weights = [
            [_read(stage.weights, device) for device in stage.devices[:replicas]] for stage in self.stages
        ]
        self.totals = Totals(self.stages, self.steps, replicas)
        self.cotangents: list[dict[int, list[Any]]] = [{} for _ in self.steps]
        self.passes: dict[tuple[int, int], Pass] = {}
        self.last: dict[tuple[int, int], list[Any]] = {}

    # The three ways to run it.

    def forward(self, jobs: Sequence[Job]) -> Result:
        """Runs the forward passes alone; `jobs`: the schedule (`forward_only`), for one replica."""
        for _, stage, q in self._on_replicas(jobs):
            self._forward(stage, q, keep=False)
            self.totals.add_losses(q, self.passes.pop((stage.index, q)).added)
        self._penalties(None)
        return Result(self.outputs(), self.totals.loss(), {}, self.totals.writes())

    def train(
        self,
        jobs: Sequence[Job],
        head: Head,
        loss_by_micro_batch: bool,
        scale: Callable[[tf.Tensor], tf.Tensor],
        rematerialize: bool = False,
    ) -> Result:
        """Runs the schedule, forward and backward.

        Args:
            jobs: the schedule for one replica; all replicas follow it.
            head: `head(q, outputs)` is the loss of the rows of micro-batch q, weighted so that the sum over all
                micro-batches is that of the batch, and the same scaled; with q None that of the whole batch.
            loss_by_micro_batch: bool; whether `head` is called for each micro-batch or once.
            scale: the loss scale, a linear function of a scalar; applied to added losses and penalties.
            rematerialize: bool; whether a stage keeps its boundary alone and runs forward again before backward.
        """
        again = rematerialized(jobs) if rematerialize else set()
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
            self._backward(stage, q, scale)
        self._penalties(scale)
        return Result(self.outputs(), self.totals.loss(), self.totals.gradients(), self.totals.writes())

    def peek(self, q: int) -> Any:
        """The outputs of micro-batch q outside of the schedule, nothing written.

        For values that do not depend on the arithmetic (masks): what is not used of it is pruned from the graph.
        """
        values, state = dict(self.values[q]), self.totals.state(q)
        for stage in self.stages:
            with tf.device(self._device(stage, q)), step_scope(self.steps[q]):
                inputs = {key: identity(values[key]) for key in stage.inputs}
                scope = NotedWrites(self._mapping(stage, q, state))
                with scope:
                    made = self._run_layers(stage, inputs)
                values.update({key: made[key] for key in stage.outputs})
                state.update({id(v): (v, t) for v, t in scope.writes() if id(v) in state})
        return pack_outputs(self.chain.graph, [values[key] for key in self.chain.output_ids])

    # Jobs.

    def _forward(self, stage: Stage, q: int, keep: bool) -> None:
        """Boundary in, layers, boundary out. With `keep` a tape keeps the activations."""
        with self._job("forward", stage, q):
            inputs = {key: identity(self.values[q][key]) for key in stage.inputs}
            run = self._pass(stage, q, inputs, self._mapping(stage, q, self.totals.state(q)), keep)
            self.totals.note_writes(q, run.scope)
            self.values[q].update({key: run.made[key] for key in stage.outputs})
            run.drop_activations(stage, keep)
            self.passes[(stage.index, q)] = run
            self._finish(stage, q, [run.made[key] for key in stage.outputs] + run.added)

    def _backward(self, stage: Stage, q: int, scale: Callable[[tf.Tensor], tf.Tensor]) -> None:
        """Cotangents in, gradient of this stage alone, cotangents out."""
        run = self.passes.pop((stage.index, q))
        arriving = self.cotangents[q]
        incoming = flatten([arriving.get(key, []) for key in stage.outputs])
        with self._job("backward", stage, q, incoming):
            if run.tape is None:
                run = self._pass(stage, q, run.inputs, run.mapping, keep=True)
            targets, cotangents = cotangents_of(
                [(run.made[key], arriving.pop(key, [])) for key in stage.outputs]
            )
            for loss in run.added:
                factor = scale(self.steps[q].share(loss.dtype))
                targets.append(loss)
                cotangents.append(tf.cast(factor, loss.dtype))
            flat = [tensor for _, tensors in run.sources for tensor in tensors]
            assert run.tape is not None
            gradients = run.tape.gradient(targets, flat, output_gradients=cotangents) if targets else []
            leaving = iter(gradients or [None] * len(flat))
            for key, tensors in run.sources:
                self._pass_on(stage, q, key, [next(leaving) for _ in tensors])
            self.totals.add_losses(q, run.added)
            # The job is done when the sums are: or the graph optimizer would keep the gradients of all micro-batches.
            self._finish(stage, q, flatten(gradients) + self.totals.sums(stage, q))

    def _pass(self, stage: Stage, q: int, inputs: dict[int, Any], mapping: Any, keep: bool) -> Pass:
        tape = tf.GradientTape(watch_accessed_variables=False) if keep and self.training else None
        scope = NotedWrites(mapping)
        trainable = {id(v) for v in stage.trainable}
        with tape if tape is not None else contextlib.nullcontext(), scope:
            watched = [(key, watch(tape, value)) for key, value in inputs.items()]
            watched += [(id(v), watch(tape, value)) for v, value in mapping if id(v) in trainable]
            made = self._run_layers(stage, inputs)
            self._check_added(stage)
            losses = added_by(stage.layers)
            added = [tf.reduce_sum(loss) for loss in losses if loss.dtype.is_floating]
            for layer in stage.layers:
                forget_losses(layer, scope.losses)
        return Pass(inputs, mapping, made, added, watched, tape, scope)

    def _check_added(self, stage: Stage) -> None:
        """Rejects a loss that user code adds for each micro-batch: nobody says whether these are means or sums."""
        for layer, _, _ in itertools.chain.from_iterable(map(losses_of_layers, stage.layers)):
            if len(self.steps) > 1 and is_own(layer):
                raise ValueError(
                    f"The layer {layer.name!r} adds a loss with `add_loss`, and a pipeline computes it for each of "
                    f"{len(self.steps)} micro-batches: return it from `compute_loss`, which gets the whole batch, or use "
                    "`micro_batches=1`."
                )

    def _run_layers(self, stage: Stage, inputs: dict[int, Any]) -> dict[int, Any]:
        values = dict(inputs)
        for node in stage.nodes:
            outputs = run_node(node, values, self.training)
            values.update({id(symbolic): output for symbolic, output in zip(node.outputs, outputs)})
        return values

    def _head(self, head: Head, q: int | None) -> None:
        """The loss on the last stage, and its cotangents for the outputs."""
        numbers = range(len(self.steps)) if q is None else [q]
        first = numbers[0]
        with (
            self._job("loss", self.stages[-1], first),
            tf.GradientTape(watch_accessed_variables=False) as tape,
        ):
            pieces = [[identity(self.values[n][key]) for key in self.chain.output_ids] for n in numbers]
            watched = [[watch(tape, value) for value in piece] for piece in pieces]
            steps = [self.steps[n] for n in numbers]
            contribution, scaled = head(q, self._pack(pieces, steps, trim=q is None))
        with tf.device(self._device(self.stages[-1], first)):
            self.totals.losses.append(contribution)
            flat = [tensor for piece in watched for tensors in piece for tensor in tensors]
            gradients = iter(tape.gradient(scaled, flat))
            for n, piece in zip(numbers, watched):
                for key, tensors in zip(self.chain.output_ids, piece):
                    parts = [next(gradients) for _ in tensors]
                    self.cotangents[n].setdefault(key, []).append(parts)

    def _penalties(self, scale: Callable[[tf.Tensor], tf.Tensor] | None) -> None:
        """Adds the weight regularizers, once, each stage's on its device. Without a scale no gradient."""
        for stage in self.stages:
            for variable, value in self.weights[stage.index][0]:
                if not variable.trainable or variable.regularizer is None:
                    continue
                with tf.device(stage.devices[0]):
                    with tf.GradientTape(watch_accessed_variables=False) as tape:
                        tape.watch(value)
                        penalty = tf.convert_to_tensor(variable.regularizer(value))
                        scaled = penalty if scale is None else scale(penalty)
                    self.totals.losses.append(penalty)
                    if scale is not None:
                        self.totals.add_gradient(0, id(variable), tape.gradient(scaled, value))

    # What goes between jobs.

    @contextlib.contextmanager
    def _job(self, kind: str, stage: Stage, q: int, after: Sequence[Any] = ()) -> Any:
        """The device, the stage's order, and the micro-batch's part of the batch; its name shows in profiles."""
        key = (stage.index, q // self.micro_batches)
        wait = [] if tf.executing_eagerly() else self.last.get(key, []) + list(after)
        step = self._live(self.steps[q])
        with (
            tf.name_scope(f"stage_{stage.index}_{kind}_{q}"),
            tf.device(self._device(stage, q)),
            tf.control_dependencies(wait),
            step_scope(step),
        ):
            yield

    def _live(self, step: StepContext) -> StepContext:
        """A micro-batch without rows computes on a borrowed one; its losses have the weight 0."""
        if isinstance(step.rows, int) and step.rows > 0:
            return step
        rows = max(step.rows, 1) if isinstance(step.rows, int) else tf.maximum(step.rows, 1)
        return dataclasses.replace(step, rows=rows, verdicts=[])

    def _finish(self, stage: Stage, q: int, results: Sequence[Any]) -> None:
        """Notes when the job is done: the stage's next job waits for it."""
        if not tf.executing_eagerly():
            results = [t for value in results if value is not None for t in flatten(value)]
            self.last[(stage.index, q // self.micro_batches)] = [tf.group(*results)]

    def _mapping(self, stage: Stage, q: int, state: dict[int, tuple[Any, Any]]) -> list[Any]:
        weights = self.weights[stage.index][q // self.micro_batches]
        known = {id(v) for v, _ in weights}
        return weights + [pair for key, pair in state.items() if key not in known]

    def _pass_on(self, stage: Stage, q: int, key: int, gradients: list[Any]) -> None:
        """Hands the gradients of what a stage took to the stage that made it, or adds them to the sums."""
        if key in stage.inputs:
            self.cotangents[q].setdefault(key, []).append(gradients)
        elif gradients:
            self.totals.add_gradient(q, key, zero_unless(self.steps[q], gradients[0]))

    def outputs(self) -> Any:
        """The outputs for the whole batch, on the last stage's first device."""
        with tf.device(self.stages[-1].devices[0]):
            pieces = [[values[key] for key in self.chain.output_ids] for values in self.values]
            return self._pack(pieces, self.steps, trim=True)

    def _pack(self, pieces: list[list[Any]], steps: Sequence[StepContext], trim: bool) -> Any:
        joined = [join_micro_batches(list(parts), steps, trim) for parts in zip(*pieces)]
        return pack_outputs(self.chain.graph, joined)

    def _on_replicas(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Stage, int]]:
        """Each job with its stage and, for one replica after the other, the number of its micro-batch."""
        for job in jobs:
            for replica in range(self.replicas):
                yield job, self.stages[job.stage], replica * self.micro_batches + job.micro_batch

    def _device(self, stage: Stage, q: int) -> str:
        return stage.devices[q // self.micro_batches]


def _read(variables: Sequence[Any], device: str) -> list[tuple[Any, tf.Tensor]]:
    """The variables with their values now (inside of a scope that notes writes: the noted ones), on `device`."""
    with tf.device(device):
        return [(v, tf.identity(tf.convert_to_tensor(v.value))) for v in variables]
