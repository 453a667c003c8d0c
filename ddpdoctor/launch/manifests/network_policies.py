"""Ports that the NetworkPolicies of a manifest leave open between the pods of one job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of

__all__ = ["policies", "restricted"]

Ports = tuple[tuple[int, int], ...]
_DIRECTIONS = (("Ingress", "ingress", "from"), ("Egress", "egress", "to"))


def policies(roots: Sequence[At]) -> tuple[At, ...]:
    """The NetworkPolicies among the documents."""
    every = [each for root in roots for each in (root, *root.items("items"))]
    return tuple(each for each in every if text_of(each.get("kind")) == "NetworkPolicy" and each.get("spec"))


def restricted(pod: Pod, template: At, namespace: str | None, found: Sequence[At]) -> Pod:
    """The pod with the ports on which pods of its own job may connect to it, if policies close the others."""
    labels = {key: text_of(value) or "" for key, value in template.pairs("metadata", "labels")} | _given(pod)
    own = [p for p in found if text_of(p.get("metadata", "namespace")) == namespace]
    own = [p for p in own if _selects(p.get("spec", "podSelector"), labels)]
    for kind, field, peers in _DIRECTIONS:
        closing = [p for p in own if _has(p, kind, field)]
        opened = [_opened(p, field, peers, labels) for p in closing]
        if closing and None not in opened:
            ports = tuple(sorted({each for some in opened for each in some or ()}))
            return replace(pod, open_ports=ports, policy_at=closing[0].mark)
    return pod


def _given(pod: Pod) -> dict[str, str]:
    """The labels that the operator sets on its pods."""
    name, role = pod.name or "", pod.role or ""
    if pod.operator in (Operator.PYTORCHJOB, Operator.MPIJOB):
        prefix = "training.kubeflow.org"
        return {f"{prefix}/job-name": name, f"{prefix}/replica-type": role.lower()}
    if pod.operator in (Operator.JOBSET, Operator.TRAINJOB):
        return {"jobset.sigs.k8s.io/jobset-name": name}
    if pod.operator is Operator.JOB:
        return {"job-name": name, "batch.kubernetes.io/job-name": name}
    return {}


def _selects(selector: At | None, labels: dict[str, str]) -> bool:
    """Certainly selects a pod with these labels; expressions are not read."""
    if selector is None:
        return True
    wanted = {key: text_of(value) for key, value in selector.pairs("matchLabels")}
    return selector.get("matchExpressions") is None and all(labels.get(k) == v for k, v in wanted.items())


def _has(policy: At, kind: str, field: str) -> bool:
    """The policy applies to this direction: without policyTypes to incoming traffic, and to outgoing if it has such
    rules.
    """
    kinds = [text_of(each) for each in policy.items("spec", "policyTypes")]
    return kind in kinds if kinds else kind == "Ingress" or policy.get("spec", field) is not None


def _opened(policy: At, field: str, peers: str, labels: dict[str, str]) -> Ports | None:
    """The TCP ports that a policy opens for pods with these labels; None: all, or unknown ones."""
    found: list[tuple[int, int]] = []
    for rule in policy.items("spec", field):
        others = list(rule.items(peers))
        if others and not any(_may_be(other, labels) for other in others):
            continue
        ports = list(_tcp(rule))
        if not ports and not list(rule.items("ports")):
            return None
        for first, last in ports:
            if first is None:
                return None
            found.append((first, last or first))
    return tuple(found)


def _tcp(rule: At) -> Iterator[tuple[int | None, int | None]]:
    for each in rule.items("ports"):
        if (text_of(each.get("protocol")) or "TCP") == "TCP":
            yield number(each.get("port")), number(each.get("endPort"))


def _may_be(peer: At, labels: dict[str, str]) -> bool:
    """A peer that may be a pod of the job: by its labels, or an address or namespace that is unknown here."""
    selector = peer.get("podSelector")
    return selector is None or selector.get("matchExpressions") is not None or _selects(selector, labels)
