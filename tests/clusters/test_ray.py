"""Real local Ray: shards as inputs, a killed worker, trials."""

import importlib.util
import os
import secrets
import sys
from pathlib import Path

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
pytestmark = [
    pytest.mark.clusters,
    pytest.mark.long,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """Ray keeps threads and files for all tests of this module."""


@pytest.fixture(scope="module")
def programs():
    """The functions that workers import."""
    spec = importlib.util.spec_from_file_location("ray_programs", Path(__file__).with_name("ray_programs.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["ray_programs"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    (folder / "token").write_text(secrets.token_hex(32))
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(folder / "token")  # else Ray writes one into the home directory
    variables = {
        "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{Path(__file__).parent}",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    yield folder
    ray.shutdown()
    del os.environ["RAY_AUTH_TOKEN_PATH"]


def train(program, folder, datasets=None, failures=0, **config):
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    run = RunConfig(storage_path=str(folder / "storage"), failure_config=FailureConfig(max_failures=failures))
    trainer = TensorflowTrainer(
        program,
        train_loop_config={"folder": str(folder), **config},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1}),
        datasets=datasets,
        run_config=run,
    )
    return trainer.fit()


def loaded(path):
    with np.load(path) as file:
        return dict(file)


def test_run_whose_worker_is_killed_ends_with_the_same_bits(cluster, programs):
    whole = train(programs.killed_once, cluster, kill=False)
    result = train(programs.killed_once, cluster, kill=True, failures=1)
    assert (cluster / "killed").exists()
    for rank in range(2):
        undisturbed, resumed = (loaded(cluster / f"{kill}-{rank}.npz") for kill in (False, True))
        assert undisturbed.pop("begun").tolist() == [0, 1, 2, 3]
        assert resumed.pop("begun").tolist() in ([1, 2, 3], [2, 3])  # Ray may lose the last report
        assert len(undisturbed) == 2
        for name, weight in undisturbed.items():
            np.testing.assert_array_equal(weight, resumed[name])
    assert result.metrics["loss"] == whole.metrics["loss"]
    assert len(list(Path(result.checkpoint.path).glob("*.unisono"))) == 1


def test_shard_is_rejected_with_a_fix_that_trains_each_sample_once(cluster, programs):
    x, y = programs.samples()
    data = ray.data.from_items([{"x": a, "y": b} for a, b in zip(x, y)])
    train(programs.shards, cluster, {"train": data})
    for rank in range(2):
        found = loaded(cluster / f"shards-{rank}.npz")
        np.testing.assert_array_equal(found.pop("seen"), np.full(programs.ROWS, 2.0))
        assert found.pop("steps") == 1
        assert str(found.pop("generator")).startswith("True: The input must yield the same global batches")
        assert found.keys() == {"shard", "to_tf", "prepared", "batches", "evaluate", "predict", "validation"}
        for form, said in found.items():
            assert str(said).startswith("True: "), (form, said)  # the weights are unchanged
            assert "`x` reads a shard of a Ray dataset" in str(said), (form, said)
            assert "context.get_per_replica_batch_size(" in str(said)


def test_four_trials_resume_from_their_checkpoints(cluster, programs):
    from ray import tune

    folder = cluster / "trials"
    folder.mkdir()
    tuner = tune.Tuner(
        programs.trial,
        param_space={"rate": tune.grid_search([0.0, 0.01, 0.05, 0.1]), "folder": str(folder)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
        run_config=tune.RunConfig(
            storage_path=str(folder / "storage"), failure_config=tune.FailureConfig(max_failures=1)
        ),
    )
    results = tuner.fit()
    assert not results.errors and len(results) == 4
    assert sorted(path.read_text() for path in folder.glob("*_*") if path.is_file()) == ["0 1 2 2 3 "] * 4
    losses = [result.metrics["loss"] for result in results]
    assert results.get_best_result().metrics["loss"] == min(losses) < max(losses)
