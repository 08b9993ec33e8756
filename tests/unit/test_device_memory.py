"""Where arrays are placed, and how memory is described."""

import pytest
import tensorflow as tf

from unisono.distribute import grow_gpu_memory, keep_data_on
from unisono.distribute.hardware.data_placement import data_home
from unisono.distribute.hardware.device_memory import free_memory, in_words

GIB = 2**30
TWO = ["/device:GPU:0", "/device:GPU:1"]


@pytest.fixture(autouse=True)
def default():
    yield
    keep_data_on()


def home(size, devices=TWO, dense=True, free=40 * GIB):
    return data_home(size, devices, dense, lambda device: free)


def test_arrays_that_fit_a_quarter_of_the_free_memory_are_on_every_gpu():
    found = home(10 * GIB)
    assert found.devices == tuple(TWO)
    assert found.sentence == (
        "The arrays (10.0 GiB) are on 2 GPUs: they need less than 25 % of the 40.0 GiB that are free on 2 GPUs."
    )


def test_larger_arrays_stay_on_the_host_and_one_line_says_so():
    found = home(10 * GIB + 1)
    assert found.devices == ()
    words = "The arrays (10.0 GiB) stay on the host, and batches are copied ahead: they need"
    assert found.sentence.startswith(words)


def test_the_gpu_with_the_least_free_memory_decides():
    free = {TWO[0]: 80 * GIB, TWO[1]: 4 * GIB}
    assert data_home(2 * GIB, TWO, True, free.get).devices == ()
    assert data_home(GIB, TWO, True, free.get).devices == tuple(TWO)


def test_strings_and_an_unknown_memory_keep_arrays_on_the_host():
    assert home(1, dense=False).devices == ()
    assert home(1, free=None).devices == ()


def test_without_gpus_there_is_nothing_to_decide():
    assert home(1, ["/device:CPU:0"]) == home(1, [])
    assert home(1, []).sentence == ""


def test_setting_decides_in_any_case():
    keep_data_on("device")
    assert home(100 * GIB).devices == tuple(TWO)
    keep_data_on("host")
    assert home(1).devices == ()
    keep_data_on("auto", memory_share=1)
    assert home(40 * GIB).devices == tuple(TWO)


def test_free_memory_of_a_gpu_that_is_not_there_is_unknown():
    assert free_memory("GPU:7") is None


def test_growth_is_set_for_every_gpu_and_nothing_happens_without():
    assert grow_gpu_memory() == [gpu.name for gpu in tf.config.list_physical_devices("GPU")]
    with pytest.raises(TypeError, match="enabled"):
        grow_gpu_memory(1)


def test_sizes_are_said_in_the_unit_that_fits():
    sizes = {12: "12 bytes", 2048: "2 KiB", 5 * 2**20: "5 MiB", 3 * 2**30: "3.0 GiB"}
    assert {size: in_words(size) for size in sizes} == sizes
