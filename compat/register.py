"""The register of changes to Keras and TensorFlow: functions that are replaced, and names that are added.

`REPLACED` while a step of ours is computed, in the threads that compute it; `WRAPPED` and `ADDED` for good, when they are
first needed. `tensorflow_graphs/gradients.py` registers a function with TensorFlow besides: the one that tapes call.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from .upstream_places import PART_OF, find_owner
from .versions import describe_unsupported

WRITES_OF_PLACES = ("scatter_nd_add", "scatter_nd_sub", "scatter_nd_update", "batch_scatter_update")
SERVERS, GPUS, ACCUMULATING = "Training on parameter servers", "Training on GPUs", "accumulating"


@dataclasses.dataclass(eq=False)
class Changed:
    """A changed name: the module or class that holds it, as in `signatures.txt`, the name there, and why."""

    place: str
    name: str
    reason: str
    only_for: tuple[str, ...] = ()  # the circumstances without which the original stays; (): in every step
    make: Callable[[Any], Any] | None = None  # makes a replacement of an original
    made: tuple[Any, Any] = (None, None)  # the last original and its replacement

    @functools.cached_property
    def owner(self) -> Any:
        """The module or class."""
        return find_owner(self.place)

    @property
    def part(self) -> str:
        """What cannot work without it."""
        root = PART_OF.get(self.place.partition(".")[0], "Unisono")
        return next((each for each in self.only_for if each != ACCUMULATING), root)

    def find(self) -> Any:
        """Return what has the name; raise the error that says what cannot work without it."""
        if not hasattr(self.owner, self.name):
            raise ImportError(describe_unsupported(self.key, self.part))
        return vars(self.owner).get(self.name) or getattr(self.owner, self.name)

    @property
    def key(self) -> str:
        """Its short name: `Loss.__call__`, `random.uniform`."""
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}"

    def install(self) -> None:
        """Put the replacement in the place of the original."""
        assert self.make is not None  # narrows the type
        found = self.find()
        # A patch that begins inside a step and ends outside restores our replacement.
        original = getattr(getattr(found, "fget", found), "__unisono_original__", found)
        if self.made[0] is not original:
            function = getattr(original, "fget", original)
            replacement: Any = functools.wraps(function)(self.make(function))
            replacement.__unisono_original__ = original
            self.made = original, property(replacement) if isinstance(original, property) else replacement
        setattr(self.owner, self.name, self.made[1])

    def restore(self) -> None:
        """Put the original back, unless other code has wrapped the replacement."""
        if vars(self.owner)[self.name] is self.made[1]:
            setattr(self.owner, self.name, self.made[0])


REPLACED = (
    Changed(
        "keras:losses.Loss",
        "__call__",
        "the divisor is recorded, for optimizers that accumulate and for micro-batches",
        only_for=(ACCUMULATING,),
    ),
    Changed(
        "keras:layers.Layer",
        "_maybe_build",
        "a layer that a traced step calls first is built outside its graph",
    ),
    Changed(
        "tensorflow:GradientTape",
        "gradient",
        "the gradient of a variable that is split over servers is one gradient",
        only_for=(SERVERS,),
    ),
    Changed(
        "BaseOptimizer",
        "apply",
        "an optimizer outside the model's attributes reduces the replicas' gradients like the others",
    ),
    Changed("keras:layers.Layer", "add_loss", "the ids of losses are forgotten when a step ends"),
    Changed(
        "keras:layers.Layer",
        "_get_regularization_losses",
        "regularizers get Keras variables, where Keras would pass what is inside of them to a scope that collects writes",
    ),
    Changed("BackendVariable", "handle", "a tape accepts a tensor as the value of a variable"),
    Changed("SeedGenerator", "next", "the number of the replica is mixed into the seed of a random layer"),
    Changed(
        "random_ops_util",
        "_get_key_counter",
        "a GPU computes its own random seeds, and the host does not wait for it",
        only_for=(GPUS,),
    ),
    Changed(
        "CachingVariable",
        "__getitem__",
        "a slice of a variable on a parameter server can be assigned, as elsewhere",
        only_for=(SERVERS,),
    ),
    Changed(
        "backend_numpy",
        "take",
        "embedding rows are looked up on the parameter server that holds them",
        only_for=(SERVERS, GPUS),
    ),
    Changed(
        "backend_nn",
        "_compute_moments_sync",
        "a difference of squares loses digits, and replicas would differ from a single device",
    ),
    Changed("Function", "__call__", "writes inside a function are writes of the step"),
    Changed("cond_module", "cond", "writes inside a branch are writes of the step"),
    Changed("while_module", "while_loop", "writes inside a loop are writes of the step"),
    Changed(
        "FuncGraph",
        "_create_op_internal",
        "sizes are computed on the host, which does not wait for a GPU; those of diagonals are right",
    ),
    Changed("tensorflow:RegisterGradient", "__call__", "the gradient of one graph is freed with that graph"),
    Changed(
        "segment_id_ops",
        "row_splits_to_segment_ids",
        "the samples of ragged values are found on the replica that has them",
    ),
    Changed(
        "embedding_ops",
        "embedding_lookup_sparse_impl",
        "entries of sparse inputs are looked up on the replica that has them",
    ),
)

WRAPPED = (
    Changed(
        "CollectiveAllReduceExtended",
        "_initialize_strategy",
        "workers check TF_CONFIG, join within a stated time and create the same variables (`clusters.py`)",
    ),
    Changed(
        "tensorflow:distribute.experimental.ParameterServerStrategy",
        "run",
        "sharded variables are looked up and differentiated like whole ones",
    ),
    Changed(
        "BackendVariable",
        "_initialize",
        "a weight of a strategy that shards weights never has its full size on a device; of copies that are parts of a "
        "sum, the first one has the initial value",
    ),
    Changed(
        "BackendVariable",
        "_direct_assign",
        "replicas that share a variable, and asynchronous workers, add to the counts of a metric, and the host writes "
        "a count into one copy; from the first model or optimizer on that is made under a strategy",
    ),
    Changed(
        "TFOptimizer",
        "add_variable_from_reference",
        "an optimizer from outside a strategy's scope is built in it, instead of raising an error",
    ),
    Changed(
        "backend_with_remat",
        "remat",
        "`keras.RematScope` in a graph, where TensorFlow's version takes no keyword arguments",
    ),
    Changed(
        "backend_nn",
        "dot_product_attention",
        "attention in blocks in our steps; Keras' own elsewhere, where `flash_attention=True` would be an error on "
        "TensorFlow, also where a model that is trained with us is built or exported",
    ),
    Changed(
        "FuncRegistry",
        "__call__",
        "Python functions of a pipeline draw random numbers, which a backup must know; from its first backup on",
    ),
    Changed(
        "TensorFlowTrainer", "fit", "tools that patch `keras.Model.fit` reach the fit of a model of ours"
    ),
    Changed("TensorFlowTrainer", "evaluate", "the same"),
    Changed("TensorFlowTrainer", "predict", "the same"),
    Changed("TensorFlowTrainer", "make_predict_function", "a plain model rejects weights that are divided"),
    Changed("TensorFlowTrainer", "_assert_compile_called", "the same"),
    Changed(
        "backend_distribution",
        "list_devices",
        "in one of several workers it names the devices of all, after `keras.distribution.initialize`",
    ),
    Changed("cloning", "_clone_sequential_model", "the clone of a model of ours is a model of ours"),
)

ADDED = (
    Changed("backend_distribution", "initialize", "`keras.distribution.initialize` calls it"),
    Changed("backend_distribution", "distribute_tensor", "layers whose outputs have a layout call it"),
    *(
        Changed(
            "DistributedVariable", name, "TensorFlow's variables with a copy for each replica do not have it"
        )
        for name in WRITES_OF_PLACES
    ),
)
