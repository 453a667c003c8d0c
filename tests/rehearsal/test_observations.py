"""What a rehearsal shows besides differing calls: each kind is seen, and what is legal is not."""

from __future__ import annotations

import pytest
from rehearsed import FILE, RANDOM, SHOWN, Job, epochs, loaded, on_devices, saved, trained

from ddpdoctor.facts.rehearsal import ObservationKind, RehearsalObservation

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
    ],
)
def test_more_that_is_legal(job: Job, kind: ObservationKind) -> None:
    assert found(job, kind) == []


def test_a_sampler_in_order_shows_the_same_data() -> None:
    job = loaded("torch.utils.data.sampler.SequentialSampler", ([1, 2, 3], [1, 2, 3]))
    assert len(found(job, Kind.SAME_DATA)) == 1
