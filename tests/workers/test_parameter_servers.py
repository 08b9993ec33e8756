"""A coordinator, workers and parameter servers as real processes. One cluster for each scenario, many checks in each."""

import json
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "parameter_servers.py"


def run(forked, scenario, directory, code=0):
    """The results that a scenario of the program printed; `code` is its expected exit status."""
    files = {kind: directory / kind for kind in ("out", "err")}
    process = forked.start(PROGRAM, scenario, directory, folder=directory, **files)
    assert process.wait() == code, files["err"].read_text()[-5000:]
    return json.loads(files["out"].read_text().rpartition("FOUND ")[2] or "null")


@pytest.fixture
def found(request, forked, tmp_path):
    """The results of the scenario in the test's parameter."""
    return run(forked, request.param, tmp_path)


pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.long
@pytest.mark.parametrize("found", ["alone"], indirect=True)
def test_one_worker_with_split_variables_equals_one_device_bit_for_bit(found):
    assert found["fit_distance"] == 0 and found["same_history"] and found["predict"] == 0
    assert found["batch"][0] == found["batch"][1]
    assert found["own_steps"][0] == found["own_steps"][1]
    assert found["split_distance"] == 0 and found["shards"] == 3 and found["slots_beside"]
    assert found["split_names"] == [True] * 3
    assert found["loaded_shards"] == 2 and found["loaded_distance"] == 0
    assert found["resumed_distance"] == 0
    assert found["custom_loop"] == [-50, -50, 50]


@pytest.mark.parametrize("found", ["composite"], indirect=True)
def test_ragged_and_sparse_arrays_and_a_fit_in_the_scope_equal_one_device(found):
    assert (
        max(found["distances"]) < 1e-5
    )  # float32, and a part of the table adds up its gradients in its own order


@pytest.mark.long
@pytest.mark.parametrize("found", ["together"], indirect=True)
def test_two_workers_count_each_step_once_and_report_errors(found):
    assert found["counts"] == [2000, -2000, 2000]
    assert found["momentum"][0] == found["momentum"][1], "no update of the velocity is lost"
    asynchronous, one_device = found["accuracy"]
    assert asynchronous > one_device - 0.01
    assert found["overflow"] == [36, 4, 2.0**11], "each infinite sample skips its step and halves the scale"
    own = found["own_loop"]
    assert own["parts"] == 2 and own["table"] == [-600, 0, 0, 0, -600, -600, 0, 0, 0, -600]
    assert own["metric"] == [400, 3] and own["calls"] == own["draws"] == 200
    assert found["own_error"] == [True, True], "the message, and the file that raised the error"
    assert found["after_error"] == 1
    assert "Parameter server 0 at " in found["server_error"]


@pytest.mark.long
@pytest.mark.parametrize("found", ["killed"], indirect=True)
def test_workers_killed_while_they_train_lose_and_repeat_no_step(found):
    assert found["kills"] == 10
    assert found["counts"] == [True, True]
    assert found["weight_error"] <= 10, "each kill may repeat the step in progress"
    assert found["evaluate"][0] == found["evaluate"][1]
    assert found["predict_error"] < 1e-6
    assert found["without_one"] == 400


@pytest.mark.long
def test_coordinator_and_servers_killed_in_the_middle_go_on_from_the_backup(forked, tmp_path):
    run(forked, "resumed", tmp_path, code=-9)
    found = run(forked, "resumed", tmp_path)
    assert found["epochs"] == [0, 1, 2]
    assert found["counts"] == [600, -600], "weights are restored, and no step is missing"
    assert found["counted"] == 200
    assert 200 < found["steps"] < 600 - 200, "the steps of the first epoch were not repeated"


def test_launcher_restarts_a_worker_alone_and_all_after_a_parameter_server(launch_forks):
    killer = PROGRAM.parent / "server_killer.py"
    process = launch_forks("--workers", 1, "--parameter-servers", 1, "--restarts", 1, killer)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "another worker True the same server True" in out
    assert "[launch] worker-0 was killed by SIGKILL: restarting it" in err
    assert "[launch] ps-0 failed first: it was killed by SIGKILL" in err
    assert "restarting all processes in 1 s, restart 1 of 1" in err


@pytest.mark.long
@pytest.mark.parametrize("found", ["watched"], indirect=True)
def test_callbacks_that_read_float16_and_custom_steps_work_on_workers(found):
    assert found["report"] == [30, True], "the steps of two epochs, and the page exists"
    assert found["csv"] == 3, "a header and two epochs"
    assert {"batch_loss", "epoch_loss", "epoch_accuracy", "epoch_learning_rate"} <= set(found["board"])
    assert any(tag.endswith("kernel/histogram") for tag in found["board"])
    assert not found["anomaly_where_none_is"]
    gradients, finite, warnings = found["anomaly"]
    assert gradients and finite and len(warnings) == 1
    assert "The gradients of these variables are not finite" in warnings[0]
    assert "Batch: " not in warnings[0], "only the worker has the samples"
    assert found["float16"] == [400, -400, "float16", 2.0**15], "every step applied once, none skipped"
    assert found["custom_step"] == {"sum_under_another_name": [400], "last": [1]}, (
        "over the epoch, and of the last step"
    )
    assert "batch_last" in found["own_board"] and "written_by_nobody" not in found["own_board"]
    assert found["hangs"].startswith("Parameter server 0 at ")
    assert "has not answered for 4 s" in found["hangs"]
    assert found["after_hanging"] == [1], "a server that continues is used again"
