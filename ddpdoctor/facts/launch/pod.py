"""The pods of a Kubernetes manifest that run a launch line."""

from __future__ import annotations

from enum import Enum

from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Operator", "Pod"]


class Operator(str, Enum):
    """What starts the pods and sets their variables: see `launch/manifests/manifest.py`."""

    PYTORCHJOB = "PyTorchJob"
    TRAINJOB = "TrainJob"
    MPIJOB = "MPIJob"
    JOBSET = "JobSet"
    JOB = "Job"
    STATEFULSET = "StatefulSet"
    POD = "Pod"


@dataclass(frozen=True, slots=True)
class Pod:
    """One container of a pod template. None always means that the manifest does not set it.

    `name` is the job's name, `pods` how many pods the whole job has, `gpus` the GPU limit of the container.
    `shm_bytes` is the limit of what is mounted on /dev/shm; `has_shm`: something is mounted there, or the host's is
    shared. `in_memory` is False for an emptyDir on disk. `at` is the container's place in the file, the other marks
    are those of the entries in their names. `cpus` and `memory_bytes` are the container's limits; `has_rdma`: it
    requests an RDMA device, or may use the host's. `service` is the headless service of its pods. `is_elastic`: the
    operator chooses the rendezvous. `is_meshed`: the sidecar of a service mesh is requested. `open_ports` are the
    ranges that the manifest's network policies leave open between the job's pods (None: all, or unknown), `policy_at`
    the first policy that closes the others.
    """

    operator: Operator
    name: str | None = None
    pods: int | None = None
    role: str | None = None
    gpus: int | None = None
    has_shm: bool = False
    shm_bytes: int | None = None
    in_memory: bool | None = None
    host_network: bool = False
    dns_policy: str | None = None
    service: str | None = None
    nproc: str | None = None
    in_shell: bool = False
    is_meshed: bool = False
    is_elastic: bool = False
    cpus: int | None = None
    memory_bytes: int | None = None
    has_rdma: bool = False
    at: Mark | None = None
    shm_at: Mark | None = None
    host_network_at: Mark | None = None
    mesh_at: Mark | None = None
    cpus_at: Mark | None = None
    memory_at: Mark | None = None
    open_ports: tuple[tuple[int, int], ...] | None = None
    policy_at: Mark | None = None
