"""Ray Train, Tune and Data, with the extra `ray`: shards as inputs of `fit`, backups as Ray's checkpoints."""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from typing import Any

import ray.train  # pyright: ignore[reportMissingImports]
import ray.tune  # pyright: ignore[reportMissingImports]
import tensorflow as tf

from .callbacks import BackupAndRestore
from .callbacks.backup.files.shard_files import part_paths
from .callbacks.backup.files.store import latest_backup
from .distribute.workers.agreement import gather_numbers
from .distribute.workers.cluster import is_chief


def dataset(shard: Any, features: Any = None, labels: Any = None, batch_size: int = 32, **options: Any):
    """Make an input for `fit`, `evaluate` or `predict` from a shard of Ray Data, so that each sample is used once.

    Ray gives all workers equally many samples, and leaves out the rest.

    Args:
        shard: from `ray.train.get_dataset_shard`, or the `tf.data.Dataset` that its `to_tf` returned.
        features: the columns of `x`, as `to_tf` takes them: a name, or a list of names for a dict.
        labels: the columns of `y`, likewise.
        batch_size: int; samples of the global batch, over all replicas of all workers.
        **options: further arguments of `to_tf`, such as `local_shuffle_buffer_size`.
    """

    def make_dataset(context: tf.distribute.InputContext) -> tf.data.Dataset:
        size = context.get_per_replica_batch_size(batch_size)
        given = isinstance(shard, tf.data.Dataset)
        return shard.rebatch(size) if given else shard.to_tf(features, labels, batch_size=size, **options)

    return make_dataset


class BackupAndReport(BackupAndRestore):
    """Saves a backup after every epoch and reports it to Ray with the metrics; a restarted run or trial resumes from it.

    Pass it on every worker, with options of `BackupAndRestore` other than `directory`. Backups are in a temporary directory
    until Ray stores them as a `Checkpoint`, so workers with sharded state must be on one host.
    """

    def __init__(self, **options: Any):
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster")
        name = hashlib.sha256(json.dumps(cluster).encode()).hexdigest()  # all workers need the same path
        shared = f"{tempfile.gettempdir()}/unisono-{name[:16]}"
        super().__init__(shared if cluster else tempfile.mkdtemp(prefix="unisono-"), **options)

    def on_train_begin(self, logs: dict | None = None) -> None:
        """Resume from the checkpoint that Ray passes to this run or trial, if there is one."""
        checkpoint = _session().get_checkpoint()
        first = _session() is ray.tune or ray.train.get_context().get_local_rank() == 0
        if checkpoint is not None and first:
            checkpoint.to_directory(self.directory)
        gather_numbers([0.0], self.model.distribute_strategy)  # the others on this host wait for it
        super().on_train_begin(logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Save, then report; all workers wait here for one another."""
        super().on_epoch_end(epoch, logs)
        self._writer.wait()
        newest = latest_backup(self.directory) if is_chief() else None
        with tempfile.TemporaryDirectory() as folder:
            for path in [newest.path, *part_paths(newest.path)] if newest else []:
                shutil.copy(path, folder)
            checkpoint = _session().Checkpoint.from_directory(folder) if newest else None
            _session().report(dict(logs or {}), checkpoint=checkpoint)


def _session() -> Any:
    """Return `ray.train` in a worker of Ray Train, and `ray.tune` in a trial of Ray Tune."""
    with contextlib.suppress(RuntimeError, DeprecationWarning):
        return ray.train.get_context() and ray.train
    return ray.tune
