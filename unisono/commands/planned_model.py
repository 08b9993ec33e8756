"""The model of `python -m unisono plan`: from a `.keras` file or a function, with variables that take no memory."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from ..compat.weightless import variables_without_memory
from ..distribute.memory_plan import ModelMemory
from ..trainer.model_memory import model_memory

_MOST_BYTES = 1 << 28  # of a configuration


def read_model(place: str) -> ModelMemory:
    """What the model in a file, or made by a function, takes.

    Args:
        place: path of a `.keras` file, whose weights are not read; or `FILE.py:FUNCTION` or `MODULE:FUNCTION`.

    Raises:
        ValueError: it is none of these.
    """
    with variables_without_memory():
        if place.endswith(".keras"):
            return model_memory(_from_file(Path(place)))
        found = _function(place)()
        model, *batch = found if isinstance(found, tuple) else (found,)
        if not isinstance(model, keras.Model) or len(batch) > 2:
            raise ValueError(
                f"{place} must return a Keras model, or (model, x) or (model, x, y). Received: {type(found).__name__}"
            )
        return model_memory(model, *batch)


def _from_file(path: Path) -> keras.Model:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    try:
        with zipfile.ZipFile(path) as archive, archive.open("config.json") as stream:
            text = stream.read(_MOST_BYTES + 1)
        if len(text) > _MOST_BYTES:
            raise ValueError(f"its configuration has more than {_MOST_BYTES:,} bytes")
        model: Any = keras.saving.deserialize_keras_object(json.loads(text))
        if not isinstance(model, keras.Model):
            raise TypeError(f"it holds a {type(model).__name__}")
    except Exception as error:  # the file may say anything
        raise ValueError(f"{str(path)!r} is no .keras file of a model: {str(error)[:300]!s}") from None
    return model


def _function(place: str) -> Callable[[], Any]:
    source, _, name = place.rpartition(":")
    if not source:
        raise ValueError(
            f"`model` must be a .keras file, FILE.py:FUNCTION or MODULE:FUNCTION. Received: {place!r}"
        )
    if source.endswith(".py"):
        module = _module_of_file(Path(source))
    else:
        sys.path.insert(0, str(Path.cwd()))
        module = importlib.import_module(source)
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{source} has no function {name!r}")
    return function


def _module_of_file(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}")
    sys.path.insert(0, str(path.parent.resolve()))  # what it imports from beside it
    spec: Any = importlib.util.spec_from_file_location(path.stem, path)
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
