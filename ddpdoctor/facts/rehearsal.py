"""`rehearsal`: what the ranks of a rehearsed script did, and where they differ."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "CodePlace",
    "Difference",
    "DifferenceKind",
    "ObservationKind",
    "RankEnd",
    "Rehearsal",
    "RehearsalObservation",
    "RehearsedCall",
    "RehearsedRank",
    "Side",
    "UnreachedCode",
]


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A line of the user's code (from 1), with its function."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}"


class RankEnd(str, Enum):
    """How a rank ended."""

    FINISHED = "finished"
    """The script came to its own end."""
    ENDED = "ended"
    """The rehearsal ended it after enough steps."""
    EXITED = "exited"
    """sys.exit, or an exit code without an exception."""
    RAISED = "raised"
    KILLED = "killed"
    """A signal, or os._exit."""
    WAITING = "waiting"
    """It was in a call when the rehearsal ended."""
    RUNNING = "running"
    """It was in its own code when the rehearsal ended."""
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True)
class RehearsedCall:
    """One call of one rank. `number` counts the calls of its group, from 1; `group` are the ranks of its group.

    `tensors` is `[4] float32`, "" without one; `root` and `peer` are global ranks. `places` are the user's frames, the
    innermost first.
    """

    operation: str
    number: int
    group: tuple[int, ...] = ()
    tensors: str = ""
    dtypes: str = ""
    reduction: str | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    step: int = 0
    places: tuple[CodePlace, ...] = ()

    @property
    def place(self) -> CodePlace | None:
        return self.places[0] if self.places else None

    def __str__(self) -> str:
        return f"{self.operation}({self.tensors})" if self.tensors else self.operation


@dataclass(frozen=True, slots=True)
class RehearsedRank:
    """One rank. `place` is where it was or failed; `node` and `local_rank` are None if the launch line does not give them.

    `error` and `text` are the type and message of the exception that ended it; `call` is the one in which it waits.
    """

    rank: int
    node: int | None = None
    local_rank: int | None = None
    end: RankEnd = RankEnd.RUNNING
    steps: int = 0
    calls: int = 0
    exit_code: int | None = None
    error: str | None = None
    text: str = ""
    places: tuple[CodePlace, ...] = ()
    call: RehearsedCall | None = None

    @property
    def place(self) -> CodePlace | None:
        return self.places[0] if self.places else None


class DifferenceKind(str, Enum):
    """How the calls of ranks differ."""

    EXTRA = "extra"
    """Some ranks call a collective in a branch that the others do not enter."""
    LEFT = "left"
    """A rank left before a collective that the others call."""
    DATA = "data"
    """A condition on data decides about a collective."""
    ORDER = "order"
    """The same group, different operations."""
    UNEVEN = "uneven"
    """A rank left a loop while others continue it."""
    GROUPS = "groups"
    """new_group with other ranks, or on some ranks only."""
    SHAPE = "shape"
    DTYPE = "dtype"
    ROOT = "root"
    REDUCTION = "reduction"
    LENGTH = "length"
    """Lists of other lengths."""
    MODELS = "models"
    """DDP models with other parameters."""
    SEND_ORDER = "send_order"
    """Two ranks both send, or both receive, first."""
    UNMATCHED = "unmatched"
    """A send or receive whose peer never makes its counterpart."""
    BUFFER = "buffer"
    """A receive buffer of another size or dtype than what is sent."""
    CYCLE = "cycle"
    """Ranks wait for each other in different groups."""
    ABSENT = "absent"
    """A rank is not in the call in which the others wait, and makes no progress."""


@dataclass(frozen=True, slots=True)
class Side:
    """What some ranks did: a call, or none (`state` says what instead: "left", "in time.sleep")."""

    ranks: tuple[int, ...]
    call: RehearsedCall | None = None
    state: str = ""
    places: tuple[CodePlace, ...] = ()

    @property
    def place(self) -> CodePlace | None:
        own = self.call.place if self.call is not None else None
        return own or (self.places[0] if self.places else None)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first point where ranks part. The first side is the one to look at: the minority, or the one that left."""

    kind: DifferenceKind
    number: int
    group: tuple[int, ...]
    sides: tuple[Side, ...]
    condition: CodePlace | None = None
    is_certain: bool = True


class ObservationKind(str, Enum):
    """What was seen besides differing calls."""

    SAME_DEVICE = "same_device"
    """Ranks of one node use one GPU. `other` is its name."""
    BAD_ORDINAL = "bad_ordinal"
    """A GPU that the node does not have."""
    CPU_TENSOR = "cpu_tensor"
    """A CPU tensor in a collective of nccl."""
    TWO_DEVICES = "two_devices"
    """Tensors on two devices in one operation."""
    DEVICE_IDS = "device_ids"
    """DDP's device_ids are not the device of its module."""
    WORLD_OF_ONE = "world_of_one"
    """Every process joined a world of its own."""
    SAME_RANK = "same_rank"
    """Processes joined with the same rank."""
    JOINS_DIFFER = "joins_differ"
    """The ranks join at different addresses, or in worlds of different sizes."""
    RANK_OUTSIDE = "rank_outside"
    """A rank that is not in the world."""
    WORLD_NOT_FILLED = "world_not_filled"
    """Fewer processes join than the world size that they pass."""
    BAD_FORK = "bad_fork"
    """CUDA in a process that was forked after CUDA was used."""
    FOLDERS_DIFFER = "folders_differ"
    """Each rank makes its own folder for the same thing."""
    ORDERS_DIFFER = "orders_differ"
    """A sampler that divides data between the ranks has another seed on each rank."""
    IDLE_OPTIMIZER = "idle_optimizer"
    """No parameter of an optimizer ever has a gradient."""
    DATA_PARALLEL = "data_parallel"
    SAME_SHARD = "same_shard"
    """Samplers of several ranks that take one shard."""
    SECOND_INIT = "second_init"
    NO_DESTROY = "no_destroy"
    EPOCH_NOT_SET = "epoch_not_set"
    SAME_DATA = "same_data"
    """All ranks read the same samples."""
    PARAMETERS_DIFFER = "parameters_differ"
    """Parameters differ after an optimizer step."""
    BYPASSED = "bypassed"
    """A DDP model's own module is called in training."""
    UNSYNCHRONIZED = "unsynchronized"
    """An optimizer step with gradients that no backward pass has synchronized."""
    SPLIT_DIFFERS = "split_differs"
    """random_split gives a different split on each rank."""
    METRIC_DIFFERS = "metric_differs"
    """A scheduler is fed with another metric on each rank."""
    NOT_WRAPPED = "not_wrapped"
    """Parameters differ after an optimizer step, and no gradient was ever synchronized."""
    EARLY_READ = "early_read"
    """A tensor of an asynchronous collective was used before the wait."""
    NOT_WAITED = "not_waited"
    """A send that nobody waited for."""
    ALIASED = "aliased"
    """One tensor several times in an output list."""
    CHECKPOINT_RACE = "checkpoint_race"
    FILE_RACE = "file_race"
    READ_BEFORE_WRITTEN = "read_before_written"
    REFUSED = "refused"
    """A call that the backend of the script refuses."""
    UNEVEN_LOADERS = "uneven_loaders"
    UNUSED_PARAMETERS = "unused_parameters"
    """Parameters of a DDP model that get no gradient. `other` is where the exception was raised."""
    FROZEN_AFTER_WRAP = "frozen_after_wrap"
    """requires_grad was changed after DDP was constructed."""
    TRACKERS = "trackers"
    """Every rank starts a run of an experiment tracker."""
    SAME_DRAWS = "same_draws"
    """Ranks with different samples draw the same random numbers. `other` is where they are drawn."""
    LONG_SCHEDULE = "long_schedule"
    """A schedule counts the steps of the whole data set."""
    SPAWN_UNDER_LAUNCHER = "spawn_under_launcher"
    """Every process that the launcher starts spawns ranks itself."""
    FOLDER_RACE = "folder_race"
    """One rank makes a folder, and another one writes into it without a barrier between. `other` is where it is made."""
    REDUCED_LOSS = "reduced_loss"
    """A loss was reduced in place before its backward pass."""
    LOCAL_DECISION = "local_decision"
    """A condition on a value that differs between ranks ends or skips collectives. `other` is one of these."""
    DIVIDED_TWICE = "divided_twice"
    """Averaged gradients, or the loss of a DDP model, are divided by the number of ranks."""
    UNSCALED_EARLY = "unscaled_early"
    """Gradients are unscaled before they are reduced. `other` is where they are reduced."""
    CLIPPED_SHARDS = "clipped_shards"
    """clip_grad_norm_ of torch.nn.utils on the shards of FSDP."""
    UNREGISTERED = "unregistered"
    """Parameters of a DDP model that are trained and that DDP does not know: added or unfrozen after its construction."""
    REMOVED_EARLY = "removed_early"
    """A rank removes a file that another one reads, without a collective between. `other` is where it is read."""
    RANK_BRANCH = "rank_branch"
    """A branch on the rank that did not run calls a function with collectives. `other` is the collective."""
    OUTSIDER = "outsider"
    """A rank calls a collective of a group to which it does not belong: nothing happens."""
    NEVER_BROADCAST = "never_broadcast"
    """Gradients are averaged by hand, and the initial parameters differ."""
    GRADIENTS_SUMMED = "gradients_summed"
    """Gradients of mean losses are summed over the ranks and not divided. `other` is the optimizer step."""
    GRADIENT_SCALE = "gradient_scale"
    """The optimizer uses a multiple of the average gradient. `other` is the optimizer step."""
    DIVIDED_BY_SUM = "divided_by_sum"
    """A loss is divided by a sum over the ranks, and its gradient is averaged. `other` is the backward pass."""
    REDUCED_AGAIN = "reduced_again"
    """A sum over the ranks that something was added to is summed again. `other` is the addition."""
    RATIO_MEAN = "ratio_mean"
    """Ratios with different divisors are summed or averaged over the ranks. `other` is the collective."""
    PADDING_COUNTED = "padding_counted"
    """A sum over padded shards is divided by the size of the data set. `other` is the loader."""
    GATHERED_CUT = "gathered_cut"
    """Gathered tensors without a gradient are used in a loss. `other` is that use."""
    EVALUATED_APART = "evaluated_apart"
    """The ranks evaluate models that differ."""
    NOTHING_LOADED = "nothing_loaded"
    """load_state_dict with strict=False, and no key fits. `other` is where the file was saved."""
    NOT_REPLICATED = "not_replicated"
    """A DTensor is made as Replicate() from values that differ."""
    RATES_DIFFER = "rates_differ"
    """The learning rates of one optimizer differ between ranks."""
    SHARDS_SCALED = "shards_scaled"
    """Each rank scales its shards of the gradients by another factor."""
    MOVED = "moved"
    """Parameters are moved to another type of device after DDP was constructed."""
    GROUP_DATA_DIFFERS = "group_data_differs"
    """Ranks that hold parts of one model train on different samples. `other` is the loader."""
    WORKER_COPIES = "worker_copies"
    """Every worker of a loader yields the same samples."""
    BATCHES_REPEATED = "batches_repeated"
    """The batches of the first epoch are used again. `other` is where the loader is iterated."""
    NODE_FILE = "node_file"
    """A file in a folder of one node that ranks of another node read. `other` is where it is read."""
    LOADED_ON_OTHER_GPU = "loaded_on_other_gpu"
    """A file with tensors of one GPU is loaded without map_location. `other` is where it was saved."""
    SET_ORDER = "set_order"
    """A loop over a set of texts calls collectives: its order differs between processes. `other` is the collective."""
    SAVED_PER_NODE = "saved_per_node"
    """One rank of each node saves to one path, which may be on a shared file system."""
    SHARD_OVER_WHOLE = "shard_over_whole"
    """A sum over the samples of one rank is divided by the size of the whole data set."""
    SUM_OF_WHOLE = "sum_of_whole"
    """A sum over the ranks, all of which have read the whole data set, is divided by its size. `other` is where it is shown."""
    SUM_NOT_DIVIDED = "sum_not_divided"
    """A sum over the ranks is divided by what one rank has read. `other` is where it is shown."""
    ONE_SHARD = "one_shard"
    """One rank shows, or judges by, the result of its own part of an evaluation. `other` is where the loader is read."""
    ROWS_OUT_OF_ORDER = "rows_out_of_order"
    """Gathered rows, one rank's after the other's, meet rows in the order of the data set. `other` is the sampler."""
    DIVIDED_AGAIN = "divided_again"
    """A sampler divides a data set that each rank has divided already. `other` is where it was divided."""
    PART_AS_SUM = "part_as_sum"
    """A rank's part of a DTensor's sum is used as the sum. `other` is where it is used."""
    BUFFERS_LOST = "buffers_lost"
    """Buffers of the user's own module that each rank updates in its own way. `other` is the forward pass."""
    NEVER_FILLED = "never_filled"
    """Memory that was allocated without values is used. `other` is the use."""
    LATE_NO_SYNC = "late_no_sync"
    """no_sync around the backward pass only: gradients are synchronized. `other` is the backward pass."""
    CALLS_IN_JOIN = "calls_in_join"
    """Inside of join, the ranks make different numbers of a collective. `other` is the join."""
    STATE_ON_SOME = "state_on_some"
    """Some ranks load the state of an optimizer, and then the ranks differ. `other` is the first step that differs."""
    STREAMS_MERGED = "streams_merged"
    """Random numbers that differed between ranks are the same from a line on."""
    SAME_WORKER_DRAWS = "same_worker_draws"
    """The workers of all ranks draw the same random numbers. `other` is the loader."""
    SWALLOWED = "swallowed"
    """The script caught the exception that ends it."""


@dataclass(frozen=True, slots=True)
class RehearsalObservation:
    """One thing that was seen on some ranks. `values` are what the kind says, as texts."""

    kind: ObservationKind
    ranks: tuple[int, ...] = ()
    places: tuple[CodePlace, ...] = ()
    other: CodePlace | None = None
    values: dict[str, str] = field(default_factory=dict)

    @property
    def place(self) -> CodePlace | None:
        return self.places[0] if self.places else None


@dataclass(frozen=True, slots=True)
class UnreachedCode:
    """Code that concerns other ranks and that no rank came to. `what` is the name of the call, or the branch."""

    place: CodePlace
    what: str
    is_branch: bool = False


@dataclass(frozen=True, slots=True)
class Rehearsal(Section):
    """One rehearsal. `asked` is the world of the launch line where it was made smaller, else None.

    `difference` ended it, None if the ranks agreed. `standins` are what was replaced, `not_reached` what the script did
    not come to, `obstacle` what the rehearsal lacks, with its
    reason and place. `isolation` says which of network and files were cut off.
    """

    ranks: tuple[RehearsedRank, ...] = ()
    nodes: int = 1
    asked: int | None = None
    backend: str = ""
    torch: str = ""
    seconds: float = 0.0
    difference: Difference | None = None
    observations: tuple[RehearsalObservation, ...] = ()
    standins: tuple[str, ...] = ()
    not_reached: tuple[str, ...] = ()
    unreached: tuple[UnreachedCode, ...] = ()
    """Lines with collectives, and branches on the rank, that no rank came to."""
    files: tuple[str, ...] = ()
    """The user's files of which lines ran."""
    compared: tuple[str, ...] = ()
    """What was compared between the ranks, in words."""
    not_compared: tuple[str, ...] = ()
    """What of the training could not be compared, with reasons."""
    empty_reason: str = ""
    """Why nothing could be compared at all, else empty."""
    obstacle: str | None = None
    obstacle_reason: str = "needs a GPU"
    obstacle_place: CodePlace | None = None
    isolation: dict[str, str] = field(default_factory=dict)
    others: tuple[RehearsedRank, ...] = ()
    """Processes that raised without being a rank: what starts the ranks, or a rank before it joined."""
    is_out_of_time: bool = False
    folder: str = ""
    """The working folder: files in it are named relative to it."""
    gaps: tuple[Gap, ...] = ()

    @property
    def steps(self) -> int:
        """The fewest steps of any rank."""
        return min((rank.steps for rank in self.ranks), default=0)
