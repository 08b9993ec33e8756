"""Inputs of which every worker reads its own samples are an error on all workers, before the first step on them."""

import re

import pytest

pytestmark = pytest.mark.process

PARTS = r"(kept|moved): (\[.*?\]): (.*)"  # whether the weights moved, the warnings, how the call ended
OTHER = "ValueError: The input must yield the same global batches on every worker. `x` yields different samples on worker 1"
LENGTH = OTHER.partition("`x`")[0] + "Batches so far: "
SERVICE = "ValueError: `x` reads a part of the elements of a tf.data service"
REJECTED = {
    "own arrays": OTHER,
    "one number of a large array": OTHER,
    "own dataset": OTHER,
    "own generator": OTHER,
    "own PyDataset": OTHER,
    "own PyDataset in threads": OTHER,
    "own shuffle of a PyDataset": OTHER,
    "own length of a generator": LENGTH + "4 on worker 0, 3 on worker 1.",
    "own length of an evaluation": LENGTH + "4",
    "own length of a known dataset": LENGTH,
    "another call": "ValueError: worker 0 calls `train_on_batch`, and worker 1 `test_on_batch`: every worker must",
    "own length of a PyDataset": "ValueError: ",
    "own dataset of Python": OTHER,
    "auto-shard off": OTHER,
    "other kind": "ValueError: `x` is a tf.data.Dataset on worker 0 and a PyDataset on worker 1",
    "other batch size": OTHER,
    "other splits": OTHER,
    "other order": "ValueError: the order of the training samples must be the same on all workers",
    "class weights": "ValueError: `class_weight` of training must be the same on all workers",
    "own seed": OTHER,
    "evaluate": OTHER,
    "predict": OTHER,
    "evaluate arrays": OTHER,
    "train_on_batch": OTHER,
    "everything drawn": OTHER,
    "dynamic sharding": SERVICE,
    "one job": SERVICE,
}
LATER = dict.fromkeys(
    ("second epoch", "validation", "last batch", "last of the given steps", "own samples with one target"),
    OTHER,
) | {
    "own length of a later group": LENGTH + "20 on worker 0, 24 on worker 1.",
    "own length of a validation": LENGTH + "4",
}  # earlier steps were on the same samples
TRAINED = {  # the warning, if there is one
    "paths": "[]",
    "constants": "differs between",
    "augmented": "draws different random numbers",
    "augmented, and a rare target": "draws different random numbers",
    "same dataset": "[]",
    "same of unknown length": "[]",
    "same of several sizes": "[]",
    "one pass over two epochs": "[]",
    "same generator": "[]",
    "own samples by a function": "[]",
    "parallel epochs": "differs between",  # each worker registers its dataset
    "service by a function": "[]",
}


def test_different_samples_are_an_error_on_both_workers(start_workers):
    workers = start_workers("own_samples")
    workers.succeed()
    for index in range(2):
        found = dict(re.findall(r"^([^:\n]+): (.*)$", workers.printed(index), re.MULTILINE))
        for cases, moved in ((REJECTED, "kept"), (LATER, "moved")):
            for name, said in cases.items():
                state, _, ended = re.fullmatch(PARTS, found[name]).groups()
                assert state == moved and ended.startswith(said), (name, found[name])
        for name, warning in TRAINED.items():
            state, told, ended = re.fullmatch(PARTS, found[name]).groups()
            assert (state, ended) == ("moved", "went through") and warning in told, (name, found[name])
        fix = ["def make_dataset(context):", "return dataset.rebatch(context.get_per_replica_batch_size(4))"]
        assert [line.strip() for line in found["own dataset"].split("|")[2:4]] == fix
    losses = [workers.printed(index).partition("losses: ")[2] for index in range(2)]
    assert losses[0] and losses[0] == losses[1]


@pytest.mark.parametrize("case", ["unknown", "given", "eager", "predict"])
@pytest.mark.short("unknown", "predict")
def test_data_that_ends_earlier_on_one_worker_is_an_error_on_all_at_once(case, start_workers):
    workers = start_workers("uneven_ends", count=3, arguments=[case])
    for number, worker in enumerate(workers.wait()):
        assert worker.code == 1, worker.err[-2000:]
        found = re.search(
            r"^ValueError: the input of worker 1 ended after 3 batches, and worker (\d) has read 4\. Pass all "
            r"workers the same data, or a function of tf\.distribute\.InputContext",
            worker.err,
            re.MULTILINE,
        )
        assert found, (number, worker.err[-2000:])
        assert found[1] in "02"
