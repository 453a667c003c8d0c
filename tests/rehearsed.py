"""Records as the ranks of a rehearsal write them, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ddpdoctor.facts.rehearsal import ObservationKind, Rehearsal
from ddpdoctor.sequences.comparison import Comparison
from ddpdoctor.sequences.summary import Circumstances, summary

__all__ = [
    *(
        "DECIDES",
        "FILE",
        "RANDOM",
        "SHOWN",
        "Job",
        "at",
        "averaged",
        "deciding",
        "drawing",
        "epochs",
        "evaluated",
        "graded",
        "loaded",
        "measured",
        "on_devices",
        "on_nodes",
        "replayed",
        "saved",
        "scheduled",
        "streamed",
        "streams",
        "tensor",
    ),
    "trained",
]

FILE = "/job/train.py"


class Job:
    """The records of a world of ranks that have joined; calls are numbered per rank."""

    def __init__(self, ranks: int = 2, backend: str = "gloo", per_node: int | None = None) -> None:
        self.comparison = Comparison(ranks)
        self.text = ""
        self._numbers = dict.fromkeys(range(ranks), 0)
        for rank in range(ranks):
            environ = {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            self.say(rank, "hello", pid=1000 + rank, environ=environ)
            self.say(rank, "rank_process", index=rank)
            self.say(rank, "joining", at=at(1), backend=backend)
            self.say(rank, "joined", rank=rank, world=ranks, backend=backend, at=at(1))
            self.comparison.tracks[rank].node = rank // (per_node or ranks)

    def say(self, key: int, kind: str, /, **fields: Any) -> Job:
        self.comparison.add(key, {"k": kind, **fields})
        return self

    def call(
        self, rank: int, operation: str, line: int = 10, /, *, returns: bool = True, group: str = "world", **fields: Any
    ) -> int:
        """One call, which returns unless it is said that it blocks."""
        self._numbers[rank] += 1
        number = self._numbers[rank]
        self.say(rank, "call", n=number, op=operation, g=group, at=at(line), step=0, **fields)
        if returns:
            self.say(rank, "ret", n=number)
        return number

    def all(self, operation: str, line: int = 10, **fields: Any) -> Job:
        for rank in self._numbers:
            self.call(rank, operation, line, **fields)
        return self

    def leave(self, *ranks: int) -> Job:
        for rank in ranks:
            self.say(rank, "left", how="end")
            self.say(rank, "gone")
            self.comparison.exited(rank, 0)
        return self

    def facts(self, text: str = "") -> Rehearsal:
        return summary(self.comparison, {FILE: text or self.text}, Circumstances(folder="/job"))


def at(line: int, function: str = "main") -> list[list[Any]]:
    return [[FILE, line, function]]


def tensor(*shape: int, dtype: str = "float32", device: str | None = None) -> list[list[Any]]:
    return [[dtype, list(shape), device]]


Kind = ObservationKind


def on_devices(*devices: str, backend: str = "nccl", per_node: int | None = None) -> Job:
    job = Job(len(devices), backend, per_node)
    for rank, device in enumerate(devices):
        job.call(rank, "all_reduce", 20, **{"in": tensor(2, device=device)})
    return job


def saved(*ranks: int, between: bool = False) -> Job:
    job = Job(2)
    for rank in ranks:
        job.say(rank, "save", path="/job/model.pt", at=at(30), call=1 if between and rank else 0)
        job.say(rank, "saved", path="/job/model.pt", call=1 if between and rank else 0)
        if between:
            job.all("barrier")
    return job


def read(*, after_barrier: bool) -> Job:
    job = Job(2)
    job.say(0, "save", path="/job/model.pt", at=at(30), call=0).say(0, "saved", path="/job/model.pt", call=0)
    if after_barrier:
        job.all("barrier")
    return job.say(1, "load", path="/job/model.pt", at=at(34), call=1 if after_barrier else 0)


def loaded(sampler: str, rows: tuple[list[int], list[int]], *, trains: bool = True) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "loader", loader=0, sampler=sampler, size=8, batches=4, at=at(12))
        job.say(rank, "epoch", loader=0, iteration=0, is_training=trains, at=at(14))
        job.say(rank, "batch", loader=0, count=1, rows=rows[rank])
        job.call(rank, "backward")
        job.say(rank, "step", count=1)
    return job


def epochs(*numbers: int | None, shuffles: bool = True) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(
            rank,
            "loader",
            loader=0,
            sampler="torch.utils.data.distributed.DistributedSampler",
            shuffles=shuffles,
            size=8,
            at=at(12),
        )
        for iteration, epoch in enumerate(numbers):
            job.say(rank, "epoch", loader=0, iteration=iteration, epoch=epoch, is_training=True, at=at(14))
    return job


def trained(
    second: float, *, wrapped: bool = True, synchronizes: bool = True, shapes: tuple[list[int], list[int]] = ([2], [2])
) -> Job:
    job = Job(2)
    for rank in (0, 1):
        if synchronizes:
            job.call(rank, "backward")
        value = second if rank else 1.0
        job.say(
            rank,
            "params",
            optimizer=0,
            step=0,
            sums=[[value, abs(value)]],
            names=["weight" if wrapped else None],
            shapes=[shapes[rank]],
            has_grad=[True],
            wrapped=int(wrapped),
            at=at(16),
        )
    return job


def batches(first: int, second: int) -> Job:
    job = Job(2)
    for rank, count in enumerate((first, second)):
        job.call(rank, "backward")
        job.say(rank, "loader", loader=0, sampler="Custom", size=8, batches=count, at=at(12))
        job.say(rank, "epoch", loader=0, iteration=0, is_training=True, at=at(14))
    return job


def joined(**second: object) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(
            rank,
            "joining",
            at=at(1),
            backend="nccl",
            port="29500",
            world_given=2,
            rank_given=rank,
        )
        if rank == 1:
            job.comparison.tracks[1].joining = {**(job.comparison.tracks[1].joining or {}), **second}
    return job


def seen(kind: str, **fields: object) -> Job:
    return Job(2).say(1, kind, at=at(21), **fields)


def sampled(shards: tuple[int, int] = (0, 1), seeds: tuple[int, int] = (0, 0)) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(
            rank,
            "loader",
            loader=0,
            sampler="torch.utils.data.distributed.DistributedSampler",
            shuffles=True,
            size=8,
            replicas=2,
            shard=shards[rank],
            seed=seeds[rank],
            at=at(12),
        )
    return job


def valued(kind: str, key: str, *values: float) -> Job:
    job = Job(2)
    for rank, value in enumerate(values):
        job.say(rank, kind, at=at(18), **{key: value})
    return job


def made(*paths: str) -> Job:
    job = Job(2)
    for rank, path in enumerate(paths):
        job.say(rank, "file", what="os.mkdir", path=path, at=at(8), call=0)
    return job


def written(*ranks: int) -> Job:
    job = Job(2)
    for rank in ranks:
        job.say(rank, "file", what="write", path="/job/results.json", at=at(8), call=0)
    return job


def listed(aliased: int) -> Job:
    return Job(2).all("all_gather", 22, **{"in": tensor(2), "aliased": aliased})


def ended(initialized: bool) -> Job:
    job = Job(2, "nccl")
    for rank in (0, 1):
        job.say(rank, "left", how="end", initialized=initialized)
    return job


def worlds(size: int) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "joined", rank=0 if size == 1 else rank, world=size, backend="gloo", at=at(1))
    return job


def waiting(size: int) -> Job:
    job = Job(2)
    for track in job.comparison.tracks.values():
        track.joining = {**(track.joining or {}), "world_given": size}
        track.has_joined = False
    return job


def sent(waits: bool) -> Job:
    job = Job(2)
    number = job.call(0, "isend", 19, returns=False, p2p="send", peer=1, **{"async": True})
    job.say(0, "begun", n=number)
    if waits:
        job.say(0, "wait", n=number).say(0, "waited", n=number)
    return job.say(0, "left", how="end", unwaited=[number])


def unused(**fields: object) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "raised", type="RuntimeError", text="Expected to have finished", at=at(30), **fields)
    return job


def tracked(*ranks: int) -> Job:
    job = Job(2)
    for rank in ranks:
        job.say(rank, "tracker", what="wandb.init", at=at(5))
    return job


def drawing(first: tuple[int, ...], second: tuple[int, ...], *, sharded: bool = True, in_steps: bool = True) -> Job:
    job = Job(2)
    sampler = "torch.utils.data.distributed.DistributedSampler" if sharded else RANDOM
    for rank, digests in enumerate((first, second)):
        job.say(rank, "seed", what="torch", seed=1, at=[*at(21, "seed_all"), *at(25)])
        job.say(rank, "loader", loader=0, sampler=sampler, replicas=2, shard=rank, size=8, at=at(12))
        job.say(rank, "epoch", loader=0, iteration=0, is_training=True, at=at(14))
        for step, digest in enumerate(digests):
            job.say(rank, "draw", what="randn", digest=digest, size=4, step=step if in_steps else 9, at=at(9))
    return job


def scheduled(total: int, made: int) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "left", how="end", schedules=[[total, made, at(14)]])
    return job


def spawned(count: int) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.comparison.tracks[rank].joining = None
        job.say(rank, "spawning", count=2, at=at(16))
    for key in range(10, 10 + count):
        job.say(key, "joining", rank_given=0, world_given=2, at=at(3))
    return job


def made_and_written(*, after_barrier: bool) -> Job:
    job = Job(2)
    job.say(0, "file", what="os.mkdir", path="/job/out", at=at(8), call=0)
    if after_barrier:
        job.all("barrier")
    return job.say(1, "save", path="/job/out/1.pt", at=at(12), call=1 if after_barrier else 0)


def averaged(*, differs_at_first: bool) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.call(rank, "all_reduce", 15, **{"in": tensor(2)})
        fields = {"optimizer": 0, "names": [None], "shapes": [[2]], "made": at(8), "at": at(16)}
        value = 2.0 if rank else 1.0
        first = value if differs_at_first else 1.0
        job.say(rank, "initial", sums=[[first, first]], **fields)
        job.say(rank, "params", sums=[[value, value]], wrapped=0, step=0, **fields)
    return job


DECIDES = """def main():
    for epoch in range(5):
        train()
        value = evaluate()
        if value < best:
            best, waited = value, 0
        else:
            waited += 1
        if waited > 3:
            break
"""


def deciding(*values: float) -> Job:
    job = Job(2)
    for rank, value in enumerate(values):
        variables = {"best": repr(value), "waited": "0", "rank": str(rank)}
        job.say(rank, "locals", place=[FILE, 3], count=1, frames=[[FILE, "main", 1, variables]])
        job.call(rank, "backward", 3)
    job.text = DECIDES
    return job


GUARDED = """def main():
    for step in range(5):
        train()
        if rank == 0 and step == 100:
            meter.publish()

def publish(self):
    dist.all_reduce(self.total)
"""


def guarded(*lines: int) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "lines", file=FILE, lines=list(lines))
    job.text = GUARDED
    return job


def removed(*, after_barrier: bool) -> Job:
    job = Job(2).say(1, "load", path="/job/a.pt", at=at(9), call=0)
    if after_barrier:
        job.all("barrier")
    return job.say(0, "file", what="os.remove", path="/job/a.pt", at=at(12), call=1 if after_barrier else 0)


DISTRIBUTED = "torch.utils.data.distributed.DistributedSampler"


def graded(factor: float, **fields: object) -> Job:
    """Four ranks on two nodes that sum gradients: 2 and 4 times `[1, -2, 3, 5]`; the optimizer uses a multiple of the average."""
    job = Job(4, per_node=2)
    for rank, value in enumerate((1.0, -2.0, 3.0, 5.0)):
        for step in (0, 1):
            job._numbers[rank] += 1
            call = {"n": job._numbers[rank], "op": "all_reduce", "g": "world", "step": step, "in": tensor(3)}
            job.say(rank, "call", at=at(15), **call).say(rank, "ret", n=call["n"])
            used = [factor * 7 / 4 * scale for scale in (2, 4)]
            record = {"shapes": [[3], [3]], "local": [2 * value, 4 * value], "used": used, "norms": [1, 1], **fields}
            job.say(rank, "gradients", optimizer=0, step=step, at=at(16), **record)
    return job


def everywhere(kind: str, **fields: object) -> Job:
    return Job(2).say(0, kind, at=at(21), **fields).say(1, kind, at=at(21), **fields)


def differing(kind: str, key: str, *values: object, **fields: object) -> Job:
    job = Job(2)
    for rank, value in enumerate(values):
        job.say(rank, kind, at=at(18), **{key: value}, **fields)
    return job


def rated(second: float, *, is_of_world: bool = True) -> Job:
    job = differing("rates", "rates", [0.1], [second], optimizer=0, step=1, digest=1)
    for rank in (0, 1):
        job.say(rank, "ddp", is_of_world=is_of_world, at=at(9))
    return job


def padded(divisor: float) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "loader", loader=1, sampler=DISTRIBUTED, size=7, replicas=2, shard=rank, at=at(12))
        job.say(rank, "epoch", loader=1, iteration=0, is_training=False, at=at(14))
        job.say(rank, "sum_divided", divisor=divisor, summed=at(19), at=at(20))
    return job


def evaluated(second: float, *, broadcasts: bool = True, of_buffers: bool = False) -> Job:
    job = Job(2)
    for rank, value in enumerate((1.0, second)):
        job.say(rank, "ddp", is_of_world=True, broadcasts=broadcasts, at=at(9))
        sums, buffers = [[1.0, 1.0]], [[value, value]]
        if not of_buffers:
            sums, buffers = buffers, sums
        job.say(rank, "evaluated", sums=sums, buffers=buffers, what="Net", digest=1, count=1, step=3, at=at(22))
    return job


def meshed(first: list[int], second: list[int]) -> Job:
    job = Job(2)
    for rank, rows in enumerate((first, second)):
        job.say(rank, "mesh", names=["dp", "tp"], mesh=[[0, 1]], at=at(7))
        job.say(rank, "loader", loader=0, sampler=DISTRIBUTED, size=8, replicas=2, shard=0, at=at(12))
        job.say(rank, "epoch", loader=0, iteration=0, is_training=True, at=at(14))
        job.say(rank, "rows", loader=0, iteration=0, count=1, rows=rows)
    return job


def streamed(*batches: list[int], workers: int = 2) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "loader", loader=0, sampler="Infinite", workers=workers, at=at(12))
        job.say(rank, "epoch", loader=0, iteration=0, is_training=True, at=at(14))
        for number, rows in enumerate(batches):
            job.say(rank, "rows", loader=0, iteration=0, count=number, rows=rows)
    return job


def replayed(*, iterates_again: bool, shuffles: bool = True) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "loader", loader=0, sampler=DISTRIBUTED, shuffles=shuffles, size=8, at=at(12))
        job.say(rank, "epoch", loader=0, iteration=0, epoch=0, is_training=True, step=0, at=at(14))
        job.say(rank, "epoch_end", loader=0, iteration=0, batches=4, step=4)
        if iterates_again:
            job.say(rank, "epoch", loader=0, iteration=1, epoch=1, is_training=True, step=4, at=at(14))
        job.say(rank, "step", count=9)
    return job


def on_nodes(path: str, *writers: int) -> Job:
    job = Job(2, per_node=1)
    for rank in writers:
        job.say(rank, "save", path=path, devices=[], at=at(30), call=0).say(rank, "saved", path=path, call=0)
    job.all("barrier")
    return job.say(1, "load", path=path, at=at(34), call=1)


def loaded_without(device: int) -> Job:
    job = Job(2).say(0, "save", path="/job/a.pt", devices=["cuda:0"], at=at(30), call=0).all("barrier")
    return job.say(1, "load", path="/job/a.pt", map_location=False, device=device, at=at(34), call=1)


LOOPS = """def main():
    for name in names:
        dist.all_reduce(values[name])
"""


def looping(name: str) -> Job:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "sets", names=[name], at=at(3))
    job.text = LOOPS
    return job


def measured(parts: list[float], *rows: list[int], degree: int = 0, showing: tuple[int, ...] = (0, 1)) -> Job:
    """An evaluation of 9 samples in which each rank reads 5 of them, or all; the ranks that show a value of it."""
    job = Job(2)
    for rank, listed in enumerate(rows):
        shard = {"replicas": 2, "shard": rank, "drawn": 5, "batches": 2}
        job.say(rank, "loader", loader=1, sampler=DISTRIBUTED, size=9, at=at(12), **shard)
        job.say(rank, "epoch", loader=1, iteration=0, is_training=False, at=at(14))
        job.say(rank, "rows", loader=1, iteration=0, count=1, rows=listed)
        if rank in showing:
            summed = at(18) if degree else []
            job.say(rank, "shown", loaders=[1], degree=degree, parts=parts, summed=summed, divided=at(20), at=at(22))
    return job


def compared_rows(count: int) -> Job:
    return measured([], [1, 2, 3, 4], [5, 6, 7, 8]).say(0, "rows_paired", count=count, at=at(30))


def cut(whole: int) -> Job:
    job = Job(2)
    for rank in (0, 1):
        loader = {"sampler": DISTRIBUTED, "size": 9, "replicas": 2, "shard": rank, "content": rank + 1}
        job.say(rank, "share", size=whole, at=at(8)).say(rank, "loader", loader=0, at=at(12), **loader)
    return job


def buffered(second: float) -> Job:
    job = Job(2)
    for rank, value in enumerate((1.0, second)):
        fields = {"names": ["vq.codes"], "sums": [[value, value]], "written": [at(9)], "broadcasts": True}
        job.say(rank, "own_buffers", at=at(22), **fields)
    return job


def calling_in_join(*counts: int) -> Job:
    job = Job(2)
    for rank, count in enumerate(counts):
        job.say(rank, "join", on=True, call=0, at=at(12))
        for _ in range(count):
            job.call(rank, "forward", 13)
            job.call(rank, "all_reduce", 13, **{"in": tensor(1)})
            job.call(rank, "all_reduce", 15, **{"in": tensor(1)})
        job.say(rank, "join", on=False, call=3 * count, at=at(12))
    return job


def resumed(second: float) -> Job:
    job = trained(second)
    return job.say(0, "optimizer_loaded", step=0, at=at(9))


def streams(*states: tuple[int, ...]) -> Job:
    job = Job(2)
    for rank, each in enumerate(states):
        job.say(rank, "rng_set", step=1, t=1.0, at=at(9))
        for step, state in enumerate(each):
            job.say(rank, "stream", step=step, state=state)
    return job


def worked(*states: int) -> Job:
    """One worker of each rank that has drawn from numpy's generator, whose seed it was given."""
    job = Job(2)
    for rank, state in enumerate(states):
        job.say(rank, "loader", loader=0, sampler=DISTRIBUTED, size=8, replicas=2, shard=rank, at=at(12))
        fields = {"states": {"numpy": state}, "seeded": ["numpy"], "drawn": ["numpy"], "parent": 1000 + rank}
        job.say(10 + rank, "worker_draws", loader=0, worker=0, at=at(9), **fields)
    return job


RANDOM = "torch.utils.data.sampler.RandomSampler"
SHOWN: dict[ObservationKind, tuple[Callable[[], Job], Callable[[], Job]]] = {
    Kind.SAME_DEVICE: (lambda: on_devices("cuda:0", "cuda:0"), lambda: on_devices("cuda:0", "cuda:0", per_node=1)),
    Kind.CPU_TENSOR: (
        lambda: on_devices("cpu", "cuda:1"),
        lambda: on_devices("cpu", "cpu", backend="cuda:nccl,cpu:gloo"),
    ),
    Kind.BAD_ORDINAL: (lambda: seen("ordinal", index=2, count=2), lambda: Job(2)),
    Kind.TWO_DEVICES: (lambda: seen("devices", operation="linear", devices=["cpu", "cuda:0"]), lambda: Job(2)),
    Kind.SECOND_INIT: (lambda: seen("second_init"), lambda: Job(2)),
    Kind.REFUSED: (lambda: seen("refused", op="monitored_barrier"), lambda: Job(2)),
    Kind.IDLE_OPTIMIZER: (
        lambda: seen("idle").say(1, "step", count=1).say(0, "idle", at=at(21)).say(0, "step", count=1),
        lambda: seen("idle").say(1, "step", count=2),
    ),
    Kind.DATA_PARALLEL: (lambda: seen("data_parallel", count=2), lambda: seen("data_parallel", count=1)),
    Kind.SAME_SHARD: (lambda: sampled(shards=(0, 0)), lambda: sampled(shards=(0, 1))),
    Kind.ORDERS_DIFFER: (lambda: sampled(seeds=(0, 1)), lambda: sampled(seeds=(7, 7))),
    Kind.SPLIT_DIFFERS: (lambda: valued("split", "digest", 1, 2), lambda: valued("split", "digest", 1, 1)),
    Kind.METRIC_DIFFERS: (
        lambda: valued("plateau", "metric", 0.5, 0.25),
        lambda: valued("plateau", "metric", 0.5, 0.5),
    ),
    Kind.FOLDERS_DIFFER: (lambda: made("/job/a", "/job/b"), lambda: made("/job/rank0", "/job/rank1")),
    Kind.ALIASED: (lambda: listed(2), lambda: listed(0)),
    Kind.NO_DESTROY: (lambda: ended(True), lambda: ended(False)),
    Kind.WORLD_OF_ONE: (lambda: worlds(1), lambda: worlds(2)),
    Kind.NOT_WAITED: (lambda: sent(waits=False), lambda: sent(waits=True)),
    Kind.FILE_RACE: (lambda: written(0, 1), lambda: written(0)),
    Kind.WORLD_NOT_FILLED: (lambda: waiting(3), lambda: waiting(2)),
    Kind.SWALLOWED: (lambda: seen("swallowed"), lambda: Job(2)),
    Kind.BAD_FORK: (lambda: seen("bad_fork"), lambda: Job(2)),
    Kind.BYPASSED: (lambda: seen("bypassed").say(1, "unsynchronized", at=at(30)), lambda: seen("bypassed")),
    Kind.UNSYNCHRONIZED: (lambda: seen("unsynchronized"), lambda: Job(2)),
    Kind.EARLY_READ: (lambda: seen("early_read", operation="all_reduce", used="add", started=at(9)), lambda: Job(2)),
    Kind.DEVICE_IDS: (
        lambda: seen("ddp", device_ids=[0], devices=["cuda:1"]),
        lambda: seen("ddp", device_ids=[1], devices=["cuda:1"]),
    ),
    Kind.CHECKPOINT_RACE: (lambda: saved(0, 1), lambda: saved(0)),
    Kind.READ_BEFORE_WRITTEN: (lambda: read(after_barrier=False), lambda: read(after_barrier=True)),
    Kind.SAME_DATA: (lambda: loaded(RANDOM, ([1, 2, 3], [3, 5, 6])), lambda: loaded(RANDOM, ([1, 2, 3], [4, 5, 6]))),
    Kind.EPOCH_NOT_SET: (lambda: epochs(0, 0), lambda: epochs(0, 1)),
    Kind.PARAMETERS_DIFFER: (lambda: trained(2.0), lambda: trained(1.0)),
    Kind.NOT_WRAPPED: (
        lambda: trained(2.0, wrapped=False, synchronizes=False),
        lambda: trained(2.0, wrapped=False, synchronizes=False, shapes=([2], [3])),
    ),
    Kind.UNEVEN_LOADERS: (lambda: batches(4, 5), lambda: batches(4, 4)),
    Kind.UNUSED_PARAMETERS: (
        lambda: unused(wrapped_at=at(21), names=["head.weight"], frozen_at=[]),
        lambda: unused(wrapped_at=[], names=[]),
    ),
    Kind.FROZEN_AFTER_WRAP: (
        lambda: unused(wrapped_at=at(21), names=["head.weight"], frozen_at=at(24)),
        lambda: unused(wrapped_at=at(21), names=["head.weight"], frozen_at=[]),
    ),
    Kind.TRACKERS: (lambda: tracked(0, 1), lambda: tracked(0)),
    Kind.SAME_DRAWS: (lambda: drawing((1, 2), (1, 2)), lambda: drawing((1, 2), (3, 4))),
    Kind.LONG_SCHEDULE: (lambda: scheduled(60, 30), lambda: scheduled(30, 30)),
    Kind.SPAWN_UNDER_LAUNCHER: (lambda: spawned(2), lambda: spawned(0)),
    Kind.FOLDER_RACE: (
        lambda: made_and_written(after_barrier=False),
        lambda: made_and_written(after_barrier=True),
    ),
    Kind.REDUCED_LOSS: (lambda: seen("in_graph", what="all_reduce", backward=at(24)), lambda: Job(2)),
    Kind.NEVER_BROADCAST: (lambda: averaged(differs_at_first=True), lambda: averaged(differs_at_first=False)),
    Kind.LOCAL_DECISION: (lambda: deciding(0.5, 0.25), lambda: deciding(0.5, 0.5)),
    Kind.DIVIDED_TWICE: (
        lambda: seen("averaged_twice"),
        lambda: Job(2).say(0, "loss_divided", divisor=4.0, at=at(9)),
    ),
    Kind.UNSCALED_EARLY: (lambda: seen("reduced_after_unscale", reduced=at(9)), lambda: Job(2)),
    Kind.CLIPPED_SHARDS: (lambda: seen("clipped_shards"), lambda: Job(1).say(0, "clipped_shards", at=at(9))),
    Kind.UNREGISTERED: (lambda: seen("unregistered", names=["head.weight"]), lambda: Job(2)),
    Kind.REMOVED_EARLY: (lambda: removed(after_barrier=False), lambda: removed(after_barrier=True)),
    Kind.RANK_BRANCH: (lambda: guarded(1, 2, 3, 4), lambda: guarded(1, 2, 3, 4, 5, 8)),
    Kind.OUTSIDER: (lambda: seen("outsider", op="all_reduce"), lambda: Job(2)),
    Kind.GRADIENT_SCALE: (lambda: graded(2), lambda: graded(1)),
    Kind.GRADIENTS_SUMMED: (lambda: graded(4, mean=True), lambda: graded(4, mean=False)),
    Kind.DIVIDED_BY_SUM: (lambda: everywhere("divided_by_sum", backward=at(24)), lambda: seen("divided_by_sum")),
    Kind.REDUCED_AGAIN: (lambda: everywhere("reduced_again", added=at(24)), lambda: seen("reduced_again")),
    Kind.RATIO_MEAN: (
        lambda: differing("ratio_reduced", "divisor", 10.0, 12.0, divided=at(17)),
        lambda: differing("ratio_reduced", "divisor", 10.0, 10.0, divided=at(17)),
    ),
    Kind.PADDING_COUNTED: (lambda: padded(7.0), lambda: padded(8.0)),
    Kind.GATHERED_CUT: (
        lambda: everywhere("gathered_without_gradient", used=at(24)),
        lambda: seen("gathered_without_gradient"),
    ),
    Kind.EVALUATED_APART: (lambda: evaluated(2.0), lambda: evaluated(2.0, of_buffers=True)),
    Kind.NOTHING_LOADED: (
        lambda: seen("nothing_loaded", count=2, key="module.weight", wanted="weight"),
        lambda: Job(2),
    ),
    Kind.NOT_REPLICATED: (
        lambda: differing("replicated", "sums", [1.0, 1.0], [2.0, 2.0], ranks=[0, 1], shape=[3]),
        lambda: differing("replicated", "sums", [1.0, 1.0], [1.0, 1.0], ranks=[0, 1], shape=[3]),
    ),
    Kind.RATES_DIFFER: (lambda: rated(0.2), lambda: rated(0.2, is_of_world=False)),
    Kind.SHARDS_SCALED: (
        lambda: (
            differing("shards_scaled", "factor", 0.5, 0.7)
            .say(0, "shards_scaled", factor=0.4, at=at(18))
            .say(1, "shards_scaled", factor=0.8, at=at(18))
        ),
        lambda: (
            differing("shards_scaled", "factor", 0.5, 0.5)
            .say(0, "shards_scaled", factor=0.4, at=at(18))
            .say(1, "shards_scaled", factor=0.4, at=at(18))
        ),
    ),
    Kind.MOVED: (lambda: seen("moved_after_wrap", before="cuda:0", after="cpu"), lambda: Job(2)),
    Kind.GROUP_DATA_DIFFERS: (
        lambda: meshed([1, 2, 3, 4], [5, 6, 7, 8]),
        lambda: meshed([1, 2, 3, 4], [1, 2, 3, 4]),
    ),
    Kind.WORKER_COPIES: (lambda: streamed([1, 2], [1, 2]), lambda: streamed([1, 2], [3, 4])),
    Kind.BATCHES_REPEATED: (lambda: replayed(iterates_again=False), lambda: replayed(iterates_again=True)),
    Kind.NODE_FILE: (lambda: on_nodes("/tmp/a.pt", 0), lambda: on_nodes("/tmp/a.pt", 0, 1)),
    Kind.LOADED_ON_OTHER_GPU: (lambda: loaded_without(1), lambda: loaded_without(0)),
    Kind.SAVED_PER_NODE: (lambda: on_nodes("/job/a.pt", 0, 1), lambda: on_nodes("/tmp/a.pt", 0, 1)),
    Kind.SET_ORDER: (lambda: looping("names"), lambda: looping("others")),
    Kind.SHARD_OVER_WHOLE: (
        lambda: measured([9.0], [1, 2, 3, 4], [5, 6, 7, 8]),
        lambda: measured([5.0], [1, 2, 3, 4], [5, 6, 7, 8]),
    ),
    Kind.SUM_OF_WHOLE: (
        lambda: measured([9.0], [1, 2, 3, 4], [1, 2, 3, 4], degree=1),
        lambda: measured([9.0], [1, 2, 3, 4], [5, 6, 7, 8], degree=1),
    ),
    Kind.SUM_NOT_DIVIDED: (
        lambda: measured([5.0], [1, 2, 3, 4], [5, 6, 7, 8], degree=1),
        lambda: measured([5.0], [1, 2, 3, 4], [5, 6, 7, 8]),
    ),
    Kind.ONE_SHARD: (
        lambda: measured([], [1, 2, 3, 4], [5, 6, 7, 8], showing=(0,)),
        lambda: measured([], [1, 2, 3, 4], [5, 6, 7, 8]),
    ),
    Kind.ROWS_OUT_OF_ORDER: (lambda: compared_rows(9), lambda: compared_rows(5)),
    Kind.DIVIDED_AGAIN: (lambda: cut(18), lambda: cut(9)),
    Kind.PART_AS_SUM: (lambda: seen("partial_used", taken=at(9)), lambda: Job(2)),
    Kind.BUFFERS_LOST: (lambda: buffered(2.0), lambda: buffered(1.0)),
    Kind.NEVER_FILLED: (lambda: seen("never_filled", names=["norm.weight"], used=at(24)), lambda: Job(2)),
    Kind.LATE_NO_SYNC: (lambda: everywhere("late_no_sync", backward=at(24)), lambda: Job(2)),
    Kind.CALLS_IN_JOIN: (lambda: calling_in_join(2, 3), lambda: calling_in_join(2, 2)),
    Kind.STATE_ON_SOME: (lambda: resumed(2.0), lambda: resumed(1.0)),
    Kind.STREAMS_MERGED: (lambda: streams((1, 3, 4), (2, 3, 4)), lambda: streams((1, 3, 4), (2, 5, 6))),
    Kind.SAME_WORKER_DRAWS: (lambda: worked(7, 7), lambda: worked(7, 8)),
    Kind.JOINS_DIFFER: (lambda: joined(port="29501"), joined),
    Kind.RANK_OUTSIDE: (lambda: joined(rank_given=2), joined),
    Kind.SAME_RANK: (lambda: joined(rank_given=0), joined),
}
"""For each kind of observation a job that shows it, and one that looks like it and is legal."""
