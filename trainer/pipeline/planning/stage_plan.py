"""How one model runs on one pipeline: its stages, their costs, and the expected step."""

import functools
import itertools
import math
import weakref
from collections.abc import Sequence
from typing import Any

from ....distribute.hardware.device_memory import in_words
from ....distribute.pipeline.balance import balance, stage_costs
from ....distribute.pipeline.pipeline import Pipeline, register_planner
from ....distribute.pipeline.schedule import SCHEDULES, Simulation, forward_only, peak_activations, simulate
from ....distribute.pipeline.timeline import Timeline
from ....state.trained_model import TrainedModel, batch_norms_of
from . import costs as block_costs
from .costs import BlockCost
from .graph import Chain, Stage
from .placement import move_weights

# For each byte of a trainable variable: the variable, its gradient, and two of optimizer state, as for Adam.
_WEIGHT_AND_GRADIENT, _SLOTS = 2.0, 2.0


class Plan:
    """A model split for a pipeline. `samples` are those of a global batch, for the costs; None: 32 for a micro-batch."""

    def __init__(self, model: TrainedModel, pipeline: Pipeline, samples: int | None) -> None:
        self.pipeline = pipeline
        self.chain = Chain(model)
        self.chain.check_enough(pipeline.stages)
        self.batch_size_known = samples is not None
        self.samples_checked = False  # whether the layers were searched for operations that combine samples
        self.parts = pipeline.micro_batches * pipeline.replicas
        self.micro_batch_size = 32 if samples is None else max(1, -(-samples // self.parts))
        self.jobs = SCHEDULES[pipeline.schedule](pipeline.stages, pipeline.micro_batches)
        self.forward_jobs = forward_only(pipeline.stages, pipeline.micro_batches)
        self._kept = peak_activations(self.jobs)
        self.sizes = self._sizes()
        self.stages: list[Stage] = self.chain.cut(self.sizes)
        for stage in self.stages:
            stage.devices = pipeline.devices[stage.index :: pipeline.stages]
        # The variables whose optimizer state is on the devices of the weights.
        self.optimizers: weakref.WeakSet[Any] = weakref.WeakSet()

    @functools.cached_property
    def costs(self) -> list[BlockCost]:
        """The cost of each block; estimated or measured on first use."""
        if self.pipeline.cost == "measured":
            return block_costs.measure(self.chain, self.micro_batch_size, self.pipeline.devices[0])
        return block_costs.estimate(self.chain, self.micro_batch_size)

    def _sizes(self) -> list[int]:
        pipeline, chain = self.pipeline, self.chain
        if pipeline.partition != "auto":
            sizes = chain.sizes_of(pipeline.partition)
            limit = math.inf if pipeline.memory_limit is None else pipeline.memory_limit
            for index, needs in enumerate(self._memory_of_stages(sizes) if limit < math.inf else ()):
                if needs > limit:
                    raise ValueError(
                        f"`memory_limit` ({limit:.4g} bytes) must be at least the estimated need of stage {index} of "
                        f"partition={list(sizes)} ({needs:.4g} bytes): move layers to other stages."
                    )
            return sizes
        if pipeline.stages == 1 and pipeline.memory_limit is None:
            return [len(chain.blocks)]
        groups = chain.groups()
        edges = list(itertools.accumulate(groups, initial=0))
        in_groups = balance(
            stage_costs([cost.total for cost in self.costs], groups),
            pipeline.stages,
            cut_costs=[self.costs[edge - 1].sends for edge in edges[1:-1]],
            memory_of=lambda k, start, stop: self.memory(k, edges[start], edges[stop]),
            memory_limit=pipeline.memory_limit,
        )
        return [int(size) for size in stage_costs(groups, in_groups)]

    def _memory_of_stages(self, sizes: Sequence[int]) -> list[float]:
        edges = itertools.accumulate(sizes, initial=0)
        return [self.memory(k, start, stop) for k, (start, stop) in enumerate(itertools.pairwise(edges))]

    def memory(self, stage: int, start: int, stop: int) -> float:
        """Estimate the bytes of blocks start to stop - 1 as this stage: weights, gradients, state, kept activations."""
        blocks = self.costs[start:stop]
        times = _WEIGHT_AND_GRADIENT + _SLOTS / (self.pipeline.replicas if self.pipeline.sharded else 1)
        weights = sum(times * cost.weights + cost.fixed for cost in blocks)
        activations = sum(cost.activations for cost in blocks)
        boundary = self.costs[start - 1].sends if start else 0.0
        if self.pipeline.rematerialize:
            return weights + self._kept[stage] * boundary + activations
        return weights + self._kept[stage] * (boundary + activations)

    def simulation(self, transfer: float | Sequence[float] = 0.0) -> Simulation:
        """Return the step as simulated from the costs, with these times for the transfers (in the costs' unit)."""
        return simulate(
            stage_costs([cost.forward for cost in self.costs], self.sizes),
            stage_costs([cost.backward for cost in self.costs], self.sizes),
            micro_batches=self.pipeline.micro_batches,
            schedule=self.pipeline.schedule,
            transfer=transfer,
            rematerialize=self.pipeline.rematerialize,
        )

    def timeline(self, transfer: float | Sequence[float] = 0.0) -> Timeline:
        """Return the diagram of `simulation`."""
        return Timeline(self.simulation(transfer), unit=self.costs[0].unit)

    def check_batch_size(self, samples: int | None) -> None:
        """Reject a global batch with fewer samples than micro-batches."""
        pipeline = self.pipeline
        if samples is not None and samples < self.parts:
            of_replicas = f" * `replicas` ({pipeline.replicas})" if pipeline.replicas > 1 else ""
            raise ValueError(
                f"`batch_size` ({samples}) must be at least `micro_batches` ({pipeline.micro_batches}){of_replicas}: "
                f"use a larger `batch_size` or fewer `micro_batches`."
            )

    def check_statistics(self) -> None:
        """Reject batch statistics over all samples, because the samples are in several micro-batches."""
        pipeline = self.pipeline
        if self.parts == 1:
            return
        for layer in batch_norms_of(self.chain.model):
            if layer.synchronized and layer.trainable:
                raise ValueError(
                    f"BatchNormalization {layer.name!r} has synchronized=True, but a Pipeline with micro_batches="
                    f"{pipeline.micro_batches} and replicas={pipeline.replicas} normalizes with the statistics of a "
                    "micro-batch: use synchronized=False there, or layers.LayerNormalization or GroupNormalization"
                )

    def summary(self) -> str:
        """Return a table of the stages, and the expected step."""
        unit = self.costs[0].unit
        costs = stage_costs([cost.total for cost in self.costs], self.sizes)
        table = [["stage", "device", "layers", "parameters", f"cost ({unit})", "share", "memory"]]
        for stage, size, cost, memory in zip(
            self.stages, self.sizes, costs, self._memory_of_stages(self.sizes)
        ):
            first, last = stage.blocks[0].name, stage.blocks[-1].name
            parameters = sum(int(v.shape.num_elements() or 0) for v in stage.weights)
            table.append(
                [
                    str(stage.index),
                    ", ".join(_short(device) for device in stage.devices),
                    f"{size}: {first}" + (f" to {last}" if size > 1 else ""),
                    f"{parameters:,}",
                    f"{cost:.3g}",
                    f"{cost / (sum(costs) or 1.0):.1%}",
                    in_words(memory),
                ]
            )
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        return "\n".join([*lines, self._expectation()])

    def _expectation(self) -> str:
        pipeline, simulation = self.pipeline, self.simulation()
        kept = ", ".join(str(count) for count in simulation.peak_activations)
        again = ", rematerialized" if pipeline.rematerialize else ""
        copies = f" on each of {pipeline.replicas} replicas" if pipeline.replicas > 1 else ""
        known = "" if self.batch_size_known else " (batch size not known yet: memory for 32 samples)"
        return (
            f"schedule {pipeline.schedule}, {pipeline.micro_batches} micro-batches of {self.micro_batch_size} samples"
            f"{copies}{again}{known}; expected bubble {simulation.bubble:.1%}, "
            f"{simulation.speedup:.2f} times one device without transfers; micro-batches kept by stage: {kept}"
        )


def _short(device: str) -> str:
    return device.replace("/job:localhost/replica:0/task:0/device:", "").replace("/replica:0", "")


def _plan(model: TrainedModel, pipeline: Pipeline, samples: int | None) -> Plan:
    plan = Plan(model, pipeline, samples)
    move_weights(plan.stages, state_is_sharded=pipeline.sharded is not None and pipeline.replicas > 1)
    return plan


register_planner(_plan)
