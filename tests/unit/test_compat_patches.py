"""Replaced functions: the originals behave as expected, and are called when no step is traced."""

import contextlib
import inspect
import threading
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
import unisono.trainer  # provides the replacements
from unisono.compat import patches
from unisono.compat.patches import replace_functions
from unisono.compat.register import ACCUMULATING, ADDED, GPUS, REPLACED, SERVERS
from unisono.compat.tensorflow_private.strategies import pretend_replicas
from unisono.compat.upstream_places import backend_nn, backend_numpy
from unisono.distribute.keras_distribution import accept_layouts_of_outputs
from unisono.distribute.step_context import StepContext, step_scope

# The arguments of each replaced function.
ARGUMENTS = {
    "numpy.take": "x indices axis",
    "Layer.__call__": "self args kwargs",
    "Layer.add_loss": "self loss",
    "Layer._get_regularization_losses": "self",
    "Layer._maybe_build": "self call_spec",
    "GradientTape.gradient": "self target sources output_gradients unconnected_gradients",
    "Loss.__call__": "self y_true y_pred sample_weight",
    "BaseOptimizer.apply": "self grads trainable_variables",
    "SeedGenerator.next": "self ordered",
    "Variable.handle": "self",
    "CachingVariable.__getitem__": "v args kwargs",
    "nn._compute_moments_sync": "x axes keepdims",
    "random_ops_util._get_key_counter": "seed alg",
    "FuncGraph._create_op_internal": (
        "self op_type inputs dtypes input_types name attrs op_def compute_device"
    ),
    "RegisterGradient.__call__": "self f",
    "Function.__call__": "self args kwds",
    "cond.cond": "pred true_fn false_fn strict name fn1 fn2",
    "segment_id_ops.row_splits_to_segment_ids": "splits name out_type",
    "embedding_ops.embedding_lookup_sparse_impl": (
        "params segment_ids sp_weights ids combiner ignore_weights max_norm allow_fast_lookup "
        "partition_strategy name"
    ),
    "while_loop.while_loop": (
        "cond body loop_vars shape_invariants parallel_iterations "
        "back_prop swap_memory name maximum_iterations return_same_structure"
    ),
}
ORIGINALS = {each.key: vars(each.owner)[each.name] for each in REPLACED}


def now():
    return {each.key: vars(each.owner)[each.name] for each in REPLACED}


def function_of(found):
    return found.fget if isinstance(found, property) else found


def are_originals(found):
    return all(found[key] is ORIGINALS[key] for key in found)


@pytest.mark.parametrize("each", REPLACED, ids=lambda each: each.key)
def test_replaced_functions_are_the_originals_with_the_same_arguments(each):
    found = function_of(vars(each.owner)[each.name])
    assert found.__module__.startswith(("keras.src.", "tensorflow.python."))
    assert not hasattr(found, "__unisono_original__")
    assert " ".join(inspect.signature(found).parameters) == ARGUMENTS[each.key]
    assert each.reason


CIRCUMSTANCES = [(), (ACCUMULATING,), (SERVERS,), (GPUS,), (ACCUMULATING, GPUS, SERVERS)]


@pytest.mark.parametrize("circumstances", CIRCUMSTANCES, ids="+".join)
def test_functions_of_a_step_are_replaced_inside_and_the_very_originals_outside(circumstances):
    assert are_originals(now())
    with replace_functions():
        with replace_functions(*circumstances):
            inside = now()
    for each in REPLACED:
        found, original = function_of(inside[each.key]), function_of(ORIGINALS[each.key])
        if each.only_for and not set(circumstances).intersection(each.only_for):
            assert found is original
        else:
            assert found.__wrapped__ is original
    assert are_originals(now())


def test_last_thread_that_leaves_puts_the_originals_back():
    with contextlib.ExitStack() as mine:
        mine.enter_context(replace_functions())
        with Elsewhere(replace_functions):
            mine.close()
            assert not are_originals(now())
    assert are_originals(now())


def test_method_is_wrapped_once_by_one_function_also_where_a_closure_defines_it_again(monkeypatch):
    calls = []

    def count(number):
        def around(original):
            calls.append(number)
            return original()

        return around

    monkeypatch.setattr(patches.WRAPPED[0].owner, name := patches.WRAPPED[0].name, lambda: "original")
    for around in (count(0), count(1), lambda original: original().upper(), count(2)):
        patches.wrap(name, around)
    assert (getattr(patches.WRAPPED[0].owner, name)(), calls) == ("ORIGINAL", [0])


def test_wrapper_that_somebody_puts_around_a_replaced_function_stays():
    def mine(*arguments):
        return arguments

    patch = pytest.MonkeyPatch()
    with replace_functions(SERVERS):
        patch.setattr(backend_numpy, "take", mine)
    assert backend_numpy.take is mine
    with replace_functions(SERVERS):
        assert backend_numpy.take.__wrapped__ is mine
    assert backend_numpy.take is mine
    patch.undo()  # restores the state inside the first block: our replacement
    with replace_functions(SERVERS):
        pass
    assert are_originals(now())


def test_step_replaces_functions_and_an_error_in_it_puts_them_back():
    with pytest.raises(ZeroDivisionError), step_scope(StepContext(0, 1, 1, 1)):
        assert not are_originals(now())
        raise ZeroDivisionError
    assert are_originals(now())


def test_originals_are_back_after_every_method_of_a_model():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dropout(0.5)])
    model.compile("sgd", "mse", metrics=["mae"])
    x, y = np.ones((4, 2)), np.ones((4, 1))
    seen = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(are_originals(now())))
    model.fit(x, y, verbose=0, callbacks=[callback])
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    model.train_on_batch(x, y)
    model.test_on_batch(x, y)
    model.predict_on_batch(x)
    assert seen == [True] and are_originals(now())


def test_handle_of_a_variable_is_the_property_by_which_tapes_know_it():
    variable = keras.Variable(1.0)
    assert variable.handle is variable.value.handle
    assert tf.is_tensor(variable.value) and variable._should_act_as_resource_variable


def test_synchronized_moments_are_found_where_they_are_replaced():
    assert "_compute_moments_sync" in backend_nn.moments.__code__.co_names


@pytest.mark.parametrize("added", ADDED, ids=lambda each: each.key)
def test_added_methods_are_ours_because_tensorflow_lacks_them(added):
    accept_layouts_of_outputs()
    assert vars(added.owner)[added.name].__module__.startswith("unisono.")


@pytest.mark.parametrize(
    "kind", [unisono.optimizers.SGD, lambda rate: unisono.optimizers.adopt(keras.optimizers.SGD(rate))]
)
def test_scalars_of_an_optimizer_are_numbers_under_a_strategy(kind):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        optimizer = unisono.mixed_precision.LossScaleOptimizer(kind(0.5))
        optimizer.build([keras.Variable([1.0])])
    assert (int(optimizer.iterations), float(optimizer.learning_rate)) == (0, 0.5)
    assert (int(optimizer.skipped_steps), float(optimizer.dynamic_scale)) == (0, 2.0**15)


class Elsewhere:
    """A thread that stays inside a block until it is asked to leave."""

    def __init__(self, block):
        self._inside, self._leave = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(block,))

    def _stay(self, block):
        with block():
            self._inside.set()
            self._leave.wait()

    def __enter__(self):
        self._thread.start()
        assert self._inside.wait(60)
        return self

    def leave(self):
        self._leave.set()
        self._thread.join()

    def __exit__(self, *error):
        self.leave()


def in_a_step():
    return step_scope(StepContext(1, 2, 1, 2))


@pytest.mark.parametrize("key", [each.key for each in REPLACED])
def test_thread_without_a_step_calls_the_original_while_another_computes_one(key):
    """So does a thread whose own step has ended while the other's is still running."""
    calls = []

    def original(*args, **kwargs):
        calls.append((args, kwargs))
        return "its result"

    arguments = ARGUMENTS[key].split()
    given = [types.SimpleNamespace(dtype="float32", built=False, reduction="sum") for _ in arguments]
    given = given[:3] if key.startswith("while_loop") else given[:2] if key.startswith("cond") else given
    function = {each.key: each for each in REPLACED}[key].make(original)
    for custom_step in (False, True):
        with Elsewhere(in_a_step):
            if custom_step:
                with in_a_step():
                    pass
            result = function(*given)
        assert len(calls) == 1 and result in ("its result", None, given[-1])
        args, kwargs = calls.pop()
        passed = [*args, *kwargs.values()]
        assert all(any(each is one for each in passed) for one in given)


def test_number_of_replicas_is_that_of_each_thread_and_the_property_is_the_very_original_in_the_end():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    owner = next(c for c in tf.distribute.Strategy.__mro__ if "num_replicas_in_sync" in vars(c))
    original = vars(owner)["num_replicas_in_sync"]
    with Elsewhere(lambda: pretend_replicas(3)) as first:
        assert strategy.num_replicas_in_sync == 1
        with pretend_replicas(2):
            first.leave()
            assert strategy.num_replicas_in_sync == 2
            with Elsewhere(lambda: pretend_replicas(4)), pretend_replicas(5):
                assert strategy.num_replicas_in_sync == 5
            assert strategy.num_replicas_in_sync == 2
    assert vars(owner)["num_replicas_in_sync"] is original and strategy.num_replicas_in_sync == 1
