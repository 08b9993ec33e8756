"""The placement of the arrays passed to `fit` during the steps: on the GPUs, or on the host."""

import dataclasses
from collections.abc import Callable, Sequence

from ..arguments import number, one_of
from .device_memory import free_memory, in_words
from .devices import is_gpu

MEMORY_SHARE = 0.25
"""The default share of a GPU's free memory for arrays: weights, state and activations need the rest."""

_setting = ("auto", MEMORY_SHARE)


def keep_data_on(place: str = "auto", memory_share: float = MEMORY_SHARE) -> None:
    """Set the placement of the arrays passed to `fit`, `evaluate` and `predict`, from the next call on.

    On a GPU the samples of a batch are selected from the arrays there, and nothing is copied between steps. On the host they
    are selected there, each GPU receives its own samples, and the next batches are copied while a step runs. `fit` prints
    one line with the choice. Without GPUs nothing changes.

    Args:
        place: "auto": on every GPU of this process where the arrays fit `memory_share` of its free memory, else on the host;
            "device": on the GPUs in any case; "host": on the host in any case.
        memory_share: above 0, at most 1.

    Raises:
        ValueError: `place` or `memory_share` is none of these values.

    Examples:
        >>> unisono.distribute.keep_data_on("auto")
    """
    global _setting
    one_of("place", place, ("auto", "device", "host"))
    _setting = place, float(number("memory_share", memory_share, above=0, most=1))


@dataclasses.dataclass(frozen=True)
class DataHome:
    """The placement of the arrays: the devices of this process's replicas, or none for the host.

    `sentence` describes the choice; it is empty where there was nothing to choose.
    """

    devices: tuple[str, ...] = ()
    sentence: str = ""


def data_home(
    size: int, devices: Sequence[str], dense: bool, free: Callable[[str], int | None] | None = None
) -> DataHome:
    """Choose the placement of the arrays, of `size` bytes, for the replicas on `devices`.

    `dense`: GPUs can hold all of them (no strings, ragged or sparse tensors). `free(device)`: its free bytes, None where
    they are not known.
    """
    if not devices or not all(map(is_gpu, devices)):
        return DataHome()
    place, share = _setting
    where = f"{len(devices)} GPUs" if len(devices) > 1 else "the GPU"
    if not dense:
        there, why = False, ": strings, ragged and sparse tensors cannot be on a GPU"
    elif place != "auto":
        there, why = place == "device", ", as keep_data_on requires"
    else:
        left = [(free or free_memory)(device) for device in devices]
        known = [amount for amount in left if amount is not None]
        there, why = False, f": the free memory of {where} is not known"
        if len(known) == len(left):
            there, least = size <= share * min(known), f"{in_words(min(known))} that are free on {where}"
            why = f": they need {'less' if there else 'more'} than {100 * share:.0f} % of the {least}"
    stay = f"are on {where}" if there else "stay on the host, and batches are copied ahead"
    return DataHome(tuple(devices) * there, f"The arrays ({in_words(size)}) {stay}{why}.")
