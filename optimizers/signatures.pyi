"""What editors and type checkers know about the optimizer classes that this package makes from Keras' when it is imported.

`tests/unit/test_optimizers_signatures.py` compares each signature with that of the installed Keras.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack

import keras

from .multi_optimizer import MultiOptimizer as MultiOptimizer
from .optimizer import Optimizer, Stage

_LearningRate: TypeAlias = float | keras.optimizers.schedules.LearningRateSchedule | Callable[[], Any]

class _Clipping(TypedDict, total=False):
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    use_ema: bool
    ema_momentum: float
    ema_overwrite_frequency: int | None
    loss_scale_factor: float | None
    gradient_accumulation_steps: int | None
    name: str | None
    gradient_transformers: Sequence[Stage] | None
    gradient_aggregator: Stage | None

class _Options(_Clipping, total=False):
    weight_decay: float | None

class Adadelta(Optimizer, keras.optimizers.Adadelta):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        **options: Unpack[_Options],
    ) -> None: ...

class Adafactor(Optimizer, keras.optimizers.Adafactor):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
        **options: Unpack[_Options],
    ) -> None: ...

class Adagrad(Optimizer, keras.optimizers.Adagrad):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **options: Unpack[_Options],
    ) -> None: ...

class Adam(Optimizer, keras.optimizers.Adam):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Unpack[_Options],
    ) -> None: ...

class AdamW(Optimizer, keras.optimizers.AdamW):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **options: Unpack[_Clipping],
    ) -> None: ...

class Adamax(Optimizer, keras.optimizers.Adamax):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Unpack[_Options],
    ) -> None: ...

class Ftrl(Optimizer, keras.optimizers.Ftrl):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        **options: Unpack[_Options],
    ) -> None: ...

class Lamb(Optimizer, keras.optimizers.Lamb):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Unpack[_Options],
    ) -> None: ...

class Lion(Optimizer, keras.optimizers.Lion):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        **options: Unpack[_Options],
    ) -> None: ...

class Muon(Optimizer, keras.optimizers.Muon):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float = 0.004,
        *,
        exclude_layers: list[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: float = 3.4445,
        muon_b: float = -4.775,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
        **options: Unpack[_Clipping],
    ) -> None: ...

class Nadam(Optimizer, keras.optimizers.Nadam):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **options: Unpack[_Options],
    ) -> None: ...

class RMSprop(Optimizer, keras.optimizers.RMSprop):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **options: Unpack[_Options],
    ) -> None: ...

class ScheduleFreeAdamW(Optimizer, keras.optimizers.ScheduleFreeAdamW):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
        **options: Unpack[_Options],
    ) -> None: ...

class SGD(Optimizer, keras.optimizers.SGD):
    def __init__(
        self,
        learning_rate: _LearningRate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **options: Unpack[_Options],
    ) -> None: ...
