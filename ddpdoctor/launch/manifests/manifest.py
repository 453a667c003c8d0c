"""Launch lines of Kubernetes manifests: each container's command, what its operator sets, GPUs and shared memory.

PyTorchJob (Kubeflow v1): every pod gets MASTER_ADDR, MASTER_PORT, RANK (the pod's index), WORLD_SIZE (the number of pods),
and with newer operators the PET_ variables; their values are unknown here. TrainJob (Kubeflow Trainer): only the PET_ ones.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.layer import starts_ranks
from ddpdoctor.facts.launch.pod import Operator, Pod
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.words import UNKNOWN, Mark, Word, is_known, quote
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.layers import parse_layers
from ddpdoctor.launch.line import line_of
from ddpdoctor.launch.manifests.network_policies import policies, restricted
from ddpdoctor.launch.manifests.pod_template import described, gpus_of
from ddpdoctor.launch.manifests.yaml_nodes import At, documents, number, text_of
from ddpdoctor.launch.shell.reader import lines_of_shell
from ddpdoctor.launch.shell.text import ShellSource
from ddpdoctor.light_dataclass import dataclass

__all__ = ["is_template", "lines_of_manifest", "why_no_launch"]

KINDS = (
    *(
        "PyTorchJob",
        "MPIJob",
        "TrainJob",
        "JobSet",
        "TrainingRuntime",
        "ClusterTrainingRuntime",
        "Job",
        "CronJob",
        "List",
    ),
    *("StatefulSet", "Deployment", "ReplicaSet", "DaemonSet", "Pod"),
)
_SKYPILOT = {"resources", "setup", "num_nodes", "file_mounts", "workdir"}
_HELM = re.compile(r"\{\{-?\s*(\.|if|range|include|with|end|toYaml|template|define)")
MOST_TEMPLATES = 50
"""The most pod templates of one document that are read."""

_SHELLS = ("bash", "sh", "dash", "ash", "zsh")
_REFERENCE = re.compile(r"\$\(([A-Za-z_][\w.-]*)\)")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})")
_TEMPLATE = re.compile(
    r"(?m)^\s*(?:- *)?(?:image|name|namespace|replicas|parallelism|completions|numNodes|\w+PerNode|[\w.-]+/[\w.-]+):"
    r" *[\"']?\S*\$\{?[A-Za-z_]"
)
"""A `$NAME` in these fields marks a file for envsubst: Kubernetes has no such variables there."""
_PYTORCH = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
_PET = ("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT")
_ELASTIC = (
    *("PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_MAX_RESTARTS", "PET_STANDALONE"),
)
"""Variables that the operator adds with an elasticPolicy."""


@dataclass(frozen=True, slots=True)
class _Template:
    """A pod template of a job: its place in the tree, and the settings of its job."""

    at: At
    pod: Pod


def lines_of_manifest(path: str, text: str, version: Version) -> tuple[tuple[LaunchLine, ...], list[str]]:
    """The launch lines of every document, and why documents could not be read. Helm templates are not read."""
    if _is_helm(text):
        return (), []
    found: list[LaunchLine] = []
    roots, failures = documents(path, text)
    closing = policies(roots)
    for root in roots:
        namespace = text_of(root.get("metadata", "namespace"))
        for template in itertools.islice(_templates(root), MOST_TEMPLATES):
            pod = restricted(template.pod, template.at, namespace, closing) if closing else template.pod
            found += _lines(path, text, replace(template, pod=pod), version)
    return tuple(found), failures


def _is_helm(text: str) -> bool:
    return "{{" in text and _HELM.search(text) is not None


def is_template(text: str) -> bool:
    """A text that Helm or envsubst makes a manifest of: what stands where is not known."""
    return _is_helm(text) or _TEMPLATE.search(text) is not None


def why_no_launch(path: str, text: str) -> str:
    """Why a text that is YAML, or a template of it, gives no launch lines."""
    if _is_helm(text):
        return "a Helm template: judge what `helm template` prints"
    roots, _ = documents(path, text)
    kinds = [kind for root in roots if (kind := text_of(root.get("kind"))) and root.get("apiVersion") is not None]
    known = [kind for kind in kinds if kind in KINDS]
    if known:
        return f"{known[0]} without a launch command: the image decides what it starts"
    if kinds:
        return f"kind {kinds[0]} is not judged by ddpdoctor"
    if any(root.get("run") is not None and _SKYPILOT & {name for name, _ in root.pairs()} for root in roots):
        return "a SkyPilot task in which no launch line was found"
    return "no Kubernetes job in it"


def _templates(root: At) -> Iterator[_Template]:
    kind = text_of(root.get("kind"))
    name = text_of(root.get("metadata", "name"))
    spec = root.get("spec")
    if kind == "List":
        for item in root.items("items"):
            if text_of(item.get("kind")) != "List":
                yield from _templates(item)
        return
    if spec is None:
        return
    if kind == "PyTorchJob":
        yield from _pytorch(spec, name)
    elif kind == "MPIJob":
        workers = number(spec.get("mpiReplicaSpecs", "Worker", "replicas"))
        for role in ("Launcher", "Worker"):
            template = spec.get("mpiReplicaSpecs", role, "template")
            if template is not None:
                yield _Template(template, Pod(Operator.MPIJOB, name, pods=workers, role=role))
    elif kind == "TrainJob":
        trainer = spec.get("trainer")
        if trainer is not None:
            pods = number(trainer.get("numNodes"))
            nproc = text_of(trainer.get("numProcPerNode"))
            yield _Template(trainer, Pod(Operator.TRAINJOB, name, pods=pods, nproc=nproc))
    elif kind in ("JobSet", "TrainingRuntime", "ClusterTrainingRuntime"):
        yield from _jobset(spec if kind == "JobSet" else spec.get("template", "spec"), name, kind)
    elif kind == "Job" and spec.get("tasks") is not None:  # of Volcano
        templates = (each.get("template") for each in spec.items("tasks"))
        yield from (_Template(at, Pod(Operator.POD, name)) for at in templates if at is not None)
    elif kind in ("Job", "CronJob"):
        job = spec if kind == "Job" else spec.get("jobTemplate", "spec")
        if job is not None:
            yield from _job(job, name, Operator.JOB)
    elif kind in ("StatefulSet", "Deployment", "ReplicaSet", "DaemonSet"):
        template = spec.get("template")
        if template is not None:
            service = text_of(spec.get("serviceName"))
            operator = Operator.STATEFULSET if kind == "StatefulSet" else Operator.POD
            pods = number(spec.get("replicas")) if kind == "StatefulSet" else None
            yield _Template(template, Pod(operator, name, pods=pods, service=service))
    elif kind == "Pod":
        yield _Template(root, Pod(Operator.POD, name))


def _pytorch(spec: At, name: str | None) -> Iterator[_Template]:
    roles = [(role, each) for role in ("Master", "Worker") if (each := spec.get("pytorchReplicaSpecs", role))]
    counts = [1 if (at := each.get("replicas")) is None else number(at) for _, each in roles]
    elastic = spec.get("elasticPolicy") is not None
    total = None if None in counts or elastic else sum(c for c in counts if c is not None)
    nproc = text_of(spec.get("nprocPerNode"))
    for role, each in roles:
        template = each.get("template")
        if template is not None:
            yield _Template(template, Pod(Operator.PYTORCHJOB, name, total, role, nproc=nproc, is_elastic=elastic))


def _jobset(spec: At | None, name: str | None, kind: str) -> Iterator[_Template]:
    jobs = list(spec.items("replicatedJobs")) if spec is not None else []
    for each in jobs:
        job = each.get("template", "spec")
        if job is None:
            continue
        copies = 1 if each.get("replicas") is None else number(each.get("replicas"))
        operator = Operator.JOBSET if kind == "JobSet" else Operator.TRAINJOB
        for template in _job(job, name, operator):
            pods = template.pod.pods
            total = None if pods is None or copies is None or kind != "JobSet" or len(jobs) > 1 else pods * copies
            pod = replace(template.pod, pods=total, role=text_of(each.get("name")))
            if kind == "JobSet" and spec is not None:  # the controller makes the service
                domain = text_of(spec.get("network", "subdomain")) or name
                pod = replace(pod, service=template.pod.service or domain)
            yield replace(template, pod=pod)


def _job(job: At, name: str | None, operator: Operator) -> Iterator[_Template]:
    template = job.get("template")
    if template is None:
        return
    parallel, completions = job.get("parallelism"), job.get("completions")
    pods = 1 if parallel is None else number(parallel)
    if completions is not None and number(completions) != pods:
        pods = None  # the pods do not all run at the same time
    service = text_of(template.get("spec", "subdomain"))
    yield _Template(template, Pod(operator, name, pods=pods, service=service))


def _lines(path: str, text: str, template: _Template, version: Version) -> Iterator[LaunchLine]:
    if template.pod.operator is Operator.TRAINJOB and template.at.get("spec") is None:
        pod = replace(template.pod, gpus=gpus_of(template.at, "resourcesPerNode"), has_shm=True, at=template.at.mark)
        yield from _container(path, text, template.at, pod, version)
        return
    spec = template.at.get("spec")
    if spec is None:
        return
    for container in itertools.islice(spec.items("containers"), MOST_TEMPLATES):
        pod = described(template.pod, template.at, spec, container)
        yield from _container(path, text, container, pod, version)


def _container(path: str, text: str, container: At, pod: Pod, version: Version) -> Iterator[LaunchLine]:
    """The lines of one container: its argument list, or the text that it passes to a shell."""
    items = [*container.items("command"), *container.items("args")]
    words = [text_of(item) for item in items]
    if not words or any(word is None for word in words):
        return
    environ, places = _environ(container, pod)
    texts = [_REFERENCE.sub(lambda m: environ.get(m[1], UNKNOWN), word or "") for word in words]
    if _TEMPLATE.search(text):
        texts = [_VARIABLE.sub(UNKNOWN, word) for word in texts]
    shell = _shell_text(texts)
    if shell is not None:
        item = items[shell]
        plain = re.sub(_REFERENCE, lambda m: environ[m[1]] if is_known(environ.get(m[1])) else m[0], words[shell] or "")
        is_exact = plain == words[shell]
        place = item.places(text) if is_exact else lambda at: item.mark
        for line in lines_of_shell(ShellSource(_as_variables(plain, environ), path, environ, version, place=place)):
            yield replace(line, pod=replace(pod, in_shell=True), places={**places, **line.places})
        return
    argv, marks, at = [], [], 0
    for item, word in zip(items, texts, strict=True):
        raw = quote(word.replace(UNKNOWN, "")) if UNKNOWN not in word else text_of(item) or ""
        argv.append(Word(word, raw, at, at + len(raw)))
        marks.append(Mark(item.line, item.column, at))
        at += len(raw) + 1
    if not _is_launch(argv, version, is_whole=container.get("command") is not None):
        return
    source = " ".join(w.raw for w in argv)
    line = line_of(source, argv, environ, version, None, file=path, first_line=items[0].line)
    yield replace(line, first_column=items[0].column, marks=tuple(marks), places=places, pod=pod)


def _is_launch(words: Sequence[Word], version: Version, *, is_whole: bool) -> bool:
    """The words start ranks, or were meant to; arguments alone are passed to the image's program, which may be a shell."""
    layers = parse_layers(words, version)
    if any(each.typos and not starts_ranks(each.launcher) for each in layers):
        return is_whole
    kinds = {each.launcher for each in layers}
    python = any(each.launcher is LauncherKind.PYTHON and each.reading.script is not None for each in layers)
    return python or LauncherKind.MPIRUN in kinds or any(starts_ranks(kind) for kind in kinds)


def _shell_text(words: Sequence[str]) -> int | None:
    """The index of the text in `sh -c TEXT`; None if the words are not a shell command."""
    if words[0].rpartition("/")[2] not in _SHELLS:
        return None
    for i, word in enumerate(words[1:-1], 1):
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            j = i + 1
            while j < len(words) - 1 and re.fullmatch(r"-\w+|pipefail|--", words[j]):
                j += 1
            return j
    return None


def _as_variables(text: str, environ: Mapping[str, str]) -> str:
    """Kubernetes expands `$(NAME)` before the shell runs; an unknown one becomes a variable of the same length.

    Anything that is not a variable of the container (`$(hostname)`) is left to the shell.
    """
    return _REFERENCE.sub(lambda m: "${" + m[1] + "}" if m[1] in environ else m[0], text)


def _environ(container: At, pod: Pod) -> tuple[dict[str, str], dict[str, Mark]]:
    """The container's variables with those of the operator, and where the manifest sets them."""
    environ: dict[str, str] = {}
    places: dict[str, Mark] = {}
    if pod.operator is Operator.PYTORCHJOB:
        environ |= dict.fromkeys((*_PYTORCH, *_PET, *(_ELASTIC if pod.is_elastic else ())), UNKNOWN)
    elif pod.operator is Operator.TRAINJOB:
        environ |= dict.fromkeys(_PET, UNKNOWN)
    for each in container.items("env"):
        name = text_of(each.get("name"))
        value = each.get("value")
        if name is None:
            continue
        known = text_of(value) if value is not None else UNKNOWN if each.get("valueFrom") else ""
        environ[name] = _expanded(UNKNOWN if known is None else known, environ)
        places[name] = (value or each).mark
    if container.get("envFrom") is not None:
        environ = dict.fromkeys((*_PET, *_ELASTIC, *_PYTORCH), UNKNOWN) | environ
    return environ, places


def _expanded(value: str, environ: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda m: environ.get(m[1], m[0]), value)
