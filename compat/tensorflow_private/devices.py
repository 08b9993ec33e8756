"""Private information of TensorFlow's runtime about its devices."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.distribute import device_util
from tensorflow.python.eager import context


def current_device() -> str:
    """The device that the current code requests; empty without a request."""
    return device_util.current()


def memory_limit(device: str) -> int | None:
    """The bytes that TensorFlow may take of a device's memory; None where there is no such device.

    Args:
        device: a name such as "GPU:0". TensorFlow's devices are in use after this.
    """
    current: Any = context.context()
    current.ensure_initialized()
    wanted = tf.DeviceSpec.from_string(device)
    listed = pywrap_tfe.TFE_ContextListDevices(current._handle)
    try:
        for index in range(pywrap_tf_session.TF_DeviceListCount(listed)):
            spec = tf.DeviceSpec.from_string(pywrap_tf_session.TF_DeviceListName(listed, index))
            if (spec.device_type, spec.device_index) == (wanted.device_type, wanted.device_index or 0):
                return pywrap_tf_session.TF_DeviceListMemoryBytes(listed, index)
    finally:
        pywrap_tf_session.TF_DeleteDeviceList(listed)
    return None
