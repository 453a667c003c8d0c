"""What a rehearsal shows besides differing calls: each kind is seen, and what is legal is not."""

from __future__ import annotations

import pytest
from rehearsed import (
    DECIDES,
    FILE,
    RANDOM,
    SHOWN,
    Job,
    at,
    averaged,
    deciding,
    drawing,
    epochs,
    evaluated,
    graded,
    loaded,
    measured,
    on_devices,
    on_nodes,
    replayed,
    saved,
    scheduled,
    streamed,
    streams,
    trained,
)

from ddpdoctor.facts.rehearsal import ObservationKind, RankEnd, RehearsalObservation
from ddpdoctor.rules.probe.probe505_to_508_rehearsed_ranks import killed, raised

Kind = ObservationKind


def found(job: Job, kind: ObservationKind) -> list[RehearsalObservation]:
    return [each for each in job.facts().observations if each.kind is kind]


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.value)
def test_is_seen(kind: ObservationKind) -> None:
    (first, *_) = found(SHOWN[kind][0](), kind)
    assert first.place is not None
    assert first.place.file == FILE


@pytest.mark.parametrize("kind", SHOWN, ids=lambda kind: kind.value)
def test_what_is_legal_is_not(kind: ObservationKind) -> None:
    assert found(SHOWN[kind][1](), kind) == []


@pytest.mark.parametrize(
    ("job", "kind"),
    [
        (epochs(0, 0, shuffles=False), Kind.EPOCH_NOT_SET),
        (epochs(0), Kind.EPOCH_NOT_SET),
        (loaded(RANDOM, ([1, 2, 3], [3, 5, 6]), trains=False), Kind.SAME_DATA),
        (loaded("torch.utils.data.distributed.DistributedSampler", ([1, 2], [1, 2])), Kind.SAME_DATA),
        (loaded("torch.utils.data.sampler.SequentialSampler", ([7, 7], [7, 7])), Kind.SAME_DATA),
        (on_devices("cuda:0", "cuda:1"), Kind.SAME_DEVICE),
        (on_devices("cuda:0", "cuda:0", backend="gloo"), Kind.SAME_DEVICE),
        (saved(0, 1, between=True), Kind.CHECKPOINT_RACE),
        (trained(1.00000001), Kind.PARAMETERS_DIFFER),
        (drawing((1, 2), (1, 2), sharded=False), Kind.SAME_DRAWS),
        (drawing((1,), (1,)), Kind.SAME_DRAWS),
        (drawing((1, 2), (1, 2), in_steps=False), Kind.SAME_DRAWS),
        (drawing((5, 5), (5, 5)), Kind.SAME_DRAWS),
        (scheduled(30, 25), Kind.LONG_SCHEDULE),
        (graded(4, mean=True, notes=["clipped"]), Kind.GRADIENTS_SUMMED),
        (graded(0.25, backwards=4), Kind.GRADIENT_SCALE),
        (graded(0.337), Kind.GRADIENT_SCALE),
        (evaluated(1.0), Kind.EVALUATED_APART),
        (replayed(iterates_again=False, shuffles=False), Kind.BATCHES_REPEATED),
        (streamed([1, 2], [1, 2], workers=0), Kind.WORKER_COPIES),
        (on_nodes("/job/a.pt", 0), Kind.NODE_FILE),
        (loaded("Custom", ([1, 2], [3, 4])), Kind.GROUP_DATA_DIFFERS),
        (measured([9.0], [1, 2, 3, 4], [5, 6, 7, 8], degree=1), Kind.SUM_NOT_DIVIDED),
        (measured([9.0, 2.0], [1, 2, 3, 4], [1, 2, 3, 4], degree=1), Kind.SUM_OF_WHOLE),
        (measured([], [1, 2, 3, 4], [5, 6, 7, 8], degree=1, showing=(0,)), Kind.ONE_SHARD),
        (measured([], [1, 2, 3, 4], [1, 2, 3, 4], showing=(0,)), Kind.ONE_SHARD),
        (streams((1, 3), (2, 3)), Kind.STREAMS_MERGED),
        (streams((3, 4, 5), (3, 4, 5)), Kind.STREAMS_MERGED),
    ],
)
def test_more_that_is_legal(job: Job, kind: ObservationKind) -> None:
    assert found(job, kind) == []


def test_a_rank_that_makes_the_inner_folder_needs_no_barrier() -> None:
    job = Job(2)
    job.say(0, "file", what="os.mkdir", path="/job/runs", at=at(8), call=0)
    for rank in (0, 1):
        job.say(rank, "file", what="os.mkdir", path="/job/runs/a", at=at(8), call=0)
    job.say(1, "file", what="write", path="/job/runs/a/1.pt", at=at(12), call=0)
    assert found(job, Kind.FOLDER_RACE) == []


def test_ranks_that_use_their_own_gradients_do_not_average_them() -> None:
    """They may exchange parameters instead: a reduced tensor of the same shape is something else."""
    for second, count in ((1.0, 1), (3.0, 0)):
        job = averaged(differs_at_first=True)
        for rank, used in enumerate((1.0, second)):
            record = {"shapes": [[2]], "local": [rank + 1.0], "used": [used], "norms": [1.0]}
            job.say(rank, "gradients", optimizer=0, step=0, notes=[], at=at(16), **record)
        assert len(found(job, Kind.NEVER_BROADCAST)) == count


def test_buffers_that_nothing_broadcasts_are_compared() -> None:
    job = evaluated(2.0, broadcasts=False, of_buffers=True)
    (shown,) = found(job, Kind.EVALUATED_APART)
    assert shown.values["what"] == "buffers"


def test_a_schedule_is_compared_with_the_batches_of_the_loader_before_the_training_ends() -> None:
    for per_epoch, count in ((32, 1), (8, 0)):
        job = Job(4)
        for rank in range(4):
            job.say(rank, "loader", loader=0, sampler="Distributed", batches=8, replicas=4, shard=rank, at=at(12))
            job.say(rank, "epoch", loader=0, iteration=0, is_training=True, at=at(14))
            job.say(rank, "schedule", total=2 * per_epoch, per_epoch=per_epoch, epochs=[2], at=at(9))
        assert len(found(job, Kind.LONG_SCHEDULE)) == count


@pytest.mark.parametrize(
    ("sampler", "drawn", "count"),
    [(RANDOM, 8, 1), (RANDOM, 4, 0), ("torch.utils.data.sampler.WeightedRandomSampler", 8, 0)],
)
def test_a_random_sampler_that_draws_a_part_for_each_rank_divides_the_data(
    sampler: str, drawn: int, count: int
) -> None:
    job = loaded(sampler, ([1, 2, 3], [3, 5, 6]))
    for rank in (0, 1):
        job.comparison.tracks[rank].of_kind("loader")[0]["drawn"] = drawn
    assert len(found(job, Kind.SAME_DATA)) == count


def test_a_value_that_a_collective_changes_in_place_decides_nothing_of_its_own() -> None:
    line = "        value = evaluate()\n"
    text = DECIDES.replace(line, line + "        dist.all_reduce(value)\n        dist.broadcast(best, src=0)\n")
    for source, count in ((DECIDES, 1), (text, 0)):
        job = deciding(0.5, 0.25)
        assert len([o for o in job.facts(source).observations if o.kind is Kind.LOCAL_DECISION]) == count


def test_a_rank_that_died_is_reported_if_another_one_raised_only_because_of_it() -> None:
    job = Job(2)
    job.say(0, "raised", type="RuntimeError", text="Connection reset by peer", at=at(9))
    job.comparison.exited(1, -6)
    job.comparison.tracks[1].end = RankEnd.KILLED
    job.comparison.tracks[1].exit_code = -6
    facts = job.facts()
    assert [f.ranks for f in killed(facts)] == [(1,)]
    assert list(raised(facts)) == []


def test_ranks_that_blame_each_other_are_reported() -> None:
    job = Job(2)
    for rank in (0, 1):
        job.say(rank, "raised", type="RuntimeError", text="Connection reset by peer", at=at(9))
    (only,) = raised(job.facts())
    assert only.ranks == (0, 1)


def test_every_kind_has_a_job_that_shows_it() -> None:
    assert set(SHOWN) == set(Kind)


def test_a_missing_set_epoch_is_placed_at_the_loop_over_the_epochs() -> None:
    text = (
        "def main():\n" + "\n" * 10 + "    for epoch in range(2):\n\n        for batch in loader:\n            step()\n"
    )
    (shown,) = [each for each in epochs(0, 0).facts(text).observations if each.kind is Kind.EPOCH_NOT_SET]
    assert (str(shown.place), str(shown.other)) == ("train.py:12", "train.py:14")


def test_a_sampler_in_order_shows_the_same_data() -> None:
    job = loaded("torch.utils.data.sampler.SequentialSampler", ([1, 2, 3], [1, 2, 3]))
    assert len(found(job, Kind.SAME_DATA)) == 1
