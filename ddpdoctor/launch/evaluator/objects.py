"""Objects of a manifest while their controllers expand them, and what is asked of all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import field

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.pods import ImaginedPod
from ddpdoctor.launch.evaluator.scalars import Manifest
from ddpdoctor.launch.evaluator.values import Value
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "MOST_PODS",
    "Workload",
    "WorkloadObject",
    "count_of",
    "index_fields",
    "labels",
    "objects_of",
    "text_of_count",
    "total_of",
]

MOST_PODS = 128
"""Pods of one object that are imagined: more would show nothing new."""


@dataclass(slots=True)
class Workload:
    """One object of a manifest.

    `is_gang`: its pods work on one job by their operator's intention; else each pod may be a job of its own. `left_out` says
    what is not imagined.
    """

    kind: str
    name: str
    pods: list[ImaginedPod] = field(default_factory=list)
    is_gang: bool = False
    left_out: list[str] = field(default_factory=list)

    def count(self, wanted: int | None) -> range:
        """The pods that are imagined of so many; one where the number is unknown."""
        room = max(0, MOST_PODS - len(self.pods))
        if wanted is None:
            self.left_out.append(f"{self.kind} {self.name}: the number of its pods is not known")
            return range(min(1, room))
        if wanted > room:
            self.left_out.append(f"{self.kind} {self.name}: only {room} of {wanted} pods are simulated")
        return range(min(wanted, room))


@dataclass(frozen=True, slots=True)
class WorkloadObject:
    """An object with what is asked of it everywhere."""

    root: At
    spec: At
    manifest: Manifest
    others: Sequence[At]
    into: Workload

    @property
    def name(self) -> str:
        """Its name; unknown where the cluster makes it up."""
        return text_of(self.root.get("metadata", "name")) or UNKNOWN

    @property
    def namespace(self) -> str:
        """Its namespace; the usual one where the manifest leaves it to kubectl."""
        return text_of(self.root.get("metadata", "namespace")) or "default"

    @property
    def host(self) -> str:
        """What the names of its pods begin with."""
        made = text_of(self.root.get("metadata", "generateName"))
        return text_of(self.root.get("metadata", "name")) or (made or self.into.kind.lower()).rstrip("-")

    def named(self, text: str) -> Value:
        """A value that is made of its name."""
        return self.manifest.made(text, self.root.get("metadata", "name") or self.root)


def count_of(at: At | None) -> int | None:
    """The number of replicas: 1 if none is given, None if it is not a number."""
    return 1 if at is None else number(at)


def text_of_count(count: int | None) -> str:
    return UNKNOWN if count is None else str(count)


def total_of(counts: Sequence[int | None]) -> int | None:
    return None if None in counts else sum(count for count in counts if count is not None)


def index_fields(index: int) -> dict[str, str]:
    return labels("batch.kubernetes.io/job-completion-index", str(index))


def labels(name: str, value: str) -> dict[str, str]:
    """A label that is an annotation as well."""
    return {f"metadata.labels['{name}']": value, f"metadata.annotations['{name}']": value}


def objects_of(roots: Sequence[At]) -> Iterator[At]:
    """The objects of the documents, and those of a List in them."""
    for root in roots:
        if text_of(root.get("kind")) == "List":
            yield from itertools.islice(root.items("items"), MOST_PODS)
        else:
            yield root
