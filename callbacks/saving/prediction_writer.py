"""`PredictionWriter`: the outputs of `predict` go to disk batch by batch, for more samples than fit into memory."""

import contextlib
import os
import re
import urllib.parse
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...distribute.arguments import show
from ...distribute.objects import is_remote
from ...distribute.storage import storage_path
from ...distribute.workers.cluster import is_chief
from ...state.trained_model import TrainedModel
from .. import safe_file
from ..output_paths import check_output_path
from ..spool import Spool


class PredictionWriter(keras.callbacks.Callback):
    """Writes the outputs of `predict` to disk, batch by batch, as arrays that `np.load` opens.

    `predict` then keeps no outputs in memory, and returns the same structure of memory-mapped arrays. The files are complete
    or absent. With several workers, the chief writes all samples in order, and `predict` returns None on the others.

    Args:
        path: with the suffix `.npy`: the file of a model's one output. Any other: a folder with one file for each output,
            named for its place in the structure: `left.npy`, `0.npy`, `boxes.1.npy`. Files of this
            callback, known by their last line, are replaced. Any other file, or a folder with one, is rejected.

    Raises:
        ValueError, TypeError: the path or the model is invalid, or an output is text or has samples of different lengths.
            Types that NumPy cannot store, such as bfloat16, are written as float32, without loss.
        SaveError: (an OSError) the place cannot be written; what was there is unchanged.

    Examples:
        >>> writer = unisono.callbacks.PredictionWriter("predictions.npy")
        >>> predictions = model.predict(x, verbose=0, callbacks=[writer])
        >>> predictions.shape, np.load("predictions.npy").shape
        ((64, 1), (64, 1))
    """

    model: TrainedModel

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        self.path = storage_path("path", path)
        self._single = self.path.suffix == ".npy"
        self._spool = Spool()
        self._place: Path = self.path  # where it writes: in the spool, if `path` is in a store
        self._temporary: Path | None = None
        self._structure: Any = None
        self._files: list[_ArrayFile] = []

    def on_train_begin(self, logs: Any = None) -> None:
        """Raise an error, because `fit` makes no predictions."""
        raise ValueError(
            f"`PredictionWriter` does nothing in `fit`: pass it to `predict`. Received: {self.path}"
        )

    def on_predict_begin(self, logs: Any = None) -> None:
        """Check the path."""
        self._structure = None
        if not hasattr(self.model, "fit_state"):
            raise TypeError(
                "`PredictionWriter` needs the `predict` of a Unisono model: call `unisono.adopt(model)` first. "
                f"Received: {show(self.model)}"
            )
        if not is_chief():
            return
        if is_remote(self.path):
            self._spool = Spool()
            self._place = Path(self._spool.place("path", self.path, folder=not self._single))
        check_output_path("`path` of `PredictionWriter`", os.fspath(self._place), folder=not self._single)
        outputs = getattr(self.model, "outputs", None)
        custom_step = self.model._overrides_step("predict_step")
        if self._single and isinstance(outputs, list) and len(outputs) > 1 and not custom_step:
            self._reject_several(len(outputs))
        self._keep_others()
        safe_file.remove_leftovers(self._place.parent, self.path.name.partition(".")[0])

    def take_outputs(self, outputs: Any) -> None:
        """Write the outputs of the next samples, a nest of arrays."""
        if not is_chief():
            return
        arrays = [_storable(leaf) for leaf in keras.tree.flatten(outputs)]
        try:
            if self._structure is None:
                self._begin(outputs, arrays)
            for file, array in zip(self._files, arrays, strict=True):
                file.append(array)
        except OSError as error:
            raise safe_file.save_error(self._place.parent, error) from error

    def on_predict_end(self, logs: Any = None) -> None:
        """Move the complete files to their names."""
        if self._temporary is None:
            return
        self._keep_others()
        temporary, self._temporary = self._temporary, None
        with safe_file.rename_safely(temporary, self._place):
            for file in self._files:
                file.finish()
        self._spool.upload()

    def _keep_others(self) -> None:
        """Reject files that it did not write."""
        if self._single:
            safe_file.check_overwrite("`path` of `PredictionWriter`", self._place, _mark(self.path.name))
            return
        for each in sorted(self._place.iterdir()) if self._place.exists() else ():
            if not (each.is_file() and not each.is_symlink() and safe_file.is_own(each, _mark(each.name))):
                raise ValueError(
                    f"`path` of `PredictionWriter` contains {each.name}, which `PredictionWriter` did not write and "
                    f"would delete: pass a separate folder. Received: {self.path}"
                )

    def on_predict_exit(self) -> None:
        """Remove unfinished files. The loop calls it however `predict` ends."""
        for file in self._files:
            file.close()
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                safe_file.remove(self._temporary)
        self._temporary = None

    def outputs(self) -> Any:
        """Return what was written, as arrays `(samples, ...)` mapped to the files, in the structure of the outputs.

        None before the first batch, and on workers that do not write.
        """
        if self._structure is None:
            return None
        return keras.tree.map_structure(
            lambda name: np.load(self._file(self._place, name), mmap_mode="r"), self._structure
        )

    def _file(self, place: Path, name: str) -> Path:
        """Return the file of an output, where the path of the callback is `place`."""
        return place if self._single else place / name

    def _begin(self, outputs: Any, arrays: list[np.ndarray]) -> None:
        if self._single and len(arrays) > 1:
            self._reject_several(len(arrays))
        names = []
        for place, _ in keras.tree.flatten_with_path(outputs):
            words = [urllib.parse.quote(str(key), safe=" ").replace(".", "%2E") for key in place or (0,)]
            names.append(".".join(words) + ".npy")
        self._place.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = safe_file.temporary_path(self._place)
        if not self._single:
            self._temporary.mkdir()
        self._files = [
            _ArrayFile(self._file(self._temporary, name), array, _end_of(self._file(self._place, name).name))
            for name, array in zip(names, arrays)
        ]
        self._structure = keras.tree.pack_sequence_as(outputs, names)

    def _reject_several(self, count: int) -> None:
        raise ValueError(
            f"`path` of `PredictionWriter` names the file of one array, but the model has {count} outputs: pass a "
            f"folder, a path without the suffix .npy. Received: {self.path}"
        )


class _ArrayFile:
    """An `.npy` file that grows by samples, with the line `end` after them, which readers ignore. Owns its stream."""

    def __init__(self, path: Path, like: np.ndarray, end: bytes) -> None:
        self._end = end
        self._dtype, self._sample = like.dtype, like.shape[1:]
        self._samples = 0
        self._stream = open(path, "wb")  # noqa: SIM115 - closed by `close`
        self._write_header()

    def append(self, array: np.ndarray) -> None:
        """Write samples; raise a ValueError if their shape or dtype differs from those before."""
        if array.dtype != self._dtype or array.shape[1:] != self._sample:
            raise ValueError(
                f"`PredictionWriter` writes samples of one shape and dtype, but after samples {list(self._sample)} of "
                f"{self._dtype} the model returned {list(array.shape[1:])} of {array.dtype}: pad them, or "
                "call `predict` without it."
            )
        self._stream.write(np.ascontiguousarray(array).data)
        self._samples += len(array)

    def finish(self) -> None:
        """Write the number of samples and the last line, and close the file."""
        self._stream.write(self._end)
        self._stream.seek(0)
        self._write_header()
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def _write_header(self) -> None:
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self._samples, *self._sample)}
        np.lib.format.write_array_header_1_0(self._stream, header)


def _end_of(name: str) -> bytes:
    """Return what ends a file: a copy under another name is the user's."""
    return f"\nWritten by unisono.callbacks.PredictionWriter as {name}\n".encode()


def _mark(name: str) -> re.Pattern[bytes]:
    return re.compile(re.escape(_end_of(name)) + rb"\Z")


def _storable(leaf: Any) -> np.ndarray:
    """Return an output as an array `(samples, ...)` that an `.npy` file can hold."""
    if isinstance(leaf, tf.RaggedTensor | tf.SparseTensor):
        raise TypeError(
            f"`PredictionWriter` writes dense arrays, but an output is a {type(leaf).__name__}: convert it in the model "
            "(`to_tensor`, `tf.sparse.to_dense`), or call `predict` without it."
        )
    array = np.asarray(leaf)
    if array.dtype.hasobject or not array.ndim:
        kind = "text or objects" if array.dtype.hasobject else "one number without samples"
        raise TypeError(
            f"`PredictionWriter` writes numbers `(samples, ...)`, but an output is {kind}: let the model return numbers, or "
            "call `predict` without it."
        )
    if np.dtype(array.dtype.str) != array.dtype:  # a type that NumPy has not itself
        array = array.astype(np.float32 if tf.as_dtype(array.dtype).is_floating else np.int32)
    return array
