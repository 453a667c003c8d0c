"""Why a pod has not started, as Kubernetes says it: the reasons in an event, and what to do about each.

Sources: the messages of kube-scheduler's filters (kubernetes/kubernetes, pkg/scheduler/framework/plugins), of kubelet and
containerd, and of Kueue's flavor assigner.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ddpdoctor.light_dataclass import dataclass

__all__ = ["PodWait", "waits_in"]

_NODES = re.compile(r"\d{1,6}/(\d{1,6}) nodes are available: ")
_NEXT = re.compile(r", (?=\d{1,6} \w)")
_CLAUSE = re.compile(r"(\d{1,6}) (.*)$")
_TAINT = re.compile(r"taints? \{([^:{}\n]{0,200})")
_NAMED = r"[\"'`\\]*([\w./:@-]{1,200})[\"'`\\]*"
ALLOCATABLE = r"kubectl get nodes -o custom-columns='NODE:.metadata.name,GPUS:.status.allocatable.nvidia\.com/gpu'"
LONGEST = 2000
"""Events are shorter: the rest of a longer line is left out."""


@dataclass(frozen=True)
class PodWait:
    """One reason: `why` completes `POD never ran: …`, `fix` is what to do. The lower the `rank`, the more it decides."""

    rank: int
    why: str
    fix: str


_OF_NODES = (
    (
        r"Insufficient (\S*(?:gpu|mig-)\S*)",
        2,
        "{nodes} lack free {0}",
        (
            f"Request at most the free GPUs of one node: `{ALLOCATABLE}` shows what each has; "
            f"`<none>` on a GPU node means that NVIDIA's device plugin does not run there"
        ),
    ),
    (
        r"Insufficient (\S*(?:rdma|hca|efa|roce)\S*)",
        3,
        "{nodes} lack free {0}",
        (
            "Request as many `{0}` as one node has (`kubectl describe node NODE`, "
            "Allocatable); without any, the adapter's device plugin does not run there"
        ),
    ),
    (
        r"Insufficient (\S+)",
        4,
        "{nodes} lack free {0}",
        (
            "Request less `{0}` per pod (resources.requests), or free it: `kubectl describe "
            "nodes | grep -A9 'Allocated resources'`"
        ),
    ),
    (r"untolerated taint|taint.*didn't tolerate", 1, "{nodes} have the taint {taint}, which it does not tolerate", ""),
    (
        (
            r"didn't match [Pp]od's node affinity|didn't match node selector|didn't satisfy "
            r"node affinity"
        ),
        3,
        "{nodes} do not match its nodeSelector or node affinity",
        ("Correct nodeSelector and affinity to labels that nodes have: `kubectl get nodes --show-labels`"),
    ),
    (
        r"didn't match pod affinity rules|didn't satisfy existing pods? affinity",
        3,
        "{nodes} do not match its pod affinity",
        ("Correct podAffinity: the pod that it names runs on a node where this one does not fit"),
    ),
    (
        r"anti-affinity",
        3,
        "its pod anti-affinity excludes {nodes}",
        "Relax podAntiAffinity to preferredDuringScheduling, or add a node per pod",
    ),
    (
        r"topology spread",
        3,
        "{nodes} do not match its topology spread constraints",
        ("Relax topologySpreadConstraints (whenUnsatisfiable: ScheduleAnyway), or add nodes in the other zones"),
    ),
    (
        r"(?:were|was) unschedulable",
        3,
        "{nodes} are cordoned",
        ("Ask why these nodes are cordoned (`kubectl get nodes`); then run `kubectl uncordon NODE`"),
    ),
    (
        r"volume node affinity conflict",
        1,
        "{nodes} cannot reach its volume (volume node affinity)",
        ("Use nodes in the zone of the volume, or a StorageClass with volumeBindingMode: WaitForFirstConsumer"),
    ),
    (
        r"didn't find available persistent volumes to bind",
        1,
        "no persistent volume fits its claim",
        ("Create the volume or correct storageClassName, size and accessModes: `kubectl describe pvc`"),
    ),
    (
        r"didn't have free ports",
        2,
        "{nodes} use its host port already",
        "Remove hostPort or hostNetwork, or run one such pod per node",
    ),
    (r"Too many pods", 4, "{nodes} run as many pods as they may", "Free pods on the node, or raise kubelet's maxPods"),
    (
        r"pod has unbound immediate PersistentVolumeClaims|unbound immediate",
        1,
        "its PersistentVolumeClaim is not bound",
        (
            "Run `kubectl describe pvc`: create the volume, or correct storageClassName and "
            "accessModes (ReadWriteMany for several nodes)"
        ),
    ),
    (
        r"persistentvolumeclaim " + _NAMED + r" not found",
        1,
        "its PersistentVolumeClaim {0} does not exist",
        "Create the claim {0} in the pod's namespace, or correct claimName",
    ),
)
_OF_TAINTS = (
    (
        "node.kubernetes.io/not-ready",
        ("Repair the nodes that are NotReady: `kubectl get nodes`, then `kubectl describe node NODE`"),
    ),
    (
        "node.kubernetes.io/unreachable",
        ("Repair the nodes that do not answer: kubelet or their network is down (`kubectl get nodes`)"),
    ),
    (
        "node.kubernetes.io/disk-pressure",
        ("Free disk space on these nodes (`crictl rmi --prune`): kubelet refuses pods until then"),
    ),
    ("node.kubernetes.io/memory-pressure", "Free memory on these nodes: kubelet refuses pods until then"),
    (
        "node.kubernetes.io/unschedulable",
        ("Ask why these nodes are cordoned (`kubectl get nodes`); then run `kubectl uncordon NODE`"),
    ),
)
CONTROL_PLANE = re.compile(r"node-role\.kubernetes\.io/(?:master|control-plane)$")
_OTHERS = (
    (
        r"exceeded quota: " + _NAMED + r".*?requested: ([^ ,]+)",
        0,
        "the namespace's quota {0} is used up ({1} requested)",
        ("Request less, delete finished jobs, or have the quota raised: `kubectl describe quota {0}`"),
    ),
    (
        r"exceeded quota: " + _NAMED,
        0,
        "the namespace's quota {0} is used up",
        ("Request less, delete finished jobs, or have the quota raised: `kubectl describe quota {0}`"),
    ),
    (
        r"insufficient unused quota for (\S+) in flavor (\S+?)[,. ]",
        0,
        "its queue has no unused quota for {0} in flavor {1}",
        "Wait for the queue's other jobs, or request less: `kubectl describe clusterqueue`",
    ),
    (
        r"insufficient quota for (\S+) in flavor (\S+?)[,. ]",
        0,
        "it requests more {0} than its queue may ever have in flavor {1}",
        ("Request less, or have nominalQuota of the ClusterQueue raised: waiting does not help"),
    ),
    (
        (
            r"(?:pull access denied|unauthorized|authentication required|no basic auth "
            r"credentials|403 Forbidden|insufficient_scope|denied: )"
        ),
        1,
        "the registry refuses access to its image",
        (
            "Correct the image's name, and add imagePullSecrets with a valid login: `kubectl "
            "create secret docker-registry`"
        ),
    ),
    (
        r"toomanyrequests|429 Too Many Requests|rate limit",
        1,
        "the registry's pull limit is reached",
        "Log in to the registry (imagePullSecrets), or use a mirror of the image",
    ),
    (
        r"no match for platform|no matching manifest for|exec format error",
        1,
        "its image is for another CPU architecture",
        ("Build the image for the node's architecture: `docker buildx build --platform linux/amd64,linux/arm64`"),
    ),
    (
        r"InvalidImageName|couldn't parse image|invalid reference format",
        1,
        "the name of its image is malformed",
        "Correct `image:` to REGISTRY/NAME:TAG in lower case",
    ),
    (
        (
            r"(?:pull|image|manifest).*(?:manifest unknown|not found|NotFound|does not exist|"
            r": 404)"
        ),
        2,
        "its image or tag does not exist",
        ("Correct `image:` in the manifest; `docker manifest inspect IMAGE` shows whether the tag exists"),
    ),
    (
        (
            r"(?:pull|image|registry|https?://).*(?:no such host|i/o timeout|connection "
            r"refused|TLS handshake timeout|network is unreachable|deadline exceeded)"
        ),
        2,
        "its node does not reach the registry",
        "Test from the node: `crictl pull IMAGE`; correct its DNS, proxy, or firewall",
    ),
    (
        r"x509: ",
        2,
        "its node does not trust the registry's certificate",
        "Add the registry's CA to the node's containerd (certs.d/HOST/hosts.toml)",
    ),
    (
        r"no space left on device",
        1,
        "the disk of its node is full",
        ("Free space on the node (`crictl rmi --prune`, old logs), or use a node with a larger disk"),
    ),
    (
        r"couldn't find key " + _NAMED + r" in (ConfigMap|Secret) " + _NAMED,
        1,
        "its {1} {2} lacks the key {0}",
        "Add the key {0} to the {1} {2}, or correct the reference in the manifest",
    ),
    (
        r"(configmap|secret) " + _NAMED + " not found",
        1,
        "its {0} {1} does not exist",
        "Create the {0} {1} in the pod's namespace, or correct its name in the manifest",
    ),
    (
        r"Multi-Attach error",
        1,
        "its volume is attached to another node",
        "Use a volume with accessModes: [ReadWriteMany], or end the pod that holds it",
    ),
    (
        r"driver name (\S+) not found in the list of registered CSI drivers",
        1,
        "the CSI driver {0} does not run on its node",
        "Install the driver {0} on that node (its DaemonSet must tolerate the node's taints)",
    ),
    (
        r"MountVolume.*(?:access denied|Permission denied)",
        2,
        "the file server refuses the mount",
        "Export the path to this node, or correct the volume's credentials",
    ),
    (
        (
            r"hostPath type check failed|(?:path|source) .*(?:does not exist|No such file or "
            r"directory)"
        ),
        2,
        "a path of its volume does not exist on the node",
        "Create the path on every node, or correct hostPath in the manifest",
    ),
    (
        r"[Uu]nable to attach or mount volumes|MountVolume|mount failed|AttachVolume",
        5,
        "a volume cannot be mounted",
        "Run `kubectl describe pvc` and check the storage server: the event quotes its error",
    ),
    (
        r"no runtime for " + _NAMED + r" is configured|RuntimeHandler " + _NAMED + " not supported",
        1,
        "the container runtime of its node does not know the class {0}",
        (
            "Install the NVIDIA container toolkit on the node: `nvidia-ctk runtime configure "
            "--runtime=containerd`, then restart containerd"
        ),
    ),
    (
        r"nvidia-container-cli: ([^\n]{1,80}?)(?:: unknown|$)",
        1,
        "nvidia-container-cli failed: {0}",
        ("Run `nvidia-smi` on its node: the driver must work there, and support the CUDA version of the image"),
    ),
    (
        r"exec: " + _NAMED + r": (?:executable file not found|stat .*no such file)",
        1,
        "its image has no program {0}",
        "Correct `command:` in the manifest, or install {0} in the image",
    ),
    (
        r"exec: " + _NAMED + ": permission denied",
        1,
        "its program {0} is not executable",
        "Run `chmod +x {0}` in the image",
    ),
    (
        r"failed to (?:set ?up|setup) .*network|plugin type=|cni|CNI",
        4,
        "the network of its sandbox is not set up (CNI)",
        ("Restart the CNI pods of that node (`kubectl -n kube-system get pods -o wide`), or use another node"),
    ),
    (
        r"tasks in gang unschedulable|pod group is not ready",
        6,
        "its gang does not fit: all of its pods start together or none",
        ("Free resources for minAvailable pods at once, or lower minAvailable: `kubectl describe podgroup`"),
    ),
)


def waits_in(texts: Iterable[str]) -> list[PodWait]:
    """The reasons that events give, the deciding one first; [] if they only say that the pod waits."""
    found = [wait for text in texts for wait in _waits(text[:LONGEST])]
    return list(dict.fromkeys(sorted(found, key=lambda wait: wait.rank)))


def _waits(text: str) -> Iterator[PodWait]:
    scheduled = _NODES.search(text)
    if scheduled is not None:
        total = int(scheduled[1])
        reasons = text[scheduled.end() :].partition(" preemption: ")[0].rstrip(". ")
        for each in _NEXT.split(reasons):
            clause = _CLAUSE.match(each)
            yield from _of_nodes(clause[2] if clause else each, int(clause[1]) if clause else total, total)
        return
    for pattern, rank, why, fix in _OTHERS:
        match = re.search(pattern, text)
        if match is not None:
            groups = [group for group in match.groups() if group is not None]
            yield PodWait(rank, why.format(*groups), fix.format(*groups))
            return


def _of_nodes(words: str, count: int, total: int) -> Iterator[PodWait]:
    """The reason that excludes `count` of `total` nodes. The scheduler names the first filter that excludes a node."""
    nodes = (
        f"all {total} nodes" if count == total > 1 else f"{count} of {total} nodes" if total > 1 else "the only node"
    )
    for pattern, rank, why, fix in _OF_NODES:
        match = re.search(pattern, words)
        if match is None:
            continue
        taint = (found[1] if (found := _TAINT.search(words)) else "").strip()
        groups = match.groups()
        of_taint = fix or next((text for name, text in _OF_TAINTS if name == taint), "")
        if not of_taint:
            of_taint = (
                f"Add `tolerations: [{{key: {taint or 'KEY'}, operator: Exists}}]` to the pod, if "
                f"it may use these nodes"
            )
        # A control plane is excluded on purpose; GPU nodes are tainted so that only jobs that tolerate it use them.
        is_of_gpus = re.search(r"gpu|nvidia|accelerator", taint, re.IGNORECASE) is not None
        rank = 7 if CONTROL_PLANE.search(taint) and count < total else 0 if is_of_gpus else 3 if taint else rank
        said = why.format(*groups, nodes=nodes, taint=f"`{taint}`" if taint else "that the event names")
        yield PodWait(rank, _agreeing(said, count, total), (of_taint if not fix else fix.format(*groups)))
        return


def _agreeing(text: str, count: int, total: int) -> str:
    """The sentence with its verb in the singular for the only node."""
    if total > 1 and count > 1:
        return text
    for plural, singular in (("lack", "lacks"), ("have", "has"), ("do not match", "does not match"), ("are", "is")):
        text = re.sub(rf"(nodes?) {plural} ", rf"\1 {singular} ", text, count=1)
    return text
