"""Which of Keras' own tests run against our classes, and which of them cannot pass."""

# Every test module of these packages, and this module: in one process; in the suite only the quick ones.
PACKAGES = ["keras.src.callbacks", "keras.src.optimizers", "keras.src.optimizers.schedules"]
TRAINER = "keras.src.trainers.trainer_test"

# Each in a separate process, by `make keras-tests`: they reconfigure TensorFlow's devices, or need JAX.
ALONE = [
    "keras.src.backend.tensorflow.distribute_test",
    "keras.src.backend.tensorflow.optimizer_distribute_test",
    "keras.src.callbacks.orbax_checkpoint_test",
    "keras.src.callbacks.swap_ema_weights_test",
]

# The tests that cannot pass, by prefixes of their names, each with the reason.
CANNOT_HOLD = {
    "BackupAndRestoreCallbackTest.test_backup_corrupted": (
        "It damages the weights file of Keras' callback; ours writes other files, and has tests for damaged ones."
    ),
    "BackupAndRestoreCallbackTest.test_best_case_step": (
        "It counts two steps that Keras repeats after resuming within an epoch; ours resumes at the exact step."
    ),
    "ModelCheckpointTest.test_model_checkpoint_options": (
        "It matches Keras' error text for a wrong `save_freq`; ours has the argument, the value and the fix."
    ),
    "MultiOptimizerTest.test_multi_optimizer_blocks_nested_optimizers": (
        "It passes an optimizer to `MultiOptimizer`, which Keras rejects in the first step only, and ours immediately."
    ),
    "OptimizerDistributeTest.test_ema": (
        "It passes the same tensor to all replicas, which TensorFlow's all-reduce treats as the sum; ours adds them."
    ),
    "OptimizerDistributeTest.test_gradient_accumulation": (
        "The same; and it reads the accumulators of one replica, while ours have the sum over all replicas."
    ),
    "TestTrainer.test_retracing": (
        "It allows at most two traces of a custom `train_step`; ours needs a third, which creates the variables."
    ),
    "TestTrainer.test_steps_per_execution_steps_per_epoch_match_multi_epoch": (
        "It counts full compiled calls, six steps in an epoch of five; ours end with the epoch."
    ),
}

# Left to `make keras-tests`: other sizes or modes of cases that stay in the suite, and the test that enables
# deterministic operations for all later tests.
IN_THE_LONG_RUN = "|".join(
    [
        "_101_|_50_|non_jit|_jit$",
        "unrolled_steps_steps_count_(3|8)|_unknown_data_size_match|py_dataset_(inf|mult)",
        "determinism",
    ]
)
