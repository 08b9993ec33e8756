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
        "It damages the file that Keras' callback keeps its weights in; ours has other files, and tests of their damage."
    ),
    "BackupAndRestoreCallbackTest.test_best_case_step": (
        "It counts two steps that Keras makes again after a resume within an epoch; ours goes on at the very step."
    ),
    "ModelCheckpointTest.test_model_checkpoint_options": (
        "It looks for the words of Keras' error for a wrong `save_freq`; ours names argument, value and cure."
    ),
    "MultiOptimizerTest.test_multi_optimizer_blocks_nested_optimizers": (
        "It makes a MultiOptimizer of an optimizer, which Keras refuses in the first step only, and ours at once."
    ),
    "OptimizerDistributeTest.test_ema": (
        "It gives all replicas one and the same tensor, which TensorFlow's all-reduce takes for the sum; ours adds it up."
    ),
    "OptimizerDistributeTest.test_gradient_accumulation": (
        "The same; and it reads accumulators of one replica, while ours hold what all replicas have brought."
    ),
    "TestTrainer.test_retracing": (
        "It counts the traces of an own `train_step`, at most two; ours makes a third, in which variables are created first."
    ),
    "TestTrainer.test_steps_per_execution_steps_per_epoch_match_multi_epoch": (
        "It counts whole executions, six steps in an epoch of five; ours stop where the epoch does."
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
