"""What an execution records: the mistakes, the communication in order, and the state that paths fork and join."""

from __future__ import annotations

import ast
from dataclasses import field, replace
from enum import Enum, auto

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.histories.values import NO_ORIGINS, Condition, DiffersBy, Traced, joined
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import Function

__all__ = ["Communication", "FileUse", "Frame", "Mistake", "MistakeKind", "Obligation", "State", "Use"]


class MistakeKind(Enum):
    """What the tables of `legal_orders` lack, by the word of the rule that reports it."""

    DECIDED_ALONE = auto()
    UNEVEN_LOOP = auto()
    RAGGED_LOOP = auto()
    RAGGED_SHAPES = auto()
    ORDER_DIFFERS = auto()
    HASH_OF_TEXT = auto()
    SAMPLER_SEED_DIFFERS = auto()
    SYNCBN_AFTER_WRAP = auto()
    SCHEDULER_LOCAL = auto()
    READ_BEFORE_WRITTEN = auto()
    HIDDEN_ON_ONE_RANK = auto()
    GROUP_OF_OTHERS = auto()
    SET_ORDER = auto()
    KEYS_DIFFER = auto()
    SHARDED_ON_ONE_RANK = auto()
    GROUP_ON_ONE_RANK = auto()
    GROUPS_CROSSED = auto()
    AVERAGED_TWICE = auto()
    DIVIDED_BY_NODE = auto()
    LOSS_DIVIDED = auto()
    LOSS_DIVIDED_BY_SUM = auto()
    LOSS_REDUCED = auto()
    TOTAL_REDUCED_AGAIN = auto()
    GATHERED_WITHOUT_GRADIENT = auto()
    HANDLE_OVERWRITTEN = auto()
    UNSCALED_TOO_EARLY = auto()
    CLIPPED_SHARD = auto()
    SHARD_SCALED = auto()
    OLD_PARAMETERS = auto()
    CHANGED_AFTER_WRAP = auto()
    MOVED_AFTER_WRAP = auto()
    UNFROZEN_AFTER_WRAP = auto()
    LOADED_ON_ONE_RANK = auto()
    UPDATED_ON_ONE_RANK = auto()
    UNLIKE_START = auto()
    WRAPPER_BYPASSED = auto()
    FORWARD_BYPASSED = auto()
    BUFFERS_APART = auto()
    FORWARD_RANDOM = auto()
    TAIL_NOT_SYNCHRONIZED = auto()
    SAMPLER_UNUSED = auto()
    SAMPLER_OF_NODE = auto()
    SAMPLER_OF_TENSOR_PEERS = auto()
    STREAM_NOT_SPLIT_BY_RANK = auto()
    STREAM_NOT_SPLIT_BY_WORKER = auto()
    LOADER_CYCLED = auto()
    SPLIT_DIFFERS = auto()
    SAME_DRAWS = auto()
    SCHEDULE_TOO_LONG = auto()
    FOLDER_DIFFERS = auto()
    WRITTEN_PER_NODE = auto()
    NOT_ON_EVERY_NODE = auto()
    FOLDER_MISSING = auto()
    REMOVED_WHILE_READ = auto()
    ROOT_OUTSIDE_GROUP = auto()
    SPLITS_NOT_EXCHANGED = auto()
    LIST_ON_EVERY_RANK = auto()
    LIST_OF_NODE = auto()
    REPLICA_DIFFERS = auto()
    PART_OVER_WHOLE = auto()
    COUNTED_BY_EVERY_RANK = auto()
    SUM_AS_MEAN = auto()
    BEST_OF_ONE_RANK = auto()
    GROUP_RANK_AS_GLOBAL = auto()
    GLOBAL_RANK_AS_GROUP = auto()
    STATE_LOADED_ON_ONE_RANK = auto()
    STEPPED_ON_ONE_RANK = auto()
    CLIPPED_SCALED = auto()
    STEPPED_SCALED = auto()
    REDUCED_AGAIN = auto()
    GRADIENT_BYPASSES_DDP = auto()
    FORWARD_OUTSIDE_NO_SYNC = auto()
    NEVER_INITIALIZED = auto()
    FROZEN_WRAPPED = auto()
    FROZEN_IN_FLAT_PARAMETER = auto()
    COLLECTIVE_IN_JOIN = auto()
    RANDOM_STATE_COPIED = auto()
    WORKERS_SEEDED_ALIKE = auto()
    SAMPLER_DRAWS_ALIKE = auto()
    SPLIT_TWICE = auto()
    EPOCH_SET_TOO_LATE = auto()
    ONE_GPU_VISIBLE = auto()
    PORT_OF_PROCESS = auto()
    NAMES_OF_WRAPPER = auto()


@dataclass(frozen=True, slots=True)
class Mistake:
    """An edge that a table lacks: at which node of which file, and the earlier step that makes it one."""

    kind: MistakeKind
    module: Module
    node: ast.AST
    earlier: ast.AST | None = None
    subject: str = ""


@dataclass(frozen=True, slots=True)
class Communication:
    """One call in which other ranks must take part."""

    operation: str
    node: ast.AST
    module: Module
    group: object = None
    function: ast.AST | None = None


@dataclass(frozen=True, slots=True)
class Obligation:
    """What has to happen to a module before its next synchronized backward pass or forward pass."""

    kind: MistakeKind
    module: Module
    node: ast.AST
    on: str = "backward"


class Use(Enum):
    """What a process does with a file or folder."""

    WRITE = "write"
    READ = "read"
    CREATE = "create"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class FileUse:
    """One use of a path since the last barrier. `rank`: the only rank that makes it, None for all."""

    use: Use
    node: ast.AST
    rank: tuple[DiffersBy, object] | None
    before_barrier: bool = False


@dataclass(slots=True)
class Frame:
    """One call of a function: its names, and what it returned on each path."""

    number: int
    module: Module
    function: Function | ast.Lambda | ast.ClassDef | None
    outer: int | None
    returned: list[Traced] = field(default_factory=list)
    yielded: list[Traced] = field(default_factory=list)
    decided_by: list[Traced] = field(default_factory=list)
    outer_names: set[str] = field(default_factory=set)
    one_sided: list[tuple[bool, ast.expr, tuple[Communication, ...]]] = field(default_factory=list)
    exits: list[tuple[Traced, ast.expr, int]] = field(default_factory=list)


@dataclass(slots=True)
class State:
    """What one path knows: names by frame, present values by ref, random generators, files, obligations of modules."""

    names: dict[int, dict[str, Traced]] = field(default_factory=dict)
    heap: dict[int, Traced] = field(default_factory=dict)
    generators: dict[str, frozenset[DiffersBy]] = field(default_factory=dict)
    files: dict[object, tuple[FileUse, ...]] = field(default_factory=dict)
    obligations: dict[int, tuple[Obligation, ...]] = field(default_factory=dict)
    conditions: list[Condition] = field(default_factory=list)

    def fork(self) -> State:
        """A copy that another path changes."""
        names = {number: dict(values) for number, values in self.names.items()}
        copies = (dict(self.heap), dict(self.generators), dict(self.files), dict(self.obligations))
        return State(names, *copies, list(self.conditions))

    def settle_files(self) -> None:
        """All ranks have executed what came before."""
        for path, uses in self.files.items():
            self.files[path] = tuple(replace(u, before_barrier=True) for u in uses)

    def join(self, other: State, condition: Traced | None) -> None:
        """Become the state after both paths."""
        for number, values in other.names.items():
            mine = self.names.get(number)
            if mine is None:
                self.names[number] = dict(values)
                continue
            for name, value in values.items():
                own = mine.setdefault(name, value)
                if own.ref != value.ref:
                    here, there = self.heap.get(own.ref, own), other.heap.get(value.ref, value)
                    mine[name] = joined(here, there, condition)
                elif own is not value:
                    mine[name] = joined(own, value, condition)
        self.join_heap(other, condition)

    def join_heap(self, other: State, condition: Traced | None) -> None:
        """Take over what another path did to values, files and modules, not to names."""
        for ref, value in other.heap.items():
            own = self.heap.setdefault(ref, value)
            if own is not value:
                self.heap[ref] = joined(own, value, condition)
        for name, origins in other.generators.items():
            self.generators[name] = self.generators.get(name, NO_ORIGINS) & origins
        for path, uses in other.files.items():
            mine = self.files.get(path, ())
            self.files[path] = mine + tuple(u for u in uses if u not in mine)
        for ref, owed in other.obligations.items():
            known = self.obligations.get(ref, ())
            self.obligations[ref] = known + tuple(o for o in owed if o not in known)
