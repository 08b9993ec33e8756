"""The order of samples, and restoring a position: the same batches again, for every kind of input."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import mirrored, next_batch, source_of

from unisono.trainer.inputs.sources.dataset_source import DatasetSource, Elements

ROWS, BATCH = 22, 4
X = np.arange(ROWS, dtype="float32")


def rows_of(source, steps=None):
    """The samples of the next `steps` batches (or of the rest of the epoch), by batch."""
    found = []
    while steps is None or len(found) < steps:
        batch = next_batch(source)
        if batch is None:
            break
        found.append(tf.nest.flatten(batch)[0].numpy().tolist())
    return found


def joined(batches):
    return list(itertools.chain.from_iterable(batches))


def epoch_of(source, epoch):
    source.begin_epoch(epoch)
    return rows_of(source)


class Batches(keras.utils.PyDataset):
    """Changes its data at the end of every epoch, as custom datasets do."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.shift = 0

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return (X[index * BATCH : (index + 1) * BATCH] + 100 * self.shift,)

    def on_epoch_end(self):
        self.shift += 1


class Shuffled:
    """An iterable with its own random order for every pass, like a torch DataLoader."""

    def __init__(self):
        self.random = np.random.default_rng(5)

    def __iter__(self):
        order = self.random.permutation(ROWS)
        return ((X[order[i : i + BATCH]],) for i in range(0, ROWS, BATCH))


def dataset(seed=3):
    return tf.data.Dataset.from_tensor_slices(X).shuffle(ROWS, seed=seed).batch(BATCH)


def stateful(dataset):
    return dataset.map(lambda x: tf.numpy_function(lambda v: v, [x], tf.float32)).map(
        lambda x: tf.ensure_shape(x, [None])
    )


def distributed(steps):
    strategy = mirrored(2)
    data = strategy.experimental_distribute_dataset(dataset().map(lambda x: x + 1))
    return source_of(data, steps_per_epoch=steps, strategy=strategy)


def read(make, endless=False, **options):
    """A function of `steps_per_epoch` that opens a new input."""
    return lambda steps: source_of(make(), steps_per_epoch=steps or (6 if endless else None), **options)


# How each kind resumes, and the input.
KINDS = {
    "arrays": ("index", read(lambda: X, batch_size=BATCH, shuffle=True, seed=9)),
    "arrays, by batch": ("index", read(lambda: X, batch_size=BATCH, shuffle="batch", seed=9)),
    "streamed": ("index", read(lambda: X, batch_size=BATCH, shuffle=True, seed=9, resident_bytes=0)),
    "PyDataset": ("index", read(Batches, shuffle=True, seed=9)),
    "dataset": ("iterator", read(dataset)),
    "endless dataset": ("iterator", read(lambda: dataset().repeat(), endless=True)),
    "distributed dataset": ("iterator", distributed),
    "dataset with Python inside": ("skip", read(lambda: stateful(dataset()))),
    "iterable": ("skip", read(Shuffled)),
    "generator": ("skip", read(lambda: ((X + n,) for n in range(100)), endless=True)),
}


@pytest.mark.parametrize("steps", [None, 4])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.short(
    but=["distributed dataset-None", "distributed dataset-4", "dataset with Python inside-None"]
)
def test_restored_source_goes_on_with_the_same_batches(kind, steps):
    how, make = KINDS[kind]
    straight = make(steps)
    assert straight.resume_by == how
    expected = [epoch_of(straight, epoch) for epoch in range(4)]
    straight.close()
    for epoch, step in ((0, 3), (2, 1), (1, len(expected[1]))):
        first = make(steps)
        for past in range(epoch):
            epoch_of(first, past)
        first.begin_epoch(epoch)
        rows_of(first, step)
        position = first.state()
        first.close()
        second = make(steps)
        second.restore(position)
        assert rows_of(second) == expected[epoch][step:]
        assert epoch_of(second, epoch + 1) == expected[epoch + 1]
        second.close()


def test_epoch_of_all_batches_that_data_says_to_have_is_followed_by_a_new_pass():
    class Sized(Shuffled):
        def __len__(self):
            return 6

    data = tf.data.Dataset.from_tensor_slices(X).batch(BATCH)
    for source in (source_of(Sized(), steps_per_epoch=6), DatasetSource(Elements(data, per_worker=True), 6)):
        for epoch in range(3):
            assert sorted(joined(epoch_of(source, epoch))) == X.tolist()
        source.close()


def test_shuffle_is_a_function_of_seed_and_epoch_alone():
    orders = {}
    for seed in (1, 2):
        for batch_size in (4, 11):
            source = source_of(X, batch_size=batch_size, shuffle=True, seed=seed)
            orders[seed, batch_size] = [joined(epoch_of(source, epoch)) for epoch in (0, 1)]
            assert joined(epoch_of(source, 0)) == orders[seed, batch_size][0]
    assert orders[1, 4] == orders[1, 11]
    assert orders[1, 4][0] != orders[1, 4][1]
    assert orders[1, 4] != orders[2, 4]
    assert all(sorted(order) == X.tolist() for pair in orders.values() for order in pair)


def test_shuffle_by_batch_keeps_samples_in_their_batches():
    source = source_of(X, batch_size=BATCH, shuffle="batch", seed=1)
    batches = epoch_of(source, 0)
    assert [sorted(batch) for batch in batches] == [X[i : i + BATCH].tolist() for i in range(0, ROWS, BATCH)]
    assert joined(batches) != X.tolist()


def test_batch_size_follows_from_steps_as_in_keras():
    assert source_of(X, steps_per_epoch=5).batch_size == 5
    assert source_of(X).batch_size == 32


def test_restore_rejects_other_data_or_batches():
    position = source_of(X, batch_size=4).state()
    with pytest.raises(ValueError, match=r"4 samples in each batch, but this one has 5"):
        source_of(X, batch_size=5).restore(position)
    with pytest.raises(ValueError, match=r"22 samples in each epoch, but this one has 20"):
        source_of(X[:20], batch_size=4).restore(position)
    with pytest.raises(ValueError, match=r"has only 2 batches"):
        source_of(iter([(X,), (X,)])).restore({"epoch": 1, "step": 0, "passes": 0, "taken": 5})


def test_restore_from_a_damaged_iterator_names_the_cause():
    source = source_of(dataset())
    source.begin_epoch(0)
    rows_of(source, 2)
    position = source.state()
    with pytest.raises(ValueError, match="does not fit x"):
        source_of(dataset()).restore({**position, "iterator": position["iterator"][:-7]})


def test_generator_loses_no_batch_between_two_fits():
    stream = ((X[:1] + n,) for n in range(7))
    seen = []
    for steps in (1, 2, 3):
        source = source_of(stream, steps_per_epoch=steps)
        seen += epoch_of(source, 0)
        source.close()
    assert seen == [[0], [1], [2], [3], [4], [5]]


@pytest.mark.parametrize("processes", [False, True])
def test_pydataset_hooks_are_called_around_every_epoch(processes):
    data = Batches(workers=2, use_multiprocessing=processes)
    source = source_of(data)
    first, second = epoch_of(source, 0), epoch_of(source, 1)
    assert data.shift == 2
    assert joined(first) == X.tolist()
    assert joined(second) == (X + 100).tolist()
    source.close()
