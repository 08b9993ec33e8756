"""Wrong uses of optimizers, of their arguments and of their methods."""

from __future__ import annotations

from typing import Any

from uses.bench import NAN, Use, keras, tf, unisono
from uses.wrong_compile import compiled, model, received

optimizers = unisono.optimizers
schedules, LossScaleOptimizer = optimizers.schedules, optimizers.LossScaleOptimizer


def optimizer(name: str, *words: str, **arguments: Any) -> Use:
    return lambda bench: bench.compiled(optimizer=getattr(optimizers, name)(**arguments)), words


def _range(name: str, argument: str, cure: str, *values: Any, **others: Any) -> dict[str, Use]:
    return {
        f"{name} {argument}={v!r}": optimizer(
            name, f"`{argument}`", cure, received(v, argument), **{argument: v}, **others
        )
        for v in values
    }


OF_KERAS = r"of at least 0 and of at most 1|in the range \[0, 1\]"  # Keras 3.16 checks it, too

OPTIMIZERS: dict[str, Use] = {
    **_range("SGD", "learning_rate", "at least 0", -0.1, NAN, "0.1", None, [0.1], True, float("inf")),
    **_range("Adam", "beta_1", "of at least 0 and below 1", 1.5, -0.1, NAN, "0.9", None),
    **_range("AdamW", "beta_2", "of at least 0 and below 1", 1.5, 1.0),
    **_range("Adam", "epsilon", "at least 0", -1.0, NAN, "1e-7", None),
    **_range("SGD", "momentum", "of at least 0 and of at most 1", NAN),
    **_range("SGD", "momentum", r"float between \[0, 1\]", 1.5, -0.5, "0.9"),
    **_range("RMSprop", "rho", OF_KERAS, 1.5, NAN),
    **_range("Adadelta", "rho", OF_KERAS, -0.5),
    **_range("AdamW", "weight_decay", "at least 0", -0.1, "0.1"),
    **_range("SGD", "clipnorm", "above 0", 0, -1.0, NAN, "1"),
    **_range("SGD", "clipvalue", "above 0", 0, -1.0),
    **_range("SGD", "global_clipnorm", "above 0", 0, NAN),
    **_range("SGD", "ema_momentum", "at most 1", "0.9", None, use_ema=True),
    **_range("SGD", "ema_momentum", r"in the range \[0, 1\]", 1.5, use_ema=True),
    **_range("SGD", "ema_overwrite_frequency", "an integer >= 1 or None", -1, 2.5, use_ema=True),
    **_range("SGD", "gradient_accumulation_steps", "an integer >= 2", -2),
    **_range("SGD", "gradient_accumulation_steps", "whole number", 2.5, "4"),
    **_range("SGD", "loss_scale_factor", "above 0", 0, "2"),
    **_range("SGD", "nesterov", "True or False", "yes"),
    **_range("Adam", "amsgrad", "True or False", "no"),
    **_range("SGD", "use_ema", "True or False", "yes"),
    **_range("Adagrad", "initial_accumulator_value", "at least 0|non-negative", -1.0),
    **_range("Adafactor", "clip_threshold", "above 0", -1.0),
    **_range("Muon", "ns_steps", "whole number", 2.5),
    **_range("ScheduleFreeAdamW", "warmup_steps", "whole number", -1),
    "learning rate too large": optimizer("SGD", "`learning_rate`", "at least 0", learning_rate=10**400),
    "two kinds of clipping": optimizer("SGD", "Only one of", clipnorm=1.0, clipvalue=1.0),
    "lr": optimizer("SGD", "`lr`", "0.1", "did you mean `learning_rate`", lr=0.1),
    "beta1": optimizer("Adam", "`beta1`", "0.9", "did you mean `beta_1`", beta1=0.9),
    **{
        what: optimizer("SGD", "`learning_rate`", *words, learning_rate=rate)
        for what, rate, *words in (
            ("schedule class", schedules.ExponentialDecay, "instance"),
            ("function of the step", lambda step: 0.1, "without arguments"),
            ("negative schedule", schedules.ExponentialDecay(-0.1, 10, 0.1), "-0.1", "at least 0"),
            ("schedule of text", schedules.ExponentialDecay("0.1", 10, 0.1), "'0.1'", "check"),
        )
    },
    "Keras' own, negative": compiled(
        "`learning_rate`", "-1.0", "at least 0", optimizer=keras.optimizers.SGD(-1.0)
    ),
    "Keras' own, beta": compiled("`beta_1`", "1.5", "below 1", optimizer=keras.optimizers.Adam(beta_1=1.5)),
    **{
        f"rate set to {what}": model(
            lambda b, rate=rate: setattr(b.model.optimizer, "learning_rate", rate), "`learning_rate`", *words
        )
        for what, rate, *words in (("NaN", NAN, "nan", "at least 0"), ("text", "0.1", "'0.1'", "number"))
    },
    **{
        f"transformers {what}": optimizer("SGD", "`gradient_transformers`", word, gradient_transformers=v)
        for what, v, word in (
            ("number", 3, "functions from .* Received: 3"),
            ("text", "clip", "functions from .* 'clip'"),
            ("list of text", ["clip"], "functions from .* 'clip'"),
            ("class", optimizers.ClipByNorm, r"pass ClipByNorm\("),
            ("list of a class", [optimizers.ClipByNorm], r"pass ClipByNorm\("),
            ("without argument", [lambda: 0], "functions from .*lambda"),
            ("returning None", [lambda pairs: None], "must return one .* Received None"),
            ("losing pairs", [lambda pairs: pairs[:0]], "must return one .* returned 0"),
        )
    },
    **{
        f"aggregator {what}": optimizer("SGD", "`gradient_aggregator`", word, gradient_aggregator=v)
        for what, v, word in (
            ("text", "mean", "functions from .* 'mean'"),
            ("class", optimizers.PackedAggregation, r"pass PackedAggregation\("),
            ("list", [optimizers.no_aggregation], "functions from .* no_aggregation"),
        )
    },
}


def made(name: str, *words: str, given: tuple[Any, ...] = (), **named: Any) -> Use:
    return lambda bench: getattr(optimizers, name)(*given, **named), words


def scaler(*words: str, **options: Any) -> Use:
    return made("LossScaleOptimizer", *words, given=(optimizers.SGD(),), **options)


PAIRS = "`grads_and_vars`"
PIECES: dict[str, Use] = {
    **{
        f"{name}({value!r})": made(name, f"`{argument}`", cure, received(value), given=(value,))
        for name, argument, cure, values in (
            ("ClipByGlobalNorm", "clip_norm", "above 0", (0, -1, "1", NAN, None, True, [1.0])),
            ("ClipByNorm", "clip_norm", "above 0", (0, NAN)),
            ("ClipByValue", "clip_value", "above 0", (-1, "a")),
            ("AddDecayedWeights", "rate", "at least 0", (-1, "a", None, NAN)),
            ("AdaptiveClip", "factor", "above 0", (0, "x")),
            ("GradientNoise", "eta", "above 0", (0, "a")),
            ("HalfPrecisionAggregation", "dtype", '"float16" or "bfloat16"', ("float32", 16, None)),
            ("PackedAggregation", "max_elements", "whole number", (0, "a", 1.5, None)),
        )
        for value in values
    },
    "AddDecayedWeights min_rank": made(
        "AddDecayedWeights", "`min_rank`", "1.5", "whole number", given=(0.1, 1.5)
    ),
    "GradientNoise gamma": made("GradientNoise", "`gamma`", "-1", "at least 0", given=(0.1, -1)),
    "GradientNoise seed": made("GradientNoise", "`seed`", "'a'", "whole number", given=(0.1, 0.5, "a")),
    "adopt a number": made("adopt", "optimizer identifier", "3", given=(3,)),
    "MultiOptimizer of a list": made("MultiOptimizer", "`optimizer_map`", "OptimizerMap", given=([1],)),
    "OptimizerMap of a number": made(
        "OptimizerMap", "default_optimizer", "3", "Optimizer instance", given=(3,)
    ),
    "LossScaleOptimizer of a text": made("LossScaleOptimizer", "inner_optimizer", "'sgd'", given=("sgd",)),
    **{
        f"LossScaleOptimizer scale {scale!r}": scaler(
            "initial_scale", "positive", received(scale), initial_scale=scale
        )
        for scale in (0, -1.0, NAN, float("inf"), 1e39, "dynamic", True)
    },
    **{
        f"LossScaleOptimizer {options}": scaler(*words, **options)
        for options, *words in (
            ({"dynamic_growth_steps": 1.5}, "`dynamic_growth_steps`", "whole number of at least 1", "1.5"),
            ({"dynamic_growth_steps": 0}, "`dynamic_growth_steps`", "whole number of at least 1", "0"),
            ({"min_scale": 0.0}, "`min_scale` must be positive", received(0.0)),
            ({"max_scale": -1.0}, "`max_scale` must be positive", received(-1.0)),
            ({"min_scale": 2.0**16}, r"`initial_scale` \(32768\) must be between `min_scale` \(65536\)"),
            ({"max_scale": 2.0**14}, r"`initial_scale` \(32768\) must be between .* `max_scale` \(16384\)"),
            ({"min_scale": 8.0, "max_scale": 4.0}, r"`min_scale` \(8\) and `max_scale` \(4\)"),
            ({"clipnorm": 1.0}, "on the `inner_optimizer`"),
            ({"dynamic": False}, "loss_scale_factor"),
        )
    },
    "LossScaleOptimizer of one": made(
        "LossScaleOptimizer", "scales the loss itself", given=(LossScaleOptimizer(optimizers.SGD()),)
    ),
    **{
        f"scaled {given}": model(lambda b, given=given: schedules.scaled(*given), f"`{argument}`", cure)
        for given, argument, cure in (
            ((-0.1, 2, 4), "learning_rate", "at least 0. Received: -0.1"),
            (("a", 2, 4), "learning_rate", "number .* 'a'"),
            ((0.1, 0, 4), "reference_batch_size", "whole number .* 0"),
            ((0.1, 2, 2.5), "global_batch_size", "whole number .* 2.5"),
            ((0.1, 2, 4, "cubic"), "rule", '"linear" or "sqrt". Received: \'cubic\''),
            ((0.1, 2, 4, "sqrt", -1), "warmup_steps", "whole number .* -1"),
        )
    },
    **{
        f"apply_gradients {what}": model(
            lambda b, of=of: b.model.optimizer.apply_gradients(of(b.model.trainable_variables)), *words
        )
        for what, of, *words in (
            ("of None", lambda variables: None, PAIRS, "pairs", "None"),
            ("of variables", lambda variables: variables, PAIRS, "pairs"),
            ("of numbers", lambda variables: [1, 2], PAIRS, "pairs", r"\[1, 2\]"),
            (
                "without any",
                lambda variables: [(None, v) for v in variables],
                "No gradients",
                "inside the tape",
            ),
            ("of text", lambda variables: [("a", v) for v in variables], PAIRS, "'a'|string"),
            ("swapped", lambda variables: [(v, tf.ones_like(v)) for v in variables], PAIRS, "variable"),
            (
                "of another shape",
                lambda variables: [(tf.ones(7), v) for v in variables],
                PAIRS,
                r"\(7,\)",
                r"\(3, 2\)",
            ),
        )
    },
    "minimize without a tape": model(
        lambda b: b.model.optimizer.minimize(tf.constant(1.0), b.model.trainable_variables),
        "`tape` is missing",
        "pass",
    ),
    "minimize no variables": model(
        lambda b: b.model.optimizer.minimize(lambda: tf.constant(1.0), None),
        "`var_list`",
        "trainable_variables",
    ),
}
