"""Kubernetes objects as their operators expand them: every pod with its name and the variables that it is given.

Sources, read for what each operator sets:

* PyTorchJob: kubeflow/training-operator v1.7 to v1.9, pkg/controller.v1/pytorch/{envvar,master,elastic}.go
* TrainJob: kubeflow/trainer v2, pkg/runtime/framework/plugins/torch/torch.go and pkg/constants
* MPIJob: kubeflow/mpi-operator v2beta1, pkg/controller/mpi_job_controller.go
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.objects import (
    MOST_PODS,
    Workload,
    WorkloadObject,
    count_of,
    index_fields,
    text_of_count,
    total_of,
)
from ddpdoctor.launch.evaluator.pods import ImaginedPod
from ddpdoctor.launch.evaluator.scalars import Manifest
from ddpdoctor.launch.evaluator.values import NODE, Value
from ddpdoctor.launch.evaluator.workloads import WORKLOADS
from ddpdoctor.launch.manifests.pod_template import gpus_of
from ddpdoctor.launch.manifests.yaml_nodes import At, number, text_of

__all__ = ["workload_of"]

PORT = "23456"
"""The port of a PyTorchJob whose container names none."""
TRAINER_PORT = "29500"


def workload_of(root: At, manifest: Manifest, others: Sequence[At]) -> Workload | None:
    """The pods of an object; None for a kind that starts none.

    Args:
        others: all objects of the manifest, for those that the object refers to.
    """
    kind = text_of(root.get("kind")) or ""
    if kind == "Job" and (text_of(root.get("apiVersion")) or "").startswith("batch.volcano.sh"):
        kind = "Volcano Job"
    expand, spec = _KINDS.get(kind), root.get("spec")
    if expand is None or spec is None:
        return None
    found = Workload(kind, text_of(root.get("metadata", "name")) or "")
    expand(WorkloadObject(root, spec, manifest, others, found))
    return found


def _pytorchjob(job: WorkloadObject) -> None:
    """Master 0 and workers 0…; RANK counts pods, WORLD_SIZE pods times an integer nprocPerNode."""
    job.into.is_gang = True
    roles = [(role, each) for role in ("Master", "Worker") if (each := job.spec.get("pytorchReplicaSpecs", role))]
    counts = [count_of(each.get("replicas")) for _, each in roles]
    total, has_master = total_of(counts), any(role == "Master" for role, _ in roles)
    place = roles[-1][1].get("replicas") or roles[-1][1] if roles else None
    nproc = job.spec.get("nprocPerNode")
    per_pod = number(nproc)
    made = job.manifest.made
    is_elastic = job.spec.get("elasticPolicy") is not None
    pod = Pod(Operator.PYTORCHJOB, job.into.name, None if is_elastic else total, is_elastic=is_elastic)
    for (role, each), count in zip(roles, counts, strict=True):
        spec = each.get("template", "spec")
        if spec is None:
            continue
        for index in job.into.count(count):
            rank = made(str(index + (role == "Worker")), place, NODE)
            own = []
            if has_master:
                size = None if total is None else total * (per_pod or 1)
                address = job.named(f"{job.name}-master-0")
                port = job.manifest.made(_port(roles[0][1]), roles[0][1])
                own += [("MASTER_PORT", port), ("PET_MASTER_PORT", port), ("MASTER_ADDR", address)]
                own += [
                    ("PET_MASTER_ADDR", address),
                    ("WORLD_SIZE", made(text_of_count(size), nproc or place)),
                    ("RANK", rank),
                ]
                own += [("PET_NPROC_PER_NODE", made(text_of(nproc) or "auto", nproc)), ("PET_NODE_RANK", rank)]
            elastic = job.spec.get("elasticPolicy")
            if elastic is None:
                own.append(("PET_NNODES", made(text_of_count(total), place)))
            else:
                own += _elastic(job, elastic, roles[-1][1], counts[-1])
            name = f"{job.host}-{role.lower()}-{index}"
            job.into.pods.append(ImaginedPod(name, spec, "", len(job.into.pods), after=tuple(own), pod=pod))


def _port(role: At) -> str:
    """The port that the container called pytorch names pytorchjob-port."""
    for container in role.items("template", "spec", "containers"):
        for port in container.items("ports"):
            if text_of(port.get("name")) == "pytorchjob-port":
                return text_of(port.get("containerPort")) or UNKNOWN
    return PORT


def _elastic(job: WorkloadObject, policy: At, worker: At, replicas: int | None) -> Iterator[tuple[str, Value]]:
    """The variables of an elasticPolicy."""
    manifest = job.manifest
    host, port = policy.get("rdzvHost"), text_of(policy.get("rdzvPort")) or _port(worker)
    address = text_of(host) or f"{job.name}-worker-0"
    yield "PET_RDZV_ENDPOINT", manifest.made(f"{address}:{port}", host or policy)
    backend = policy.get("rdzvBackend")
    yield "PET_RDZV_BACKEND", manifest.made(text_of(backend) or "c10d", backend or policy)
    low, high = policy.get("minReplicas"), policy.get("maxReplicas")
    nodes = (
        text_of_count(replicas)
        if low is None and high is None
        else f"{text_of_count(number(low))}:{text_of_count(number(high))}"
    )
    yield "PET_NNODES", manifest.made(nodes, high or policy)
    nproc = policy.get("nProcPerNode") or job.spec.get("nprocPerNode")
    if nproc is not None:
        yield "PET_NPROC_PER_NODE", manifest.value(nproc)
    for key, variable in (("maxRestarts", "PET_MAX_RESTARTS"), ("rdzvId", "PET_RDZV_ID")):
        if policy.get(key) is not None:
            yield variable, manifest.value(policy.get(key))
    pairs = [f"{text_of(each.get('key'))}={text_of(each.get('value'))}" for each in policy.items("rdzvConf")]
    if pairs:
        yield "PET_RDZV_CONF", manifest.made(",".join(pairs), policy.get("rdzvConf"))
    if text_of(policy.get("standalone")) == "true":
        yield "PET_STANDALONE", manifest.made("", policy.get("standalone"))


_NOT_TORCH = ("mpi", "deepspeed", "mlx", "jax", "xgboost", "flux", "tune")


def _trainjob(job: WorkloadObject) -> None:
    """Pods of the runtime's job `node`; all that torchrun needs is in the PET_ variables."""
    wanted = text_of(job.spec.get("runtimeRef", "name")) or ""
    runtime = next(
        (
            each
            for each in job.others
            if text_of(each.get("kind")) in ("TrainingRuntime", "ClusterTrainingRuntime")
            and text_of(each.get("metadata", "name")) == wanted
        ),
        None,
    )
    policy = None if runtime is None else runtime.get("spec", "mlPolicy")
    is_torch = policy.get("torch") is not None if policy is not None else not any(x in wanted for x in _NOT_TORCH)
    if not is_torch:
        job.into.left_out.append(f"TrainJob {job.into.name}: the runtime {wanted} is not one of torch")
        return
    trainer = job.spec.get("trainer")
    _nodes_of_runtime(job, runtime, trainer, wanted)


def _runtime(job: WorkloadObject) -> None:
    """A runtime by itself, as a TrainJob without settings of its own gets it."""
    if any(text_of(each.get("spec", "runtimeRef", "name")) == job.into.name for each in job.others):
        return
    if job.spec.get("mlPolicy", "torch") is not None:
        _nodes_of_runtime(job, job.root, None, "")


def _nodes_of_runtime(job: WorkloadObject, runtime: At | None, trainer: At | None, wanted: str) -> None:
    job.into.is_gang = True
    manifest = job.manifest
    policy = None if runtime is None else runtime.get("spec", "mlPolicy")
    spec, container = _node_container(runtime)
    nodes = None if trainer is None else trainer.get("numNodes")
    nodes = nodes or (None if policy is None else policy.get("numNodes"))
    count = number(nodes) if nodes is not None else 1 if policy is not None or wanted == "torch-distributed" else None
    nproc = None if trainer is None else trainer.get("numProcPerNode")
    nproc = nproc or (None if policy is None else policy.get("torch", "numProcPerNode"))
    each = text_of(nproc) or "auto"
    if each in ("auto", "cpu") and trainer is not None and trainer.get("resourcesPerNode") is not None:
        each = UNKNOWN if each == "cpu" else each  # the trainer counts the CPUs where there is no GPU
    is_own = trainer is not None and (trainer.get("command") is not None or trainer.get("args") is not None)
    base = trainer if is_own else container
    if base is None:
        return
    other = container if is_own else trainer
    literal = tuple(
        (name, manifest.value(value))
        for entry in (other.items("env") if other is not None else ())
        if (name := text_of(entry.get("name"))) is not None and (value := entry.get("value")) is not None
    )
    address = job.named(f"{job.name}-node-0-0.{job.name}")
    for index in job.into.count(count):
        rank = manifest.made(str(index), nodes, NODE)
        after = (
            *(() if is_own else literal),
            ("PET_NNODES", manifest.made(text_of_count(count), nodes)),
            ("PET_NPROC_PER_NODE", manifest.made(each, nproc)),
            ("PET_NODE_RANK", rank),
            ("PET_MASTER_ADDR", address),
            ("PET_MASTER_PORT", manifest.made(TRAINER_PORT, job.root)),
        )
        defaults = (*(literal if is_own else ()), ("JOB_COMPLETION_INDEX", rank))
        name = f"{job.host}-node-0-{index}"
        fields = index_fields(index)
        pod = ImaginedPod(name, spec or base, "", index, (), after, defaults, fields, containers=(base,))
        job.into.pods.append(pod)


def _node_container(runtime: At | None) -> tuple[At | None, At | None]:
    """The pod spec and the container in which a runtime trains."""
    jobs = () if runtime is None else runtime.items("spec", "template", "spec", "replicatedJobs")
    for each in jobs:
        if text_of(each.get("name")) in ("node", "trainer-node"):
            spec = each.get("template", "spec", "template", "spec")
            containers = [] if spec is None else list(spec.items("containers"))
            chosen = next((c for c in containers if text_of(c.get("name")) in ("node", "trainer")), None)
            return spec, chosen or (containers[0] if containers else None)
    return None, None


def _mpijob(job: WorkloadObject) -> None:
    """Workers run sshd, the launcher runs mpirun with a hostfile of the workers."""
    job.into.is_gang = True
    workers = count_of(job.spec.get("mpiReplicaSpecs", "Worker", "replicas"))
    slots = count_of(job.spec.get("slotsPerWorker"))
    as_worker = text_of(job.spec.get("runLauncherAsWorker")) == "true"
    made = job.manifest.made
    hosts = tuple(f"{job.host}-worker-{index}" for index in range(min(workers or 1, MOST_PODS)))
    hosts = ((f"{job.host}-launcher",) if as_worker else ()) + hosts
    rows = "".join(f"{host}.{job.host}.{job.namespace}.svc slots={text_of_count(slots)}\n" for host in hosts)
    at = job.spec.get("slotsPerWorker") or job.spec
    environ = (
        ("K_MPI_JOB_ROLE", made("launcher", job.root)),
        ("OMPI_MCA_orte_keep_fqdn_hostnames", made("true", job.root)),
        ("OMPI_MCA_orte_default_hostfile", made("/etc/mpi/hostfile", job.root)),
        ("OMPI_MCA_plm_rsh_args", made("-o ConnectionAttempts=10", job.root)),
        ("OMPI_MCA_orte_set_default_slots", made(text_of_count(slots), at)),
    )
    launcher = job.spec.get("mpiReplicaSpecs", "Launcher", "template", "spec")
    worker = job.spec.get("mpiReplicaSpecs", "Worker", "template", "spec")
    containers = [] if worker is None else list(worker.items("containers"))
    gpus = gpus_of(containers[0]) if len(containers) == 1 and not as_worker else None
    if workers is None:
        job.into.left_out.append(f"MPIJob {job.into.name}: the number of its workers is not known")
    elif launcher is not None:
        name = f"{job.host}-launcher"
        texts = {"/etc/mpi/hostfile": rows}
        pod = ImaginedPod(name, launcher, "", after=environ, hosts=hosts, slots=slots, host_gpus=gpus, texts=texts)
        job.into.pods.append(pod)
    spec = worker
    if spec is not None and workers is not None:
        for index in job.into.count(workers):
            job.into.pods.append(
                ImaginedPod(
                    f"{job.host}-worker-{index}",
                    spec,
                    "worker",
                    index,
                    after=(("K_MPI_JOB_ROLE", made("worker", job.root)),),
                    is_passive=True,
                )
            )


_KINDS: Mapping[str, Callable[[WorkloadObject], None]] = {
    "PyTorchJob": _pytorchjob,
    "TrainJob": _trainjob,
    "TrainingRuntime": _runtime,
    "ClusterTrainingRuntime": _runtime,
    "MPIJob": _mpijob,
    **WORKLOADS,
}
