"""`fit`, `evaluate`, `predict` and `*_on_batch` on real workers match a single device."""

import csv
import runpy
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

pytestmark = pytest.mark.process

PROGRAMS = Path(__file__).parent / "programs"
RELATIVE = 2e-5  # float32: another summation order than on one device
ABSOLUTE = 2e-6
HALF = 2e-2  # float16 has 11 bits
# Parts for two workers with two replicas each, in new interpreters and in forks, and for three with one; all are covered.
PARTS = {
    "anew": ["arrays"],
    2: ["precision", "state_of_replicas", "own_rows"],
    3: ["datasets", "generators", "stop_together", "outputs_of_all_kinds"],
}


@pytest.fixture(scope="module")
def one_device(tmp_path_factory):
    program = runpy.run_path(str(PROGRAMS / "fit.py"))
    assert {part for parts in PARTS.values() for part in parts} == set(program["PARTS"])
    found = program["run"](tf.distribute.get_strategy(), tmp_path_factory.mktemp("one"), eager=True)
    return {name: np.asarray(value) for name, value in found.items()}


@pytest.mark.long
def test_two_new_interpreters_of_two_replicas_give_the_results_of_one_device(start_workers, one_device):
    # Each has its own order of sets and TensorFlow's defaults for users; a profiler may not survive a fork.
    run = start_workers("fit", count=2, replicas=2, arguments=["AUTO", *PARTS["anew"]], anew=True)
    run.succeed()
    check_numbers(results(run), one_device)
    check_files(run)


def test_two_workers_of_two_replicas_give_the_results_of_one_device(start_workers, one_device):
    run = start_workers("fit", count=2, replicas=2, arguments=["AUTO", *PARTS[2]])
    run.succeed()
    found = results(run)
    check_numbers(found, one_device)
    for one in found:
        for copy in one["copies"]:
            np.testing.assert_array_equal(copy, found[0]["copies"][0])
    check_own_rows(found, replicas=2)


@pytest.mark.long
def test_three_workers_and_a_ring_give_the_results_of_one_device(start_workers, one_device):
    run = start_workers("fit", count=3, arguments=["RING", *PARTS[3]])
    run.succeed()
    check_numbers(results(run), one_device)


def results(run):
    return [dict(np.load(run.out / f"worker-{i}.npz")) for i in range(len(run.processes))]


def check_numbers(found, one_device):
    """All workers match the single-device result; weights are bitwise identical between workers."""
    for one in found:
        assert one.keys() == found[0].keys() <= one_device.keys()
        for name, got in one.items():
            if "weight" in name:
                np.testing.assert_array_equal(got, found[0][name], err_msg=name)  # bitwise identical
            if name == "copies" or name.startswith("own "):
                continue
            expected = one_device[name]
            assert got.shape == expected.shape, name
            if got.dtype.kind != "f":
                np.testing.assert_array_equal(got, expected, err_msg=name)
            else:
                relative = HALF if "float16" in name else RELATIVE
                np.testing.assert_allclose(got, expected, relative, ABSOLUTE, err_msg=name)
        stopped = one.get("own stop", np.array([1, 3]))  # one worker decided, all stopped there
        assert stopped.tolist() == [1, 3]


def check_own_rows(found, replicas):
    """Workers that read different samples train on the union of their data, even if some run out of data early."""
    program = runpy.run_path(str(PROGRAMS / "fit.py"))
    steps = program["rows_of_steps"](len(found), replicas)
    assert len({len(rows) for rows in steps}) > 1
    keras.utils.set_random_seed(7 + list(program["PARTS"]).index("own_rows"))
    model = program["classifier"](tf.distribute.get_strategy())
    model.run_eagerly = True
    x, y = program["X"], program["Y"]
    losses = []
    for _ in range(2):
        history = model.fit(iter([(x[rows], y[rows]) for rows in steps]), verbose=0, shuffle=False)
        losses += history.history["loss"]
    for one in found:
        np.testing.assert_allclose(one["own part loss"], losses, RELATIVE)
        np.testing.assert_allclose(one["own part val_loss"][-1], model.evaluate(x, y, verbose=0)[0], RELATIVE)
        weights = np.concatenate([np.ravel(w) for w in model.get_weights()])
        np.testing.assert_allclose(one["own part weights"], weights, RELATIVE, ABSOLUTE)
        order = [row for rows in steps for row in rows]
        np.testing.assert_allclose(
            one["own part predict"], model.predict(x[order], verbose=0), RELATIVE, ABSOLUTE
        )


def check_files(run):
    """Only the chief wrote files, and their content is correct."""
    rows = list(csv.reader((run.out / "log.csv").read_text().splitlines()))
    assert [row[0] for row in rows] == ["epoch", "0", "1", "2"]
    assert keras.saving.load_model(run.out / "keras.keras").count_params() == 75
    assert keras.saving.load_model(run.out / "ours.keras").count_params() == 75
    assert len(list((run.out / "board").rglob("events*"))) == 2  # train and validation
    profile = sorted(path.name for path in (run.out / "profile").rglob("*.xplane.pb"))
    assert profile == ["worker-0.xplane.pb"]  # TensorFlow can crash the others
    assert len(list((run.out / "profile" / "plugins" / "profile").iterdir())) == 1  # one profile for all
    assert "Epoch 1/3" in run.printed(0)
    assert all("Epoch" not in run.printed(i) for i in range(1, len(run.processes)))
    for index in range(len(run.processes)):
        lines = run.printed(index, "err").splitlines()
        assert not [line for line in lines if "Warning" in line or "WARNING:tensor" in line]
