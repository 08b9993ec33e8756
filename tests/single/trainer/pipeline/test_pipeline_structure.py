"""Where and in which order a pipelined step runs, its graph after optimization, and its activation memory."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import unisono
from unisono.distribute.pipeline import Pipeline
from unisono.trainer.pipeline.engine import PipelinedStep
from unisono.trainer.pipeline.micro_batches import micro_steps

pytestmark = pytest.mark.as_for_users  # graphs after optimization

layers = keras.layers


def tanh_chain() -> keras.Model:
    return unisono.Sequential([keras.Input((4,)), *[layers.Dense(4, activation="tanh") for _ in range(4)]])


def traced(schedule: str, rematerialize: bool = False, stages: int = 2, micro_batches: int = 4) -> Any:
    """The concrete function of a step, its plan and its input."""
    devices = [f"CPU:{k + 1}" for k in range(stages)]
    pipeline = Pipeline(devices, micro_batches, schedule=schedule, rematerialize=rematerialize)
    model = tanh_chain()
    plan = pipeline.plan(model)

    def head(q: int | None, outputs: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.square(outputs))

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> Any:
        run = PipelinedStep(
            plan.chain, plan.stages, tf.split(x, micro_batches), micro_steps(8, micro_batches)
        )
        result = run.train(plan.jobs, head, True, rematerialize)
        return [result.gradients[id(v)] for v in model.trainable_variables]

    x = tf.ones((8, 4))
    return step, plan, x


def operations(graph: Any, kind: str) -> list[Any]:
    return [op for op in graph.get_operations() if op.type == kind]


def job_of(op: Any) -> str:
    """The job of an operation; TensorFlow names backward operations after the forward pass."""
    name = next((part for part in op.name.split("/") if part.startswith("stage_")), "")
    return name.replace("forward", "backward") if op.name.startswith("gradient_tape/") else name


def ancestors(op: Any) -> set[str]:
    """The jobs that an operation waits for."""
    found, todo, jobs = set(), [op], set()
    while todo:
        for before in [t.op for t in todo[-1].inputs] + list(todo.pop().control_inputs):
            if before.name not in found:
                found.add(before.name)
                jobs.add(job_of(before))
                todo.append(before)
    return jobs


@pytest.mark.parametrize("schedule, rematerialize", [("gpipe", False), ("1f1b", True)])
@pytest.mark.short("gpipe-False")
def test_each_job_runs_on_its_stage_after_the_job_before_it(schedule, rematerialize):
    step, plan, x = traced(schedule, rematerialize)
    graph = step.get_concrete_function(x).graph
    products = operations(graph, "MatMul")
    for op in products:
        stage = int(job_of(op).split("_")[1])
        assert op.device.endswith(f"CPU:{stage + 1}"), (op.name, op.device)
    for stage in plan.stages:
        order = [f"stage_{j.stage}_{j.kind}_{j.micro_batch}" for j in plan.jobs if j.stage == stage.index]
        for before, job in itertools.pairwise(order):
            inside = [op for op in products if job_of(op) == job]
            assert inside and all(before in ancestors(op) for op in inside), f"{job} must wait for {before}"


@pytest.fixture(autouse=True)
def no_graphs_of_other_tests():
    """TensorFlow keeps the graphs of all functions since the last export of its metadata."""
    context.enable_run_metadata()
    context.export_run_metadata()
    context.disable_run_metadata()


def optimized_nodes(run: Any) -> list[Any]:
    """The nodes of the optimized graphs that `run()` builds and executes."""
    context.enable_run_metadata()
    try:
        run()
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    nodes = []
    for graphs in metadata.function_graphs:
        graph = graphs.post_optimization_graph
        nodes += [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return nodes


def activations_computed(run: Any) -> int:
    """The number of tanh activations in the optimized graphs, fused ones included."""
    nodes = optimized_nodes(run)
    found = [n for n in nodes if n.op == "Tanh" or b"Tanh" in n.attr["fused_ops"].list.s]
    return len({node.name for node in found})


@pytest.mark.long
def test_rematerialization_survives_graph_optimization_and_spares_the_pass_that_has_just_run():
    # 4 layers, 4 micro-batches: 16 activations. GPipe rematerializes all, 1F1B all but those of the last stage.
    for schedule, rematerialize, expected in [
        ("gpipe", False, 16),
        ("gpipe", True, 32),
        ("1f1b", False, 16),
        ("1f1b", True, 24),
    ]:
        step, _, x = traced(schedule, rematerialize)
        assert activations_computed(functools.partial(step, x)) == expected, (schedule, rematerialize)


def test_gradients_are_summed_as_they_come_and_not_all_kept():
    step, _, x = traced("gpipe")
    sums = [node for node in optimized_nodes(lambda: step(x)) if node.op in ("AddN", "AddV2", "_MklAddV2")]
    assert len({node.name for node in sums}) >= 3 * 8, "8 variables, 4 micro-batches"
    assert not [node.name for node in sums if node.op == "AddN" and node.attr["N"].i > 2]


@pytest.mark.long
def test_weights_of_the_batch_are_found_without_running_forward_twice():
    with Pipeline(["CPU:1", "CPU:2"], 4, schedule="1f1b").scope():
        model = tanh_chain()
        loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
        model.compile("sgd", loss, steps_per_execution=1)
    x, weight = np.ones((8, 4), "float32"), np.linspace(0, 1, 8)
    model.train_on_batch(x, x, sample_weight=weight)
    assert activations_computed(lambda: model.train_on_batch(x, x, sample_weight=weight)) == 4 * 4


@pytest.mark.long
def test_optimizer_works_where_the_weights_are():
    with Pipeline(["CPU:1", "CPU:2"], 2).scope():
        model = tanh_chain()
        model.compile(keras.optimizers.Adam(0.1, global_clipnorm=0.1), "mse", run_eagerly=False)
    x = np.ones((4, 4), "float32")
    model.train_on_batch(x, x)
    devices = [variable.value.device[-5:] for variable in model.optimizer.variables[2:]]
    assert devices == ["CPU:1"] * 8 + ["CPU:2"] * 8
    helpers.assert_close(model.predict(x, verbose=0), model(x), helpers.FLOAT32)


def most_kept(schedule: str, rematerialize: bool) -> list[int]:
    """For each stage, the most tanh activations that are still needed when one of its jobs begins."""
    step, plan, x = traced(schedule, rematerialize, micro_batches=8)
    made = operations(step.get_concrete_function(x).graph, "Tanh")
    most = []
    for stage in plan.stages:
        order = [f"stage_{j.stage}_{j.kind}_{j.micro_batch}" for j in plan.jobs if j.stage == stage.index]
        lives = [
            (order.index(job_of(op)), max(map(order.index, readers)))
            for op in made
            if job_of(op) in order
            and (readers := [job_of(each) for each in op.outputs[0].consumers() if job_of(each) in order])
        ]
        most.append(max(sum(first < time <= last for first, last in lives) for time in range(len(order))))
    return most


@pytest.mark.long
def test_activations_that_are_kept_follow_the_schedule():
    """M micro-batches, K stages of L layers: GPipe keeps M L, 1F1B min(M, K - k) L."""
    kept = {case: most_kept(*case) for case in itertools.product(("gpipe", "1f1b"), (False, True))}
    assert kept == {
        ("gpipe", False): [8 * 2, 8 * 2],
        ("gpipe", True): [0, 0],
        ("1f1b", False): [2 * 2, 1 * 2],
        ("1f1b", True): [0, 1 * 2],  # the last stage reuses the forward pass that it has just run
    }
