"""How the changes of the register are made: for a step of ours, or for good."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from .register import ADDED, GPUS, REPLACED, SERVERS, WRAPPED
from .shared_change import share_change
from .upstream_places import StackTraceFilter

_FILES: set[str] = set()  # of the replacements


def provide(key: str, make: Callable[[Any], Any], *within: Callable[..., Any]) -> None:
    """Set the replacement of a function of `REPLACED`: `make(original)`; for a property, its getter.

    At any other time, and in a thread that computes no step, a replacement behaves like the original.

    A later replacement wraps an earlier one. `within`: functions of other modules that also wrap the original.
    """
    (change,) = (each for each in REPLACED if each.key == key)
    inner = change.make
    change.make = make if inner is None else lambda original: make(inner(original))
    _FILES.update(function.__code__.co_filename for function in (make, *within))


@contextlib.contextmanager
def replace_functions(*circumstances: str) -> Iterator[None]:
    """Replace the functions of `REPLACED` inside; restore the originals when the last such block ends.

    The lines of the replacements are left out of TensorFlow's list of the user's lines that made an operation: over several
    processes it sends only a limited number of characters. `circumstances` are ACCUMULATING or SERVERS, where the step
    has them; the strategy and the machine say SERVERS and GPUS, too.
    """
    found = {"", *circumstances}
    if isinstance(tf.distribute.get_strategy(), tf.distribute.experimental.ParameterServerStrategy):
        found.add(SERVERS)
    if tf.config.list_logical_devices("GPU"):
        found.add(GPUS)
    with contextlib.ExitStack() as stack:
        for only_for in dict.fromkeys(each.only_for for each in REPLACED):
            if found.intersection(only_for or ("",)):
                stack.enter_context(share_change(only_for, functools.partial(_replace, only_for)))
        stack.enter_context(_LeftOut())
        yield


class _LeftOut(StackTraceFilter):
    def get_filtered_filenames(self) -> frozenset[str]:
        return frozenset(_FILES) | self.parent.get_filtered_filenames()


def _replace(only_for: tuple[str, ...]) -> Callable[[], object]:
    """Make the replacements that are provided for these circumstances; return the function that undoes it."""
    changes = [each for each in REPLACED if each.only_for == only_for and each.make is not None]
    for each in changes:
        each.install()
    return lambda: [each.restore() for each in changes]


def wrap(name: str, around: Callable[..., Any]) -> None:
    """Call `around(original, *arguments)` for a method of `WRAPPED`, permanently; a second call does nothing.

    Another function wraps the first one. One that is defined again, in a closure, has the same code.
    """
    (change,) = (each for each in WRAPPED if each.name == name)
    try:
        original = change.find()
    except ImportError as error:  # the rest of the library works
        return warnings.warn(str(error))
    if not _is_wrapped(original, around):
        setattr(change.owner, name, _wrap_call(around, original))


def _is_wrapped(function: Any, around: Callable[..., Any]) -> bool:
    while (known := getattr(function, "__unisono_around__", None)) and known.__code__ is not around.__code__:
        function = function.__unisono_original__
    return known is not None


def wrap_within(name: str, around: Callable[..., Any]) -> None:
    """Like `wrap`, for a method that Keras has decorated: inside the decorator.

    A tool that has stored the method before, to replace it, then calls `around` too. `import unisono` loads nothing of the
    trainer, so that a tool is often earlier; and what it has stored can only be reached inside.
    """
    (method,) = (each.find() for each in WRAPPED if each.name == name)
    cell = method.__closure__[method.__code__.co_freevars.index("fn")]
    original = cell.cell_contents
    if not _is_wrapped(original, around):
        cell.cell_contents = _wrap_call(around, original)


def _wrap_call(around: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    vars(wrapper).update(__unisono_original__=original, __unisono_around__=around)
    return wrapper


def add(name: str, method: Callable[..., Any]) -> None:
    """Add a method of `ADDED` that TensorFlow lacks, or whose base class raises NotImplementedError, permanently."""
    (owner,) = (each.owner for each in ADDED if each.name == name)
    with contextlib.suppress(ImportError):  # no place has the owner, so nothing calls the method
        if name not in vars(owner):
            setattr(owner, name, method)
