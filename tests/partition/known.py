"""Programs that are known to be wrong until sizes are symbols and rules hold for every number. Should be empty."""

PROBES = "sizes are found by two probes: numbers that do not differ there count as constants"
SQUEEZE = "a replica with one sample squeezes it away"
POSITIONS = "positions of a replica's samples do not fit"
PARTIAL = "the parts of a sum are infinite or no numbers where the sum is neither"
MASKS = "rewritten sums multiply 0 with -inf"
WRAPS = "parts of a sum of integers are cast before they are added"
SHAPES = "a comparison of tensors whose shapes do not match"
EXTENT_OF_ONE = "an axis with one entry, which broadcasts, is sliced"

KNOWN: dict[str, str] = {
    "size: maximum of k - n": PROBES,
    "size: min(n - 1, 1)": PROBES,
    "size: 2 * (n >> 1)": PROBES,
    "size: cast to bool": PROBES,
    "size: cast to bool of n - 4": PROBES,
    "extent: pad to 4": PROBES,
    "extent: pad to 8": PROBES,
    "extent: pad to 8, loss and gradient": PROBES,
    "extent: pad with ones": PROBES,
    "extent: gradient of pad": PROBES,
    "extent: squeeze": SQUEEZE,
    "extent: squeeze of ones": SQUEEZE,
    "extent: squeeze, then its shape": SQUEEZE,
    "extent: squeeze of a tensor of n, n": SQUEEZE,
    "extent: gather of range": POSITIONS,
    "extent: gather of transposed logits": POSITIONS,
    "extent: gradient of gather of range": POSITIONS,
    "extent: frames along axis 0": PROBES,
    "extent: bank or batch": PROBES,
    "views: counts of two views": PROBES,
    "views: pairs in a vector": PROBES,
    "number: x/0": PARTIAL,
    "number: gradient of x/0": PARTIAL,
    "number: x/0 of some columns": PARTIAL,
    "number: sum over sums of columns": PARTIAL,
    "number: sum times the inverse of 0": PARTIAL,
    "number: sum times inf": PARTIAL,
    "number: sum with a zero part times inf": PARTIAL,
    "number: sum of positive numbers times inf": PARTIAL,
    "number: inverse of a sum times 0": PARTIAL,
    "number: sum over 0": PARTIAL,
    "number: mean times inf": PARTIAL,
    "number: sum times a vector with inf": PARTIAL,
    "number: sum of some columns times inf": PARTIAL,
    "number: matrix product with inf": PARTIAL,
    "number: gradient through inf": PARTIAL,
    "number: scalar product with inf": PARTIAL,
    "number: CLIP with -inf": MASKS,
    "number: gradient of CLIP with -inf": MASKS,
    "number: uint8: sum, then cast": WRAPS,
    "number: int8: sum, then cast": WRAPS,
    "number: uint16: sum, then cast": WRAPS,
    "number: int16: sum, then cast": WRAPS,
    "number: int32: sum, then cast": WRAPS,
    "number: uint32: sum, then cast": WRAPS,
    "number: int64: sum, then cast": WRAPS,
    "number: uint64: sum, then cast": WRAPS,
    "number: uint8: sum of comparisons": WRAPS,
    "number: int8: count, then a mean": WRAPS,
    "number: int32: sum to a wider type": WRAPS,
    "number: int32: product of matrices": WRAPS,
    "number: int32: segments, then cast": WRAPS,
    "number: uint8: segments, then cast": WRAPS,
    "number: not equal of other shapes": SHAPES,
    "number: complex sum times inf": PARTIAL,
}
"""Reasons by the names of `hand_written.py`."""

KNOWN_OPERATIONS: dict[str, str] = {
    "Bitcast": "its last axis, the batch, is part of a number if a replica has as many samples as parts",
    "BroadcastGradientArgs": PROBES,
    "MatrixDiagV3": EXTENT_OF_ONE,
    "SelectV2": SQUEEZE,
    "SoftmaxCrossEntropyWithLogits": EXTENT_OF_ONE,
    "SparseSegmentSqrtNWithNumSegments": PROBES,
    "StaticRegexReplace": PROBES,
    "keras.sparsemax": SQUEEZE,
    "keras.squeeze": SQUEEZE,
    "keras.view": "see Bitcast",
}
"""Reasons by the operations whose programs of seed 0 are wrong."""
