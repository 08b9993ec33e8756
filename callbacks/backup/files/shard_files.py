"""The shards of workers other than the chief: each writes its own file next to the backup, at the same time."""

import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from ....compat.keras_private.variables import raw_value
from ....compat.tensorflow_private.clusters import get_value, set_value
from ....distribute.environment import peer_timeout
from ....distribute.objects import SaveError, StoreError, names_in
from ....distribute.sharding.sharded_value import ShardedValue
from ....distribute.workers.agreement import from_chief, place_among_workers
from ...safe_file import write_safely
from . import container

_LONGEST = 10  # times the timeout of peers: writing a part takes longer than a heartbeat
IS_PART = re.compile(r"^backup-.*\.part-[0-9]+\.unisono$")
_saves = itertools.count()  # every worker begins the same saves

Shards = dict[str, dict[int, Any]]


def find_local_shards(variables: Mapping[str, Sequence[Any]], kind: str) -> Shards:
    """Return this worker's "shards" or "copies" (`kind`): group (none is left out) -> number of the variable -> arrays."""
    return {
        group: {i: each[kind] for i, each in enumerate(members) if isinstance(each, dict) and kind in each}
        for group, members in variables.items()
    }


def job(
    strategy: tf.distribute.Strategy,
    chief: bool,
    store: Any,
    content: dict[str, Any],
    summary: dict[str, Any],
) -> Callable[[], None] | None:
    """Return what this worker writes: the chief the backup, others their shards. Context: the main thread, between steps."""
    worker, workers = place_among_workers(strategy)
    held = find_local_shards(content["variables"], "shards") if workers > 1 else {}
    if not (shards := {group: members for group, members in held.items() if members}):
        return (lambda: store.write(content, summary)) if chief else None
    save = next(_saves)
    fit, number = from_chief([store.fit, 0 if worker else store.next_number()], strategy)
    path = store.path_of(int(fit), int(number))
    if worker:
        return lambda: write_part(path, save, worker, shards)
    return lambda: store.write({**content, "parts": wait_for_parts(path, save, workers)}, summary)


def part_path(path: Path, worker: int) -> Path:
    """Return where a worker writes its part of the backup `path`."""
    return path.with_name(f"{path.stem}.part-{worker}.unisono")


def part_paths(path: Path) -> list[Path]:
    """Return the files of parts that belong to a backup, by their names."""
    return sorted(
        path.parent / name
        for name in names_in(path.parent)
        if name.startswith(f"{path.stem}.") and IS_PART.match(name)
    )


def write_part(path: Path, save: int, worker: int, shards: Shards) -> None:
    """Write this worker's part of the backup `path` and tell the chief. Context: the writing thread of a worker.

    Each worker writes its part whole, then sends its checksum. The chief waits for all, then writes the backup, which
    names the parts: only then is the backup there. Parts without one are left over from an interrupted save. If a part
    cannot be written, the chief raises the same SaveError.
    """
    own, key = part_path(path, worker), f"unisono/backup/{save}/{worker}"
    try:
        write_safely(own, lambda stream: container.write(stream, {"shards": shards}, {}))
        set_value(key, json.dumps({"name": own.name, "checksum": container.checksum(own).hex()}))
    except OSError as error:
        set_value(key, json.dumps({"error": str(error), "may_pass": isinstance(error, StoreError)}))
        raise


def wait_for_parts(path: Path, save: int, workers: int) -> list[dict[str, str]]:
    """Return the parts of all other workers once written, or a SaveError. Context: the writing thread of the chief."""
    found, until = [], time.monotonic() + _LONGEST * peer_timeout()
    for worker in range(1, workers):
        try:
            left = max(0.1, until - time.monotonic())
            answer = json.loads(get_value(f"unisono/backup/{save}/{worker}", left))
        except tf.errors.DeadlineExceededError:
            answer = {"error": f"it was not written within {_LONGEST * peer_timeout():g} s"}
        if "error" in answer:
            raise (StoreError if answer.get("may_pass") else SaveError)(
                f"{path} was not written, because worker {worker} could not write its part ({answer['error']}); earlier "
                "backups are unchanged. Make the directory writable for all workers."
            )
        found.append(answer)
    return found


def with_parts(path: Path, content: Any, outline: bool, only: int | None) -> Any:
    """Return the content of the backup `path` with the shards of its parts; raise a DamagedFileError for a foreign part.

    Check every byte, but keep nothing, of an `outline` and of the parts of workers other than `only`.
    """
    if not isinstance(content, dict) or "parts" not in content:
        return content
    try:
        if len(content["parts"]) + 1 != len(content["workers"]):
            raise ValueError(f"it has {len(content['parts'])} parts and {len(content['workers'])} workers")
        for worker, part in enumerate(content["parts"], 1):
            own = path.with_name(part["name"])
            if own.name != part["name"] or not own.name.endswith(f".part-{worker}.unisono"):
                raise ValueError(f"{part['name']!a} is not the name of a part of worker {worker}")
            shards = container.read(own, outline or only not in (None, worker))[1]["shards"]
            if container.checksum(own).hex() != part["checksum"]:
                raise container.DamagedFileError(f"{own} belongs to another save")
            for group, members in shards.items():
                for i, arrays in members.items():
                    content["variables"][group][i]["shards"].extend(arrays)
    except StoreError:
        raise
    except (OSError, *container.WRONG) as error:
        raise container.DamagedFileError(
            f"{path} is damaged: a part of it cannot be read ({str(error)[:300]})."
        ) from error
    return content


def own_are_enough(content: Any, variables: Mapping[str, Sequence[Any]], place: tuple[int, int]) -> bool:
    """Return whether the worker at `place_among_workers` needs only its own shards, because the same variables are sharded.

    The `content` has all parts or their outlines; `variables` are in the groups and the order of the backup.
    """
    pairs = [
        (saved["shards"], raw_value(variable))
        for group, members in content["variables"].items()
        for saved, variable in itertools.zip_longest(members, variables.get(group, ()))
        if isinstance(saved, dict) and "shards" in saved
    ]
    return len(content["parts"]) + 1 == place[1] and all(
        isinstance(value, ShardedValue) and len(shards) == place[1] * len(value.shards)
        for shards, value in pairs
    )
