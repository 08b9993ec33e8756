"""Training runs in separate processes that can be killed at a chosen moment and restarted.

Each start is a fork (see `Forked`) and costs only the training. The child reports progress on a pipe (`step`, `save`,
`epoch`, `validation`, `restore`, `compilation`). The driver waits for the n-th such event and a short delay, and sends the
signal from outside. A run of several processes is one `launch`, which restarts all of them after each kill.

Run as a program, this file is one start: `kill_driver.py ORDER`.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import functools
import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forked import Forked

KINDS = ("step", "save", "epoch", "validation")
MOMENTS = (*KINDS, "restore", "compilation")
# (scenario, strategy) of several processes, by the arguments of `launch`.
LAUNCHED = {
    ("arrays", "workers"): ("--workers", 2),
    ("half", "sharded-workers"): ("--workers", 2),
    ("arrays", "pipeline-workers"): ("--workers", 1, "--stages", 2),
    ("servers", "servers"): ("--workers", 2, "--parameter-servers", 1),
}
# More ways to store state and backups in one process.
STORED = (
    ("half", "sharded2"),
    ("arrays", "weights2"),
    ("tfdata", "mesh2"),
    ("arrays", "bucket"),
    ("half", "bucket"),
)
# (scenario, strategy): each scenario, each strategy that stores state differently, then each combined with another.
COMBINATIONS = (
    ("arrays", "none"),
    ("half", "pipeline2"),
    ("tfdata", "mirrored2"),
    ("arrays", "pipeline2"),
    ("half", "mirrored2"),
    ("tfdata", "central2"),
)
# Stateful inputs, each on one device. Those that prefetch in a nondeterministic order have no reproducible result.
EXACT_INPUTS = [
    "from_generator",
    "from_drawing_generator",
    "from_global_generator_function",
    "py_function",
    "numpy_in_py_function",
    "numpy_held_in_object",
    "numpy_global",
    "python_global",
    "seeded_layer",
    "unseeded_layer",
    "own_generator",
    "global_generator",
    "uniform",
    "uniform_with_seed",
    "image_flip",
    "shuffled",
    "shuffled_and_cached",
    "shuffled_over_cache",
    "drawn_and_cached",
    "numpy_and_cached",
    "mixed",
    "random_dataset",
    "repeated",
    "interleaved",
    "ragged_and_sparse",
    "pydataset",
    "pydataset_shuffles_itself",
    "pydataset_own_shuffle",
    "iterable_own_shuffle",
    "iterable_global_shuffle",
]


@dataclasses.dataclass(frozen=True)
class Kill:
    """Sends `number` after the `nth` event `kind`: the driver sends SIGKILL after `delay` seconds, the child the others."""

    kind: str
    nth: int
    delay: float
    number: int = signal.SIGKILL
    task: int = 0  # of several: which of those that have started, or the one that reports (0)
    clock: int = 0  # seconds by which the clock of this start is wrong
    full: int = 0  # which of its writes to the disk fails, because it is full

    @classmethod
    def draw(cls, rng: random.Random, kind: str | None = None) -> Kill:
        """A random moment; `kind` fixes what is in progress."""
        kind = kind or rng.choice(KINDS)
        return cls(kind, rng.randint(1, 6 if kind in ("step", "save") else 2), rng.uniform(0.0, 0.03))

    @classmethod
    def draw_any(cls, rng: random.Random, several: bool) -> Kill:
        """A random moment, signal and disturbance."""
        moment = rng.choice(MOMENTS)
        nth = rng.randint(1, 8 if moment in ("step", "save") else 1 if moment == "compilation" else 2)
        number = rng.choice([signal.SIGKILL] * 4 + [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
        if several or moment in ("restore", "compilation"):
            number = signal.SIGKILL
        clock = rng.choice((0, 0, 0, 86400, -86400))
        full = 0 if several else rng.choice((0, 0, 0, 0, 0, rng.randint(1, 30)))
        delay = rng.uniform(0.0, 0.5 if moment == "compilation" else 0.03)
        return cls(moment, nth, delay, number, rng.randint(0, 3) if several else 0, clock, full)

    def describe(self, strategy: str) -> list[str]:
        """What it covers."""
        found = [f"strategy {strategy}", f"in a {self.kind}", signal.Signals(self.number).name]
        return found + ["wrong clock"] * (self.clock != 0) + ["full disk"] * (self.full > 0)


class Driver:
    """Starts training runs one after another; the pipe and their output are in `folder`."""

    def __init__(self, forked: Forked, folder: Path) -> None:
        self._forked, self._folder = forked, folder
        os.mkfifo(folder / "words")

    def start(self, order: dict[str, Any], kill: Kill | None = None) -> int:
        """Runs a child until it ends or is killed; returns its exit status, negative for a signal."""
        return self._watch(Path(__file__), [self._order(order, kill)], [kill] if kill else [])[0]

    def run_killed(self, order: dict[str, Any], kills: list[Kill]) -> int:
        """Restarts a training run until it completes; returns how many kills hit it."""
        struck = 0
        for kill in kills:
            status = self.start(order, kill)
            if status == 0:
                return struck
            usual = {signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGINT: 130}.get(kill.number)
            if status not in (-kill.number, usual) and not (kill.full and status == 1):
                raise RuntimeError(f"The child ended with {status} and not by its kill {kill}: {order}.")
            struck += 1
        status = self.start(order)
        if status != 0:
            raise RuntimeError(f"The child ended with {status}: {order}.")
        return struck

    def launch_killed(self, order: dict[str, Any], kills: list[Kill]) -> int:
        """Does the same for a run of several processes, which `launch` restarts."""
        launched = LAUNCHED[order["scenario"], order["strategy"]]
        (tasks := self._folder / "tasks").mkdir(exist_ok=True)
        words = [*launched, "--timeout", 600, "--restarts", len(kills) + 2]
        words += [Path(__file__), json.dumps({**order, "clock": kills[0].clock if kills else 0})]
        program = Path(__file__).with_name("forking_launcher.py")
        status, struck = self._watch(program, words, kills, TASKS=str(tasks))
        if status != 0:
            raise RuntimeError(f"The launcher ended with {status}: {order}.")
        return struck

    def _order(self, order: dict[str, Any], kill: Kill | None) -> str:
        fault = {"clock": kill.clock, "full": kill.full} if kill else {}
        return json.dumps({**order, **fault, "kill": kill and [kill.kind, kill.nth, kill.number]})

    def _watch(self, program: Path, words: list[Any], kills: list[Kill], **env: str) -> tuple[int, int]:
        """Runs a program, and kills by the words that it says; returns its exit status, and how many kills it took."""
        env |= {"WORDS": str(self._folder / "words"), "TF_CPP_MIN_LOG_LEVEL": "3"}
        struck = 0
        with listening(self._folder) as pipe:
            child = self._forked.start(
                program, *words, folder=self._folder, out=self._folder / "printed", env=env
            )
            for kill, pids in moments(pipe, kills, lambda: child.poll() is None):
                if kill.number == signal.SIGKILL:
                    struck += strike(pids[kill.task % len(pids)], kill.delay)
        return child.wait(), struck


@contextlib.contextmanager
def listening(folder: Path) -> Iterator[int]:
    """The pipe on which children say what begins."""
    pipe = os.open(folder / "words", os.O_RDWR | os.O_NONBLOCK)
    try:
        yield pipe
    finally:
        os.close(pipe)


def moments(pipe: int, kills: list[Kill], running: Callable[[], bool]) -> Iterator[tuple[Kill, list[int]]]:
    """Yields each kill at its moment, with the processes that it can hit: the one that reports, then those that started."""
    left, rest = list(kills), b""
    seen: collections.Counter[str] = collections.Counter()
    started: list[int] = []
    while running():
        if not select.select([pipe], [], [], 0.01)[0]:
            continue
        *lines, rest = (rest + os.read(pipe, 1 << 16)).split(b"\n")
        for word, pid in (line.decode().split() for line in lines):
            seen[word] += 1
            if word == "start":
                started.append(int(pid))
            if left and left[0].kind == word and seen[word] == left[0].nth:
                yield left.pop(0), [int(pid), *started]
                seen.clear()
                started.clear()


def strike(pid: int, delay: float) -> bool:
    """Kills a process after a delay; returns whether it still ran."""
    time.sleep(delay)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def read_result(path: Path) -> dict[str, Any]:
    """What a finished run leaves: weights, optimizer state, History, the logs of every step, the lines of the CSV file."""
    from unisono.callbacks.backup.files import container

    return container.read(path)[1]


def differences(result: dict[str, Any], expected: dict[str, Any], tolerance: float = 0.0) -> list[str]:
    """The names of the results that are not bitwise identical; empty if all are.

    With a tolerance only variables are compared, and may differ by it: sums over another number of workers do.
    """
    import numpy as np

    pairs = [(i, result["variables"][i], value) for i, value in expected["variables"].items()]
    if tolerance:
        close = [np.allclose(mine, value, rtol=tolerance, atol=tolerance) for _, mine, value in pairs]
        return [f"variable {i}" for (i, _, _), is_close in zip(pairs, close) if not is_close]
    found = [name for name in expected if name != "variables" and result[name] != expected[name]]
    return found + [f"variable {i}" for i, mine, value in pairs if mine.tobytes() != value.tobytes()]


# From here on: the child.


_said: collections.Counter[str] = collections.Counter()
_kill: list[Any] = []


def say(word: str) -> None:
    """Reports to the driver what begins now."""
    os.write(_pipe(), f"{word} {os.getpid()}\n".encode())
    _said[word] += 1
    if [word, _said[word]] == _kill[:2] and _kill[2] != signal.SIGKILL:
        signal.raise_signal(_kill[2])


@functools.cache
def _pipe() -> int:
    return os.open(os.environ["WORDS"], os.O_WRONLY)


def obey(order: dict[str, Any]) -> int:
    """One training run: `{"scenario", "strategy", "directory", "backup"}`."""
    import keras
    import tensorflow as tf

    import unisono

    if clock := order.get("clock"):
        now = time.time
        time.time = lambda: now() + clock
    cpu = tf.config.list_physical_devices("CPU")[0]
    if order["strategy"][-1] == "2":
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    keras.utils.set_random_seed(7)
    strategy = None
    devices = ["CPU:0", "CPU:1"]
    if order["strategy"] == "mirrored2":
        strategy = tf.distribute.MirroredStrategy(devices)
    elif order["strategy"] == "central2":
        strategy = tf.distribute.experimental.CentralStorageStrategy(devices, "CPU:0")
    elif order["strategy"] == "pipeline2":
        from unisono.distribute.pipeline import Pipeline

        strategy = Pipeline(devices, micro_batches=2, schedule="1f1b")
    elif order["strategy"] in ("sharded2", "weights2"):
        level = {} if order["strategy"] == "sharded2" else {"level": "weights"}
        strategy = unisono.distribute.sharded(tf.distribute.MirroredStrategy(devices), **level)
    elif order["strategy"] == "mesh2":
        layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 2), ("batch", "model")))
        layouts[".*/dense/kernel"] = (None, "model")
        distribution = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
        keras.distribution.set_distribution(distribution)
        strategy = unisono.distribute.auto_strategy()
    elif order["strategy"].endswith(("workers", "servers", "elastic", "hosts")):
        strategy = unisono.distribute.auto_strategy()
        if order["strategy"].startswith("sharded"):
            strategy = unisono.distribute.sharded(strategy)
    train(order, strategy)
    return 0


def train(order: dict[str, Any], strategy: Any) -> None:
    """Builds the scenario, fits it and writes the result."""
    import disk
    import keras
    import numpy as np
    import tensorflow as tf

    import unisono
    from unisono import callbacks
    from unisono.callbacks import safe_file
    from unisono.callbacks.backup.files import container

    folder = Path(order["directory"])
    folder.mkdir(parents=True, exist_ok=True)
    scope = strategy.scope() if strategy else contextlib.nullcontext()
    if order["scenario"] in EXACT_INPUTS:
        model, arguments, extra, backup = input_with_state(order["scenario"])
    else:
        model, arguments, extra, backup = globals()[f"scenario_{order['scenario']}"](folder, scope)
    logs = log_keeper()
    extra = [*extra, logs, keras.callbacks.CSVLogger(str(folder / "log.csv")), announcer()]
    place: Any = folder / "backup"
    if order["strategy"] == "bucket":
        import local_bucket

        place = local_bucket.register(folder) + "/backup"
    if order["backup"]:
        announce_saves(container)
        extra.insert(0, callbacks.BackupAndRestore(place, **backup))
    with disk.Disk(folder, order["full"], errno.ENOSPC) if order.get("full") else contextlib.nullcontext():
        history = model.fit(**arguments, callbacks=extra, verbose=0)
    variables = [*model.variables, *model.optimizer.variables]
    values = [
        np.asarray(tf.convert_to_tensor(v.value)) for v in variables
    ]  # every worker has its part of them
    if not unisono.distribute.is_chief():
        return
    if order["scenario"] == "servers":  # their workers' order is that of chance
        result = {"epochs": history.epoch, "steps": int(model.optimizer.iterations.numpy()), "variables": {}}
        safe_file.write_safely(folder / "result", lambda stream: container.write(stream, result, {}))
        return
    result = {
        "variables": {str(i): value for i, value in enumerate(values)},
        "history": history.history,
        "epochs": history.epoch,
        "logs": logs.logs,
        "csv": (folder / "log.csv").read_text(),
        "files": sorted(path.name for path in folder.glob("*.weights.h5")),
    }
    safe_file.write_safely(folder / "result", lambda stream: container.write(stream, result, {}))


def data(rows: int) -> tuple[Any, Any]:
    """Samples that a model can learn."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 6)).astype("float32")
    return x, (x @ rng.normal(size=(6, 3))).argmax(1)


def network(dropout: float = 0.3, last: str = "float32", synchronized: bool = False) -> Any:
    """Layers with every kind of state: weights, averages, seeds."""
    import keras

    import unisono

    return unisono.Sequential(
        [
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dropout(dropout),
            keras.layers.BatchNormalization(synchronized=synchronized),
            keras.layers.Dense(3, dtype=last),
        ]
    )


def scenario_arrays(folder: Path, scope: Any) -> tuple[Any, ...]:
    """Shuffled arrays with a partial batch, dropout, averages, EarlyStopping, ReduceLROnPlateau, ModelCheckpoint."""
    import keras

    from unisono import callbacks

    x, y = data(70)
    with scope:
        model = network()
        model.compile(keras.optimizers.Adam(3e-2, use_ema=True), cross_entropy(), metrics=["accuracy"])
    extra = [
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
        callbacks.ModelCheckpoint(
            folder / "{epoch}-{batch}.weights.h5", "loss", save_weights_only=True, save_freq=3, keep_best=2
        ),
    ]
    arguments = {"x": x, "y": y, "batch_size": 16, "epochs": 5, "validation_split": 0.2}
    return model, arguments, extra, {"save_freq": 2}


def scenario_half(folder: Path, scope: Any) -> tuple[Any, ...]:
    """mixed_float16 with a growing loss scale, accumulation, dropout; saves synchronously at every step."""
    import keras

    import unisono

    unisono.mixed_precision.set_global_policy("mixed_float16")
    x, y = data(48)
    with scope:
        model = network()
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2), dynamic_growth_steps=3
        )
        model.compile(optimizer, cross_entropy(), metrics=["accuracy"])
    arguments = {"x": x, "y": y, "batch_size": 12, "epochs": 3, "validation_data": (x[:20], y[:20])}
    return model, arguments, [], {"save_freq": 1, "background": False}


def scenario_tfdata(folder: Path, scope: Any) -> tuple[Any, ...]:
    """A shuffled `tf.data` pipeline, three steps per compiled call, a schedule that depends on its previous value."""
    import keras
    import tensorflow as tf

    x, y = data(60)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(30, seed=3).batch(8).prefetch(2)
    with scope:
        model = network()
        model.compile("adam", cross_entropy(), metrics=["accuracy"], steps_per_execution=3)
    extra = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7)]
    arguments = {"x": dataset, "epochs": 4, "validation_data": (x[:20], y[:20])}
    return model, arguments, extra, {"save_freq": 2, "keep": 1}


def scenario_float64(folder: Path, scope: Any) -> tuple[Any, ...]:
    """Arrays with a partial batch in float64, without draws: any number of workers computes the same."""
    import keras

    keras.backend.set_floatx("float64")
    x, y = data(70)
    with scope:
        model = network(dropout=0.0, last="float64", synchronized=True)
        model.compile(keras.optimizers.Adam(3e-2), cross_entropy(), metrics=["accuracy"])
    return (
        model,
        {"x": x, "y": y, "batch_size": 16, "epochs": 5, "validation_split": 0.2},
        [],
        {"save_freq": 2},
    )


def scenario_servers(folder: Path, scope: Any) -> tuple[Any, ...]:
    """Arrays for workers that update the variables of a server one after another."""
    import keras

    x, y = data(60)
    with scope:
        model = network()
        model.compile(keras.optimizers.SGD(0.01), cross_entropy())
    return model, {"x": x, "y": y, "batch_size": 6, "epochs": 4}, [], {"save_freq": 2}


def input_with_state(name: str) -> tuple[Any, ...]:
    """An input of `resumed_inputs`; a layer and a callback that draw from their own NumPy generators."""
    import keras
    import resumed_inputs

    resumed_inputs.fresh()
    x = resumed_inputs.INPUTS[name]()
    model = resumed_inputs.drawing_model()
    arguments = {
        "x": x,
        "epochs": 3,
        "shuffle": False,
        "validation_data": resumed_inputs.shuffled(),
        "validation_steps": 4,
    }
    extra = [resumed_inputs.Drawing(), keras.callbacks.EarlyStopping("loss", patience=9)]
    return model, arguments, extra, {"save_freq": 2}


def cross_entropy() -> Any:
    """The loss of every scenario."""
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def log_keeper() -> Any:
    """A stateful callback: the logs of every step."""
    import keras

    class LogKeeper(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.logs: list[Any] = []

        def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
            self.logs.append((batch, dict(logs or {})))

        def get_state(self) -> Any:
            return {"logs": self.logs}

        def set_state(self, state: Any) -> None:
            self.logs = list(state["logs"])

    return LogKeeper()


def announcer() -> Any:
    """A callback that reports events to the driver."""
    import keras

    class Announcer(keras.callbacks.Callback):
        def on_train_begin(self, logs: dict | None = None) -> None:
            say("compilation")

        def on_train_batch_begin(self, batch: int, logs: dict | None = None) -> None:
            say("step")

        def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
            say("epoch")

        def on_test_batch_begin(self, batch: int, logs: dict | None = None) -> None:
            say("validation")
            time.sleep(0.01)

    return Announcer()


def announce_saves(container: Any) -> None:
    """Reports when a save or a restore begins, and prolongs a save so that a kill can hit it."""
    pieces, load = container._pieces, container._load

    def slow_load(*arguments: Any) -> Any:
        say("restore")
        return load(*arguments)

    container._load = slow_load

    def slow_pieces(*arguments: Any) -> Any:
        say("save")
        for piece in pieces(*arguments):
            yield piece
            time.sleep(0.0005)

    container._pieces = slow_pieces


if __name__ == "__main__":
    say("start")
    try:
        given = json.loads(sys.argv[1])
        _kill.extend(given.get("kill") or ())
        status = obey(given)
        if _kill and _said[_kill[0]] >= _kill[1]:
            signal.pause()  # the driver is late: its kill arrives after the end
        sys.exit(status)
    except KeyboardInterrupt:
        sys.exit(130)
