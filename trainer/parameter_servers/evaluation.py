"""The loops of `evaluate` and `predict` on workers: results are used in the order of the input, whoever is first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from ...compat.training import pythonify_logs
from ...distribute.parameter_servers.strategy import pool_of
from .execution_length import AsyncPace
from .input_pieces import Pieces
from .worker_steps import WorkerSteps


def test_steps(model: Any, source: Any, callbacks: Any) -> dict[str, Any]:
    """One pass over `source` for `evaluate`: every row is counted once, in order, whatever happens to workers."""
    function: WorkerSteps = model.test_function
    fixed = None if model._auto_steps else model.steps_per_execution
    pool = pool_of(model.distribute_strategy)
    pieces = Pieces(source)
    pace = AsyncPace(fixed, pool.num_workers, source.steps_per_epoch, None)
    first = pieces.next(pace.next(0))
    if first is None:
        return {}
    function.prepare(first, fixed)
    totals = function.totals()
    logs: dict[str, Any] = {}
    done = 0
    in_order = _in_order(
        pool.phase(function.run, function.memory.forget),
        pieces,
        first,
        pace,
        function,
        lambda piece: function.prepare(piece, fixed),
        lambda: model.stop_evaluating,
        callbacks.on_test_batch_begin,
    )
    for piece, rows in in_order:
        totals.add(rows)
        done += piece.steps
        logs = pythonify_logs(totals.logs())
        callbacks.on_test_batch_end(done - 1, logs)
    totals.commit()
    return logs


def predict_steps(model: Any, source: Any, callbacks: Any, join: Callable[[list[Any]], Any]) -> list[Any]:
    """The outputs of every batch of `source`, in order."""
    function = model.predict_function
    fixed = None if getattr(model, "_auto_steps", True) else model.steps_per_execution
    pool = pool_of(model.distribute_strategy)
    pieces = Pieces(source)
    pace = AsyncPace(fixed, pool.num_workers, source.steps_per_epoch, None)
    first = pieces.next(pace.next(0))
    if first is None:
        return []
    function.prepare(first)
    collected: list[Any] = []
    in_order = _in_order(
        pool.phase(function.run, function.memory.forget),
        pieces,
        first,
        pace,
        function,
        function.prepare,
        lambda: model.stop_predicting,
        callbacks.on_predict_batch_begin,
    )
    for _, outputs in in_order:
        collected.extend(outputs)
        callbacks.on_predict_batch_end(len(collected) - 1, {"outputs": join(outputs)})
    return collected


def _in_order(
    entering: Any,
    pieces: Pieces,
    first: Any,
    pace: AsyncPace,
    function: Any,
    prepare: Any,
    stopped: Any,
    begin: Any,
) -> Iterator[tuple[Any, Any]]:
    """(piece, result) pairs in the order of the input, each as soon as those before it are there."""
    arrived: dict[int, tuple[Any, Any]] = {}
    scheduled, next_number = 0, None
    piece = first
    with entering as phase:
        while True:
            while piece is not None and phase.under_way + len(arrived) < function.lines and not stopped():
                prepare(piece)
                numbered = function.numbered(piece)
                next_number = numbered.number if next_number is None else next_number
                begin(scheduled)
                scheduled += piece.steps
                phase.put(numbered)
                piece = pieces.next(pace.next(scheduled))
            if not phase.under_way:
                return
            began = time.perf_counter()
            done, result = phase.get()
            function.done(done)
            pace.done(done.steps, began)
            arrived[done.number] = done, result
            while next_number in arrived:
                yield arrived.pop(next_number)
                next_number += 1
