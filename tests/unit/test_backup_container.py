"""The file format of backups: content survives a round trip, and every damaged byte is detected."""

import hashlib
import io
import json
import struct

import ml_dtypes
import numpy as np
import pytest
from broken_files import with_right_checksum

from unisono.callbacks.backup.files import container


def written(content, summary=None):
    stream = io.BytesIO()
    container.write(stream, content, summary or {})
    return stream.getvalue()


def round_trip(content):
    return container.parse(written(content))[1]


def test_plain_values_come_back_as_they_were():
    content = {
        "none": None,
        "flags": [True, False],
        "big": 2**80,
        "floats": [0.1, 1e-320, float("inf"), -float("inf")],
        "text": "naïve \n 日本 \ud800",
        "bytes": b"\x00\xff",
        "tuple": (1, (2, [3])),
        "keys": {1: "one", (2, 3): "pair", "$array": 0},
        "empty": [{}, [], (), b"", ""],
    }
    assert round_trip(content) == content
    assert np.isnan(round_trip({"nan": float("nan")})["nan"])


DTYPES = ["bool", "int8", "uint64", "float16", "float32", "float64", "complex64", "bfloat16"]
DTYPES += ["float8_e4m3fn", "datetime64[s]"]


def test_arrays_come_back_bit_for_bit():
    rng = np.random.default_rng(0)
    for dtype in (np.dtype(getattr(ml_dtypes, name, name)) for name in DTYPES):
        for shape in [(), (0,), (3,), (2, 0, 3), (5, 7)]:
            raw = rng.integers(0, 2 if dtype.kind == "b" else 256, [*shape, dtype.itemsize], np.uint8)
            array = raw.reshape(-1).view(dtype).reshape(shape)
            result = round_trip({"a": array})["a"]
            assert (result.dtype, result.shape) == (dtype, array.shape)
            assert result.tobytes() == array.tobytes()


def test_scalars_strings_and_other_layouts_come_back():
    big_endian = np.arange(6, dtype=">i4").reshape(2, 3)
    strided = np.arange(24.0).reshape(4, 6)[::2, ::-1]
    texts = {"o": np.array([b"a", "é"], object), "u": np.array(["x"])}
    result = round_trip({"s": np.float32(0.1), "b": big_endian, "v": strided, **texts})
    assert isinstance(result["s"], np.float32) and result["s"] == np.float32(0.1)
    np.testing.assert_array_equal(result["b"], big_endian)
    np.testing.assert_array_equal(result["v"], strided)
    assert result["o"].tolist() == [b"a", "é"] and result["u"].tolist() == ["x"]


@pytest.mark.parametrize("value", [object(), {"a": [{1, 2}]}, np.zeros(2, [("x", "f4")])])
def test_other_values_are_rejected_with_their_place(value):
    with pytest.raises(TypeError, match=r"callbacks\.mine.*(object|set|structured)"):
        written({"callbacks": {"mine": value}})


def test_every_flipped_bit_and_every_length_is_found(tmp_path):
    data = written({"w": np.arange(10, dtype=np.float32), "epoch": 3}, {"epoch": 3})
    path = tmp_path / "f"
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << (position % 8)
        with pytest.raises(container.DamagedFileError):
            container.parse(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(container.DamagedFileError):
            container.parse(data[:length])
    for damaged in (b"", data[:-1], data + b"\0", data[:40] + b"\x55" + data[41:]):
        path.write_bytes(damaged)
        for outline in (False, True):
            with pytest.raises(container.DamagedFileError, match=str(path)):
                container.read(path, outline=outline)


def test_newer_version_is_distinguished_from_damage(tmp_path):
    body = bytearray(written({"a": 1})[: -container.DIGEST_BYTES])
    body[8:12] = struct.pack("<I", container.VERSION + 1)
    path = tmp_path / "newer"
    path.write_bytes(with_right_checksum(bytes(body)))
    for outline in (False, True):
        with pytest.raises(container.NewerFormatError, match=r"format version 2.*up to 1"):
            container.read(path, outline=outline)


def test_other_file_with_a_right_checksum_is_rejected():
    with pytest.raises(container.DamagedFileError, match="not a backup of unisono"):
        container.parse(with_right_checksum(b"PK" + bytes(50)))


def test_outline_is_read_without_the_arrays(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(written({"a": np.ones(1000)}, {"epoch": 4, "step": 2}))
    summary, content = container.read(path, outline=True)
    assert summary == {"epoch": 4, "step": 2}
    assert content["a"].shape == (1000,) and content["a"].strides == (0,)


def test_file_is_readable_as_documented():
    """The reader from the guide: only json, struct and numpy."""
    data = written({"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)})
    version, length = struct.unpack_from("<IQ", data, 8)
    manifest = json.loads(data[20 : 20 + length])
    begin = -(-(20 + length) // 64) * 64
    entry = manifest["arrays"][manifest["content"]["kernel"]["$array"]]
    count = int(np.prod(entry["shape"]))
    array = np.frombuffer(data, entry["dtype"], count, begin + entry["offset"]).reshape(entry["shape"])
    assert version == 1
    np.testing.assert_array_equal(array, np.arange(6).reshape(2, 3))
    assert hashlib.blake2b(data[:-32], digest_size=32).digest() == data[-32:]
