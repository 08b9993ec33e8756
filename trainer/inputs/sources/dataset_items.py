"""The items of a `keras.utils.PyDataset`, made by the threads or processes that it requests."""

from __future__ import annotations

import collections
import concurrent.futures
import multiprocessing
from collections.abc import Callable, Generator
from typing import Any


def items_of(dataset: Any, numbers: list[int]) -> Generator[Any, None, None]:
    """The items with these numbers, made by the threads or processes that the dataset requests.

    They come in the order of their numbers, and are made at most `max_queue_size` ahead.
    """
    workers, processes = getattr(dataset, "workers", 1), getattr(dataset, "use_multiprocessing", False)
    if workers <= 1 and not (workers > 0 and processes):
        yield from (dataset[number] for number in numbers)
        return
    ahead = max(workers, int(getattr(dataset, "max_queue_size", 10)))
    if processes:
        # As in Keras: the children get the dataset with the fork, at the start of every epoch.
        context = multiprocessing.get_context("fork")
        pool: Any = concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=context, initializer=_keep_dataset, initargs=(dataset,)
        )
        get: Callable[[int], Any] = _item_of_kept
    else:
        pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="unisono-pydataset")
        get = dataset.__getitem__
    waiting: collections.deque[Any] = collections.deque()
    try:
        for number in numbers:
            waiting.append(pool.submit(get, number))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_kept: list[Any] = []


def _keep_dataset(dataset: Any) -> None:
    _kept[:] = [dataset]


def _item_of_kept(number: int) -> Any:
    return _kept[0][number]
