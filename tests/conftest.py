"""Every test process has four logical CPU devices as accelerators, and no test may leave anything behind."""

import gc

gc.disable()  # imports create permanent objects only: collections would take a quarter of the import time

import fnmatch
import os
import signal
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["UNISONO_CACHE"] = ""  # tests of the cache name a folder of their own
if os.environ.get("UNISONO_TEST_GPUS", "") in ("", "cpu"):  # only tests/gpu computes on GPUs
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    # Code compiled by XLA runs only briefly: skipping LLVM's optimizations saves a third of the cost of such a test.
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # inherited if a shell started pytest in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
from children import import_tested_tree
from forked import Forked, Forks
from shared_out import in_order

import_tested_tree()
_FORKS = pytest.StashKey[Forks]()


def pytest_configure(config):
    """Creates the four devices. The controller of `-n` only distributes tests and need not load TensorFlow."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    else:
        gc.enable()
        config.stash[_FORKS] = forks = Forks()
        config.add_cleanup(forks.close)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    """Gives each test process of `-n` the address of the process that forks programs."""
    node.workerinput["forks"] = node.config.stash[_FORKS].address


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Marks cases as long, and sorts tests so that no process of `-n` is left with long tests at the end."""
    named, found = set(), set()
    for item in items:
        if short := item.get_closest_marker("short"):
            cases, but = short.args or ("*",), short.kwargs.get("but", ())
            chosen = {case for case in (*cases, *but) if fnmatch.fnmatchcase(item.callspec.id, case)}
            named.update((item.function.__qualname__, case) for case in (*cases, *but))
            found.update((item.function.__qualname__, case) for case in chosen)
            if not chosen.intersection(cases) or chosen.intersection(but):
                item.add_marker("long")
    if named - found and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"No case of a test has an id that its mark `short` names: {named - found}")
    items[:] = in_order(items)


def pytest_collection_finish():
    """Exempts the million objects of TensorFlow and Keras that exist now from garbage collection.

    Objects made by tests are collected about every ten fits: a graph is a cycle of 20,000 objects and holds megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 5, 2)
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Exempts what a file of tests leaves behind, graphs above all: each collection would go through all of it again."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def clean_keras_state(request):
    """Every test starts with Keras' defaults and seeds, and leaves no state behind.

    TensorFlow works with its defaults for users only in tests marked `as_for_users`, which costs a third more.
    """
    import keras
    from cheap_graphs import as_for_users

    os.environ["UNISONO_STRICT"] = "01"[request.node.get_closest_marker("falls_back") is None]
    as_for_users(request.node.get_closest_marker("as_for_users") is not None)
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def float64(clean_keras_state):
    """Keras computes in float64, where only the summation order may differ: `assert_close(..., FLOAT64)`."""
    import keras

    keras.config.set_floatx("float64")


@pytest.fixture
def stop_clock(monkeypatch):
    """`stop_clock(module, now=0.0)`: returns the `Clock` that a module of ours gets as `time`."""
    from helpers import Clock, set_clock

    def stop(module, now=0.0):
        clock = Clock(now)
        set_clock(monkeypatch, clock, module)
        return clock

    return stop


@pytest.fixture(autouse=True)
def nothing_left_behind(clean_keras_state):
    """Fails a test that leaves an environment variable, a thread or an open file behind."""
    from helpers import open_files, threads_since

    environment, threads, files = _environment(), set(threading.enumerate()), open_files()
    yield
    changed = {name for name, value in environment.items() ^ _environment().items()}
    for name in changed:
        os.environ.pop(name, None)
        if name in environment:
            os.environ[name] = environment[name]
    assert not changed, f"environment variables changed by the test: {sorted(changed)}"
    left = threads_since(threads)
    assert not left, f"threads left by the test: {left}"
    if not open_files() <= files:
        gc.collect()  # raises ResourceWarning, which is an error
    left = open_files() - files
    assert not left, f"files left open by the test: {sorted(left)}"


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


@pytest.fixture(scope="session")
def forked(request):
    """Programs in separate processes; see `Forked`. One forking process serves all tests of a test process."""
    with Forked(forks=getattr(request.config, "workerinput", {}).get("forks")) as forked:
        yield forked
