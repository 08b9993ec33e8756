"""The order in which the processes of `pytest -n N --dist worksteal` receive tests."""

import itertools
import os

LONG = ("fuzz", "workers")  # folders whose tests take long


def in_order(items):
    """Puts long tests first and short ones last in each process's share, because other processes steal from its end.

    `worksteal` gives each of N processes one Nth of the list. The first share has the tests that start processes: the
    machine would be overloaded if all began with them. Tests of one file share fixtures, so they stay together.
    """
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    parts = [[] for _ in range(count)]
    parts[0] += (item for item in items if _is_long(item))
    others = [item for item in items if not _is_long(item)]
    for is_unit in (False, True):
        of_a_kind = (item for item in others if (item.path.parent.name == "unit") == is_unit)
        where = parts if is_unit or count == 1 else parts[1:]
        for _, of_a_file in itertools.groupby(of_a_kind, key=lambda item: item.path):
            part = min(where, key=len)
            part += of_a_file
    return list(itertools.chain(*parts))


def _is_long(item):
    return item.path.parent.name in LONG or item.get_closest_marker("process") is not None
