"""Random generators are found wherever programs keep them, and their states are restored bit for bit."""

import collections
import contextvars
import functools
import json
import random
import sys
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf

from unisono.callbacks.backup import exactness
from unisono.callbacks.backup.files import schema
from unisono.state import random_state
from unisono.state.random_state import (
    GLOBAL_GENERATORS,
    find_generators,
    find_reached,
    set_from_text,
    text_of,
)

OF_THE_MODULE = np.random.default_rng(1)
NUMPY, PYTHON = GLOBAL_GENERATORS["numpy.random"], GLOBAL_GENERATORS["random"]


class Holder:
    def __init__(self, **held):
        self.__dict__.update(held)

    def draw(self):
        return OF_THE_MODULE.normal()


def closure(generator):
    return lambda: generator.normal()


def draws_nothing():
    return 1


class Drawing:
    rng = [np.random.default_rng(4)]


OWN = np.random.default_rng(2)
OF_THIS_MODULE = [OWN, OF_THE_MODULE, NUMPY, PYTHON, *Drawing.rng]


def programs():
    """Roots with the generators that they lead to, one of which no module holds."""
    local = np.random.default_rng(3)
    return [
        ({"a": [1, {"b": OWN}]}, [OWN]),
        (Drawing(), Drawing.rng),
        (Holder(rng=local), [local, *OF_THIS_MODULE]),
        (Holder(rng=local).draw, [local, *OF_THIS_MODULE]),
        (closure(local), [local, *OF_THIS_MODULE]),
        (functools.partial(closure(local), 3), [local, *OF_THIS_MODULE]),
        (lambda x=local: x, [local, *OF_THIS_MODULE]),
        (tf.function(closure(local)), [local, *OF_THIS_MODULE]),
        (draws_nothing, OF_THIS_MODULE),
        (sys.modules[__name__], OF_THIS_MODULE),
        (OWN.normal, [OWN]),
        (np.random.rand, [NUMPY]),
        (random.SystemRandom(), []),
        (keras.layers.Dense(1), []),
        (np, []),
    ]


@pytest.mark.parametrize(("root", "expected"), programs())
def test_generators_are_found(root, expected):
    found = find_generators({"root": root})
    assert {id(each) for each in found.values()} == {id(each) for each in expected}
    assert list(found) == list(find_generators({"root": root}))
    for name, generator in GLOBAL_GENERATORS.items():
        assert (name in found) == (generator in expected)


def test_walk_ends_in_circles_and_passes_over_what_is_large():
    circle = Holder(rng=OWN)
    circle.itself = [circle]
    large = Holder(words=list(range(20_000)), more=circle)
    found = list(find_reached({"": large}, (np.random.Generator,)))
    ways = {".more.rng": OWN, f"{__name__}.Drawing.rng[0]": Drawing.rng[0]}
    assert dict(found) == ways | {f"{__name__}.OF_THE_MODULE": OF_THE_MODULE}


def limit_visits(monkeypatch, most):
    monkeypatch.setattr(random_state, "_MOST_VISITS", most)


def test_walk_does_not_enter_the_test_runner(request, monkeypatch, recwarn):
    # Else each save in a test looks at all tests of the session, and at no more objects than the limit.
    limit_visits(monkeypatch, 1000)
    assert list(find_reached({"": Holder(session=request.session, rng=OWN)}, (np.random.Generator,)))
    assert not recwarn.list


def test_walk_that_is_cut_off_says_where(monkeypatch):
    limit_visits(monkeypatch, 50)
    large = Holder(a=[[[i]] for i in range(40)], rng=np.random.default_rng(1))
    with pytest.warns(
        UserWarning, match=r"ended at `root\.a\[\d+\].*`, object 50: what is after it is not saved"
    ):
        assert not find_generators({"root": large})


def test_container_of_python_hides_a_generator_and_a_library_has_its_own():
    rng = np.random.default_rng(1)
    held = collections.deque([rng]), functools.partial(list, rng), contextvars.ContextVar("rng", default=rng)
    assert len(held) == 3 and not exactness._is_of_library(rng)
    names = tempfile._RandomNameSequence()
    assert next(names) and exactness._is_of_library(names._rng)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.default_rng(1),
        lambda: np.random.Generator(np.random.MT19937(1)),
        lambda: np.random.Generator(np.random.Philox(1)),
        lambda: np.random.Generator(np.random.SFC64(1)),
        lambda: np.random.RandomState(1),
        lambda: random.Random(1),
    ],
)
def test_state_comes_back_bit_for_bit(make):
    def numbers(generator):
        if isinstance(generator, random.Random):
            return [generator.gauss(0, 1) for _ in range(5)]
        if isinstance(generator, np.random.RandomState):
            return generator.normal(size=5).tolist()
        drawn = [generator.normal(), *generator.random(3).tolist()]
        return [*drawn, float(generator.standard_normal(dtype=np.float32))]

    generator = make()
    numbers(generator)
    saved = text_of(generator)
    expected = numbers(generator)
    other = make()
    set_from_text(other, saved)
    assert numbers(other) == expected
    wrong = "[]" if isinstance(other, random.Random) else json.dumps({"bit_generator": "other"})
    with pytest.raises(ValueError, match="fits no"):
        set_from_text(other, wrong)


def test_held_generators_are_part_of_the_random_state_and_those_of_the_input_are_left():
    held = {"a": np.random.default_rng(1), "b": np.random.default_rng(2)}
    saved = random_state.capture(held)
    schema.match(saved, schema.RANDOM, "the random state")
    expected = held["a"].normal()
    left, global_draw = held["b"].normal(), np.random.rand()
    random_state.restore(saved, held, owned=[held["b"], NUMPY])
    assert held["a"].normal() == expected
    assert held["b"].normal() != left and np.random.rand() != global_draw
    assert random_state.restore(saved, {"a": held["a"]}) == ["b"]
