"""The events of Kubernetes about a pod that does not start: the reason that decides, and the fix for it."""

from __future__ import annotations

import pytest

from ddpdoctor.logs.pod_waits import waits_in

GPUS = "nvidia.com/gpu"
CASES = (
    (f"0/12 nodes are available: 12 Insufficient {GPUS}.", f"all 12 nodes lack free {GPUS}", "at most the free GPUs"),
    (
        "0/4 nodes are available: 1 node(s) didn't match pod affinity rules, 3 Insufficient nvidia.com/gpu. preemption: "
        "0/4 nodes are available: 1 Preemption is not helpful for scheduling, 3 No preemption victims found for incoming pod.",
        f"3 of 4 nodes lack free {GPUS}",
        "at most the free GPUs",
    ),
    (
        f"0/4 nodes are available: 1 node(s) had untolerated taint {{{GPUS}: present}}, 3 Insufficient {GPUS}.",
        f"1 of 4 nodes has the taint `{GPUS}`, which it does not tolerate",
        f"tolerations: [{{key: {GPUS}, operator: Exists}}]",
    ),
    (
        (
            "0/1 nodes are available: 1 node(s) had taint {node-role.kubernetes.io/master: "
            "}, that the pod didn't tolerate."
        ),
        "the only node has the taint `node-role.kubernetes.io/master`, which it does not tolerate",
        "tolerations",
    ),
    (
        (
            f"0/6 nodes are available: 1 node(s) had untolerated taint "
            f"{{node-role.kubernetes.io/control-plane: }}, 5 Insufficient {GPUS}."
        ),
        f"5 of 6 nodes lack free {GPUS}",
        "at most the free GPUs",
    ),
    (
        (
            "0/2 nodes are available: 1 node(s) had untolerated taint "
            "{node.kubernetes.io/disk-pressure: }, 1 node(s) were unschedulable."
        ),
        "1 of 2 nodes has the taint `node.kubernetes.io/disk-pressure`, which it does not tolerate",
        "Free disk space",
    ),
    (
        "0/8 nodes are available: 8 node(s) didn't match Pod's node affinity/selector.",
        "all 8 nodes do not match its nodeSelector or node affinity",
        "--show-labels",
    ),
    (
        "0/3 nodes are available: 3 pod has unbound immediate PersistentVolumeClaims.",
        "is not bound",
        "kubectl describe pvc",
    ),
    (
        (
            'pods "w-0" is forbidden: exceeded quota: gpu-quota, requested: '
            "requests.nvidia.com/gpu=8, used: requests.nvidia.com/gpu=8"
        ),
        "quota gpu-quota is used up (requests.nvidia.com/gpu=8 requested)",
        "kubectl describe quota gpu-quota",
    ),
    (
        (
            "couldn't assign flavors to pod set main: insufficient unused quota for "
            "nvidia.com/gpu in flavor h100, 8 more needed"
        ),
        "no unused quota for nvidia.com/gpu in flavor h100",
        "Wait for the queue's other jobs",
    ),
    (
        (
            "couldn't assign flavors to pod set main: insufficient quota for nvidia.com/gpu "
            "in flavor h100, request > maximum capacity (24 > 16)"
        ),
        "more nvidia.com/gpu than its queue may ever have",
        "waiting does not help",
    ),
    (
        ('Failed to pull image "r.local/t:v3": rpc error: code = NotFound desc = failed to pull'),
        "does not exist",
        "Correct `image:`",
    ),
    (
        "Error response from daemon: pull access denied for t, repository does not exist",
        "refuses access",
        "imagePullSecrets",
    ),
    (
        'Failed to pull image "r.local/t:v3": dial tcp: lookup r.local on 10.0.0.2:53: no such host',
        "does not reach the registry",
        "crictl pull IMAGE",
    ),
    ('secret "hf-token" not found', "its secret hf-token does not exist", "Create the secret hf-token"),
    ("Error: couldn't find key token in Secret ml/hf", "its Secret ml/hf lacks the key token", "Add the key token"),
    ('exec: "torchrunn": executable file not found in $PATH: unknown', "no program torchrunn", "Correct `command:`"),
    (
        "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown",
        "nvidia-container-cli failed: initialization error: nvml error: driver not loaded",
        "Run `nvidia-smi`",
    ),
    (
        'Multi-Attach error for volume "pvc-1" Volume is already used by pod(s) w-0',
        "attached to another node",
        "ReadWriteMany",
    ),
)


@pytest.mark.parametrize(("event", "why", "fix"), CASES)
def test_the_reason_in_an_event_decides_the_fix(event: str, why: str, fix: str) -> None:
    first = waits_in([event])[0]
    assert why in first.why
    assert fix in first.fix
    assert "{" not in first.why
    assert len(f"trainer-worker-0 never ran: {first.why}".split()) <= 19


@pytest.mark.parametrize("event", ["Error: ErrImagePull", "Error: ImagePullBackOff", "w-0   0/1   Pending   0   9m"])
def test_an_event_without_a_reason_has_none(event: str) -> None:
    assert waits_in([event]) == []
