"""Runs one trainer: answers each line of JSON on its input with one line on its output."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
import traceback
from typing import Any

BEGAN = time.perf_counter()


def main() -> None:
    """Answers orders until the order "end"; an error is an answer too, in one line.

    The first answer comes without an order: the seconds of the import and until the end of the first step. Orders are
    `{"do": "short"}`, `{"do": "steady", ...}` and `{"do": "end"}`.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the frameworks goes to stderr

    def answer(content: dict[str, Any]) -> None:
        print(json.dumps(content), file=answers, flush=True)

    try:
        orders = _orders(*sys.argv[1:])
        answer(next(orders))
        for line in sys.stdin:
            answer(orders.send(json.loads(line)))
    except StopIteration:
        pass
    except Exception as error:
        traceback.print_exc()
        answer({"error": f"{type(error).__name__}: {_first_sentence(error)}"})


def _first_sentence(error: Exception) -> str:
    """The first line of the message: TensorFlow puts the location of the operation before it."""
    places = ("Graph execution error", "Detected at node", "File ", "<stack traces")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(places)]
    return lines[0][:200] if lines else "no message"


def _orders(name: str, module_name: str, task_in_json: str) -> Any:
    from .task import Task

    task = Task(**json.loads(task_in_json))
    module: Any = importlib.import_module(f".{module_name}", __package__)
    if hasattr(module, "load"):
        module.load(name)
    imported = time.perf_counter() - BEGAN
    if hasattr(module, "prepare"):
        module.prepare(sys.modules.get("tensorflow"), task.replicas)
    train = module.make(name, task)
    train(1, 1)
    first = time.perf_counter() - BEGAN
    order = yield {"import": imported, "first_step": first}
    while order["do"] != "end":
        began = time.perf_counter()
        if order["do"] == "short":
            module.make(name, task)(order["epochs"], order["steps"])
            order = yield {"seconds": time.perf_counter() - began}
        else:
            epochs = train(order["epochs"], order["steps"], goes_on=True)
            order = yield {"epochs": epochs, "whole": time.perf_counter() - began}
    yield {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


if __name__ == "__main__":
    main()
