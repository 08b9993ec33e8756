"""Programs of many operations each, for each row of the tables of rules: per-sample values, sums over samples, and both."""

from __future__ import annotations

import inspect

import numpy as np
import tensorflow as tf

from unisono.distribute.attention.operation import attend

_R = np.random.default_rng(1)
N = 7
U, V = _R.random((N, 4)) * 0.8 + 0.1, _R.random((N, 4)) * 0.8 + 0.1
INTEGERS, MORE = _R.integers(1, 9, (N, 3)), _R.integers(1, 4, (N, 3))
IMAGES, SQUARES, VOLUMES = (
    _R.random((N, 6, 6, 3)),
    _R.random((N, 3, 3)) + 2 * np.eye(3),
    _R.random((N, 4, 4, 4, 2)),
)
WORDS = np.array([f" Wort{n % 3} " for n in range(N)], object)
mean, total = tf.reduce_mean, tf.reduce_sum

UNARY = """
    Abs Acos Asin Asinh Atan Atanh BesselI0e BesselI1e Ceil Cos Cosh Digamma Elu Erf Erfc Erfinv Exp Expm1 Floor Inv
    IsFinite IsInf IsNan LeakyRelu
    Lgamma Log Log1p Ndtri Neg
    PreventGradient Reciprocal Relu Relu6 Rint Round Rsqrt Selu Sigmoid Sign
    Sin Sinh Snapshot Softplus Softsign Sqrt Square StopGradient Tan Tanh Identity ZerosLike OnesLike
"""
BINARY = """
    Add AddV2 Sub Mul Div DivNoNan RealDiv MulNoNan Atan2 Equal NotEqual Less LessEqual Greater GreaterEqual
    Igamma Igammac Maximum Minimum FloorMod FloorDiv NextAfter Pow SquaredDifference Xdivy Xlog1py Xlogy
    ApproximateEqual EluGrad InvGrad LeakyReluGrad ReciprocalGrad Relu6Grad ReluGrad RsqrtGrad SeluGrad
    SigmoidGrad SoftplusGrad SoftsignGrad SqrtGrad TanhGrad
"""
OF_INTEGERS = "BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift Mod TruncateDiv TruncateMod FloorDiv"


def raw(name, *values, **attributes):
    """A raw operation with its inputs in order."""
    operation = getattr(tf.raw_ops, name)
    return operation(**dict(zip(inspect.signature(operation).parameters, values)), **attributes)


def _unary(u):
    sums = total(u, 0) / 9
    # Only some replicas have them.
    rare = [total(tf.where(u > 0.8, u * value, u), 0) for value in (np.inf, np.nan)]
    return [
        *[raw(name, each) for name in UNARY.split() for each in (u, sums, tf.reduce_max(u, 0))],
        *[raw("Acosh", 1 / each) for each in (u, sums, tf.reduce_max(u, 0))],
        *[raw(name, each) for name in ("Floor", "IsFinite", "IsInf", "IsNan") for each in (9 * sums, *rare)],
    ]


def _binary(u, v):
    sums, others = total(u, 0) / 9, total(v, 0) / 9
    pairs = [
        (u, v),
        (u, sums),
        (sums, others),
        (sums, tf.ones_like(sums)),
        (tf.ones_like(sums), sums),
        (u, v[:, :1]),
    ]
    found = [
        raw(name, *pair)
        for name in BINARY.split()
        for number, pair in enumerate(pairs)
        if name not in _OF_ONE_SHAPE or number not in (1, 5)
    ]
    return found + [raw(name, sums, -others) for name in ("EluGrad", "SeluGrad")]


_OF_ONE_SHAPE = [name for name in BINARY.split() if name.endswith("Grad")] + ["ApproximateEqual"]


def _complex(u, v):
    z = tf.complex(u, v)
    sums = total(z, 0)
    return [
        *[raw(name, each, Tout=tf.float64) for name in ("Real", "Imag") for each in (z, sums)],
        *[raw("Conj", each) for each in (z, sums)],
        *[raw(name, each, Tout=tf.float64) for name in ("Angle", "ComplexAbs") for each in (z, sums)],
        tf.complex(total(u, 0), total(v, 0)),
        *[raw(name, z[:, :, None]) for name in ("FFT", "IFFT")],
        *[raw(name, tf.stack([z, 2 * z], 1)) for name in ("FFT2D", "IFFT2D")],
        tf.signal.rfft(tf.reshape(u, [-1, 1, 4])),
        tf.signal.irfft(tf.reshape(z, [-1, 1, 4])),
    ]


def _integers(a, b):
    pairs = [(a, b), (a, b[:, :1]), (total(a, 0), total(b, 0))]
    return [
        *[raw(name, *pair) for name in OF_INTEGERS.split() for pair in pairs],
        *[raw("Invert", each) for each in (a, total(a, 0))],
        tf.bitcast(a, tf.float64),
        tf.bitcast(total(a, 0), tf.float64),
        raw("Bucketize", a, boundaries=[2.0, 5.0]),
        raw("Bucketize", total(a, 0), boundaries=[20.0, 35.0]),
        tf.cumsum(total(a, 0)),
        tf.math.cumprod(total(a, 0)),
        tf.math.cumprod(a, 1),
        tf.math.cumprod(a, 0),
        total(tf.cast(a > 4, tf.int8), 0),
        tf.cast(total(tf.cast(a, tf.float32), 0), tf.int32),
    ]


def _booleans(a, b):
    p, q = a > 4, b > 2
    some, all_ = tf.reduce_any(p, 0), tf.reduce_all(p, 0)
    return [
        *[
            f(*pair)
            for f in (tf.logical_or, tf.logical_and)
            for pair in [(p, q), (some, tf.reduce_any(q, 0)), (all_, tf.reduce_all(q, 0)), (some, all_)]
        ],
        tf.logical_not(p),
        tf.logical_not(some),
        tf.reduce_any(some),
        tf.reduce_all(all_),
        tf.reduce_any(all_),
        tf.reduce_all(some),
        tf.where(some, total(a, 0), total(b, 0)),
        raw("Select", p[:, 0], a, b),
        raw("Select", p, a, b),
    ]


def _strings(words):
    return [
        *[raw(name, words) for name in ("StringLower", "StringStrip", "StringLength")],
        tf.strings.to_hash_bucket_fast(words, 5),
        tf.strings.join([words, words], "-"),
        raw("RegexReplace", words, "o", "a"),
        raw("StringToNumber", tf.strings.regex_replace(words, "[^0-9]", "")),
    ]


def _written(u):
    return [tf.as_string(u), tf.as_string(total(u, 0) * 0)]


def _images(x):
    x = tf.cast(x, tf.float32)
    return [
        tf.image.adjust_contrast(x, 2.0),
        raw("AdjustContrastv2", x, 2.0),
        tf.image.adjust_hue(x, 0.1),
        tf.image.adjust_saturation(x, 0.5),
        tf.image.rgb_to_hsv(x),
        tf.image.hsv_to_rgb(x),
        raw("AdjustHue", x, 0.1),
        raw("AdjustSaturation", x, 0.5),
        tf.nn.space_to_depth(x, 2),
        tf.nn.depth_to_space(tf.tile(x, [1, 1, 1, 4]), 2),
        tf.image.extract_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"),
        tf.nn.local_response_normalization(x),
        raw("MaxPoolV2", x, [1, 2, 2, 1], [1, 2, 2, 1], padding="SAME"),
        raw("Dilation2D", x, tf.ones([2, 2, 3]), strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME"),
        raw(
            "ImageProjectiveTransformV3",
            x,
            tf.constant([[1.0, 0, 1, 0, 1, 0, 0, 0]]),
            [6, 6],
            0.0,
            interpolation="NEAREST",
        ),
        tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]),
        tf.raw_ops.BatchToSpaceND(
            input=2 * tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]]),
            block_shape=[2, 2],
            crops=[[0, 0], [0, 0]],
        ),
        *[tf.image.resize(x, [4, 5], method) for method in ("area", "bicubic", "nearest", "lanczos3")],
    ]


def _gradients_of_images(x):
    x = tf.cast(x, tf.float32)
    kernel = tf.ones([2, 2, 3, 2]) * tf.range(1.0, 3.0)
    functions = [
        lambda x, k: tf.image.resize(x, [4, 5], "bilinear"),
        lambda x, k: tf.image.resize(x, [4, 5], "bicubic"),
        lambda x, k: tf.image.resize(x, [4, 5], "lanczos3"),
        lambda x, k: tf.image.resize(x, [9, 8], "nearest"),
        lambda x, k: tf.nn.local_response_normalization(x),
        lambda x, k: tf.nn.depthwise_conv2d(x, k, [1, 1, 1, 1], "SAME"),
        lambda x, k: tf.nn.bias_add(x, k[0, 0, :, 0]),
        lambda x, k: tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT"),
    ]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, kernel])
        losses = [mean(f(x, kernel) ** 2) for f in functions]
    found = [tape.gradient(loss, each) for loss in losses for each in (x, kernel)]
    return [tf.convert_to_tensor(g) for g in found if g is not None]


def _volumes(x):
    x = tf.cast(x, tf.float32)
    kernel = tf.ones([2, 2, 2, 2, 3]) * tf.range(1.0, 4.0)
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        z = tf.nn.conv3d(x, kernel, [1] * 5, "SAME")
        z = tf.nn.avg_pool3d(tf.nn.max_pool3d(z, 2, 1, "SAME"), 2, 2, "SAME")
        loss = mean(z**2)
    convolved = raw("Conv", x, kernel, strides=[1] * 5, padding="SAME")
    return [loss, *tape.gradient(loss, [x, kernel]), convolved]


def _matrices(a):
    upper = a + tf.linalg.matrix_transpose(a) + 4 * tf.eye(3, dtype=a.dtype)
    with tf.GradientTape() as tape:
        tape.watch(upper)
        loss = total(tf.linalg.cholesky(upper) ** 2)
    return [
        tf.linalg.cholesky(upper),
        tape.gradient(loss, upper),
        tf.linalg.inv(a),
        tf.linalg.solve(a, a),
        tf.linalg.det(a),
        *tf.linalg.qr(a),
        tf.linalg.diag(a[:, 0]),
        tf.linalg.diag(a[0, 0]),
        tf.linalg.cholesky(upper[0]),
        tf.linalg.solve(a[0], a[1]),
        tf.linalg.solve(a, total(a, 0)[None] + 0 * a),
        raw("BatchMatMul", a, a),
        raw("BatchMatMulV3", a, a, Tout=tf.float64),
        raw("BatchMatMul", a, a, adj_x=True, adj_y=True),
        raw("BatchMatMulV2", total(a, 0)[None], tf.ones([2, 3, 3], a.dtype)),
        tf.einsum("...ij,jk->...ik", a, tf.eye(3, dtype=a.dtype)),
        tf.einsum("bij,bkj->ik", a, a),
        tf.math.cumulative_logsumexp(a, 1),
        tf.einsum("bii->b", a),
        tf.linalg.svd(a, compute_uv=False),
        tf.linalg.eigvalsh(upper),
        tf.linalg.lu(upper)[0],
        tf.linalg.triangular_solve(
            tf.eye(3, dtype=a.dtype) + tf.ones([3, 3], a.dtype), tf.transpose(a[:, 0])
        ),
        tf.matmul(a[0], total(a, 0), transpose_a=True),
        tf.matmul(tf.transpose(a[:, 0]), a[:, 1]),
    ]


def _rest(u, v):
    first = tf.cast(u, tf.float32)
    hits = tf.cast(tf.argmax(v, 1), tf.int32)
    parts = tf.raw_ops.SplitV(value=u, size_splits=[1, 3], axis=1, num_split=2)
    table = tf.ones([3, 4], u.dtype)
    return [
        *[raw(name, 1 + u) for name in ("BesselI0", "BesselI1")],
        *[raw(name, 1 + tf.ones_like(u), u) for name in ("Zeta", "Polygamma")],
        raw("Betainc", u, v, u),
        tf.reverse_sequence(tf.stack([u, v], 1), hits % 3, seq_axis=1),
        raw("InTopKV2", first, hits, 2),
        raw("NthElement", u, 1),
        tf.argmin(u, 1),
        tf.argmin(u, 0),
        raw("EuclideanNorm", u, 0),
        raw("EuclideanNorm", u, 1),
        raw("Prod", u, 1),
        tf.concat([total(u, 0), total(v, 0)], 0),
        mean(u, 1),
        mean(tf.fill([tf.shape(u)[0], 3], 2.0), 1),
        *[tf.nn.log_softmax(each) for each in (u, total(u, 0))],
        tf.reduce_prod(total(u, 0)),
        *parts,
        *tf.raw_ops.SplitV(value=total(u, 0), size_splits=[1, 3], axis=0, num_split=2),
        *tf.split(tf.concat([u, 2 * u], 0), 2),
        *tf.split(total(u, 0), 2),
        tf.pad(u, [[0, 0], [1, 2]], constant_values=3.0),
        tf.pad(u, [[1, 0], [0, 0]], "REFLECT"),
        tf.pad(u, [[0, 0], [1, 0]], "SYMMETRIC"),
        tf.clip_by_value(u, 0.2, 0.7),
        raw("ClipByValue", u, 0.3, 0.6),
        raw("ClipByValue", total(u, 0), 3.0, 4.0),
        tf.debugging.check_numerics(u, "x"),
        tf.ensure_shape(u, [None, 4]),
        tf.ensure_shape(total(u, 0), [4]),
        *tf.identity_n([u, total(v, 0)]),
        tf.tensor_scatter_nd_sub(table, hits[:, None] % 3, u),
        tf.tensor_scatter_nd_sub(table * total(u), hits[:, None] % 3, v),
        tf.raw_ops.Bincount(arr=hits, size=4, weights=v[:, 0]),
        tf.raw_ops.DenseBincount(
            input=tf.stack([hits, hits], 1), size=4, weights=tf.zeros([0]), binary_output=True
        ),
        tf.raw_ops.BroadcastTo(input=total(u, 0), shape=[2, 4]),
        tf.raw_ops.Fill(dims=[2], value=total(u)),
        tf.unstack(total(u, 0))[1],
        tf.stack([total(u), tf.ones([], u.dtype)]),
        tf.stack([u[:, 0], v[:, 0]], 0),
        tf.expand_dims(total(u, 0), 0),
        tf.squeeze(total(u, 0, keepdims=True)),
        total(u, 0)[1:3],
        tf.slice(total(u, 0), [1], [2]),
        tf.slice(tf.concat([u, v], 0), [tf.shape(u)[0], 0], [tf.shape(u)[0], 4]),
        tf.slice(u, [0, 1], [-1, 2]),
        tf.slice(u, [1, 0], [3, 4]),
        tf.gather(total(u, 0), [2, 0]),
        tf.gather(u, [2, 0], axis=1),
        tf.gather(u, [2, 0]),
        tf.gather(u, hits, axis=0),
        tf.reverse(total(u, 0), [0]),
        tf.nn.softmax(total(u, 0)),
        tf.math.top_k(u, 2)[1],
        tf.one_hot(hits, 5, axis=0),
        tf.one_hot(hits, 5),
        tf.math.unsorted_segment_sum(tf.transpose(u), [0, 1, 0, 1], 2),
        tf.gather_nd(table, hits[:, None] % 3),
        tf.linalg.band_part(total(u, 0)[None] * table[:, :1], 0, 1),
    ]


def _drawn(u):
    n, random = tf.shape(u)[0], tf.random
    seed = tf.stack([1, 0 * n + 2])  # no constant
    of_samples = [  # no number is drawn twice
        random.normal([n, 4], seed=1),
        random.uniform([n, 4], seed=1),
        random.uniform([n, 4], 0, 2**30, tf.int32, seed=1),
        random.truncated_normal([n, 4], seed=1),
        random.stateless_normal([n, 4], seed),
        random.stateless_uniform([n, 4], seed),
        random.stateless_uniform([n, 4], seed, None, None, tf.int32),
        random.stateless_uniform([n, 4], seed, 0, 2**30, tf.int32),
        random.stateless_truncated_normal([n, 4], seed),
    ]
    others = [
        random.gamma([n, 4], 2.0, seed=1),
        random.poisson([n, 4], 2.0, seed=1),
        random.categorical(tf.ones([4, 3]), 4, seed=1)[:1],
        random.normal([1, 4], seed=2),
        random.stateless_normal([n, 4], seed) * 0 + tf.cast(u, tf.float32),
    ]
    chosen = tf.boolean_mask(u, u[:, 0] > 0.4)
    return [
        *[tf.size(tf.unique(tf.reshape(draw, [-1]))[0]) for draw in of_samples],
        *[0 * u * tf.cast(draw, u.dtype) for draw in of_samples + others],
        total(tf.gather(u, random.shuffle(tf.range(n))), 0),
        mean((chosen + 0 * random.stateless_normal(tf.shape(chosen), seed, 0.0, 1.0, tf.float64)) ** 2),
        random.stateless_normal([3], seed),
    ]


def _listed(u):
    raw_ops, dtype, sums = tf.raw_ops, u.dtype, total(u, 0)

    def of(*elements, shape):
        return raw_ops.TensorListFromTensor(tensor=tf.stack(elements), element_shape=shape)

    def written():
        held = tf.TensorArray(dtype, 3, element_shape=[None, 4], infer_shape=False)
        return held.write(0, u).write(1, u**2).write(2, u**3)

    def taken(held, shape):
        return [
            raw_ops.TensorListStack(input_handle=held, element_shape=shape, element_dtype=dtype),
            raw_ops.TensorListGetItem(input_handle=held, index=1, element_shape=shape, element_dtype=dtype),
            raw_ops.TensorListPopBack(input_handle=held, element_shape=shape, element_dtype=dtype)[1],
        ]

    def joined(held, shape):
        none = tf.constant([], tf.int64)
        return raw_ops.TensorListConcatV2(
            input_handle=held, element_shape=shape, leading_dims=none, element_dtype=dtype
        )[:2]

    lists, of_sums = of(u, 2 * u, shape=[-1, 4]), of(sums, 2 * sums, shape=[4])
    resized = raw_ops.TensorListResize(input_handle=lists, size=3)
    longer = raw_ops.TensorListSetItem(input_handle=resized, index=2, item=3 * u)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(u)
        losses = [total(written().read(1) * u), total(written().stack() ** 2), total(written().concat() ** 2)]
    return [
        raw_ops.TensorListLength(input_handle=lists),
        raw_ops.TensorListElementShape(input_handle=lists, shape_type=tf.int32),
        *[each for held in (lists, resized) for each in taken(held, tf.shape(u))],
        *taken(longer, [-1, 4]),
        *taken(of_sums, [4]),
        *joined(of(u, u + 1, shape=[-1, 4]), [-1, 4]),
        *joined(of_sums, [4]),
        *joined(of(tf.transpose(u), tf.transpose(2 * u), shape=[4, -1]), tf.stack([4, tf.shape(u)[0]])),
        *[tape.gradient(loss, u) for loss in losses],
    ]


def _attended(u, v):
    q = tf.reshape(tf.concat([u, v, u * v], 1), [-1, 3, 2, 1, 2])
    k = tf.reshape(tf.concat([v, u + v], 1), [-1, 2, 2, 2])
    more = []
    for mask, causal in ((None, True), (u[:, None, None, None, :2] > 0.4, False)):
        with tf.GradientTape() as tape:
            tape.watch([q, k])
            out = attend(q, k, k * 2, mask, causal, lambda *_: None)
            squares = out * out
        more += [out, total(out, 0), *tape.gradient(squares, [q, k])]
    return more


TABLES = {
    "functions of one number": (_unary, U),
    "functions of two numbers": (_binary, U, V),
    "complex numbers": (_complex, U, V),
    "integers": (_integers, INTEGERS, MORE),
    "booleans": (_booleans, INTEGERS, MORE),
    "strings": (_strings, WORDS),
    "written numbers": (_written, U),
    "images": (_images, IMAGES),
    "gradients of images": (_gradients_of_images, IMAGES),
    "volumes": (_volumes, VOLUMES),
    "matrices": (_matrices, SQUARES),
    "other operations": (_rest, U, V),
    "draws": (_drawn, U),
    "lists of tensors": (_listed, U),
    "attention in blocks": (_attended, U, V),
}
