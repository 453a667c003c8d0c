"""`submission`: what one job file starts, on which hosts, and what its scheduler gives it."""

from __future__ import annotations

from dataclasses import field

from ddpdoctor.facts.job import Job
from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.record import LaunchLine, StartedScript
from ddpdoctor.facts.launch.words import Mark
from ddpdoctor.facts.refused import Refused
from ddpdoctor.facts.shell_text import ShellText, TextSpan
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "ClusterService",
    "ComposeHost",
    "GpuDemand",
    "Grant",
    "Launcher",
    "OtherProgram",
    "Part",
    "PodSet",
    "PyTorchJobSpec",
    "RayGroup",
    "RayStart",
    "RaySubmit",
    "RestartPolicy",
    "Step",
    "Submission",
    "Task",
    "VolcanoNames",
    "WordList",
]

_NOWHERE = TextSpan(0, 0)


@dataclass(frozen=True, slots=True)
class Launcher:
    """What puts programs on hosts: srun, mpirun, jsrun, flux, ssh, deepspeed. `places` are where its options stand.

    `slots` are the processes that all its hosts take, where its options limit them; `refused` is a row of its host file
    that it does not read.
    """

    name: str
    at: Mark
    hosts: tuple[str, ...] = ()
    tasks: int = 1
    places: dict[str, Mark] = field(default_factory=dict)
    slots: int | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One program on one imagined host: a launcher of ranks, or a rank.

    `line` has its words, environment and settings, with marks that point into the file. `node`, `number` and `local` are
    those of its launcher; `gpus` how many GPUs it sees (None: unknown). `via` are the names of the launchers around it.
    `withheld` are variables that the file sets and a launcher does not pass on, with the place and the name of what drops
    them; `missed` are those that a text around it expands. `ranks` is how many ranks it starts, `slots` are the hosts and
    GPUs of a host file that it reads, `active` how many GPUs of each host it uses. `varying` are the words that differ in
    each job of an array, by their index. `of_process` are those that were made of
    something that differs per process, such as SLURM_PROCID. `trainer` are devices and num_nodes that LightningCLI gets from
    its words or their configuration file. `set_at` is where the file sets variables of its environment.
    something that differs per process, such as SLURM_PROCID. `set_at` is where the file sets variables of its environment.
    `span` is where a shell file starts it, `fixed_port` the port that it uses in every run of the file.
    """

    line: LaunchLine
    layer: Layer
    host: str
    node: int
    number: int = 0
    local: int = 0
    gpus: int | None = None
    via: tuple[str, ...] = ()
    launcher: Launcher | None = None
    withheld: dict[str, tuple[Mark, str]] = field(default_factory=dict)
    missed: tuple[str, ...] = ()
    ranks: int | None = None
    slots: dict[str, int] | None = None
    active: dict[str, int] | None = None
    varying: tuple[int, ...] = ()
    of_process: tuple[int, ...] = ()
    script: StartedScript | None = None
    trainer: dict[str, int] = field(default_factory=dict)
    set_at: dict[str, Mark] = field(default_factory=dict)
    span: TextSpan = _NOWHERE
    fixed_port: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one statement, or one loop of background statements, starts on all hosts, in the order of the file.

    `source` numbers the statement as written: two passes of a loop have the same.
    """

    tasks: tuple[Task, ...]
    job: Job
    is_certain: bool = True
    is_background: bool = False
    source: int = 0

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its tasks, each once."""
        return tuple(dict.fromkeys(task.host for task in self.tasks))


@dataclass(frozen=True, slots=True)
class Part:
    """One component of a heterogeneous job."""

    hosts: tuple[str, ...] = ()
    gpus: int | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What the scheduler gives the job; None where the file does not say it.

    `scheduler` is its name, "" without one. `tasks` and `tasks_per_node` are those that the file asks for. `is_array`:
    several jobs of the file run at the same time, on nodes that others share unless `takes_whole_nodes`. `parts` are the
    components of a heterogeneous job. `batch_host` runs the script, and no rank; `submit_host`
    is what the scheduler names as the host of the submission. `places` are where its options stand.
    """

    scheduler: str = ""
    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None
    is_array: bool = False
    takes_whole_nodes: bool = False
    batch_host: str = ""
    submit_host: str = ""
    parts: tuple[Part, ...] = ()
    places: dict[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterService:
    """A Service of a manifest, and the pods of the manifest that it leads to.

    `pods` are those whose labels fit its selector, None where that is not known; `is_headless`: its name gives the pods'
    own addresses. `ports` are (port, target) as numbers, in order; the marks are places in the file, `ip_at` of its cluster IP.
    """

    name: str
    pods: tuple[str, ...] | None = None
    is_headless: bool = False
    ports: tuple[tuple[int, int], ...] = ()
    at: Mark | None = None
    ip_at: Mark | None = None
    selector_at: Mark | None = None
    ports_at: Mark | None = None


@dataclass(frozen=True, slots=True)
class PodSet:
    """The pods of a Job or StatefulSet: how many run at a time of those that it needs; `at` is where that is written.

    `is_ordered`: the next pod starts when the one before is ready, which its readiness probe decides.
    """

    pods: tuple[str, ...]
    at_once: int
    needed: int
    at: Mark
    is_ordered: bool = False


@dataclass(frozen=True, slots=True)
class PyTorchJobSpec:
    """A PyTorchJob: its roles without a container called pytorch (role, name of the first container, its place), and the
    least workers of its elasticPolicy (None: none) beside the workers that it starts.
    """

    nameless: tuple[tuple[str, str, Mark], ...] = ()
    least: int | None = None
    workers: int | None = None
    least_at: Mark | None = None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The restartPolicy of the pods of an object: its kind, its name, the policy ("" where none is written), and its place."""

    kind: str
    name: str
    policy: str
    at: Mark


@dataclass(frozen=True, slots=True)
class VolcanoNames:
    """A Volcano Job without the plugin `svc`, whose pods use a variable that only this plugin sets: the first such variable,
    and the place of the plugins, or of the Job.
    """

    name: str
    variable: str
    at: Mark


@dataclass(frozen=True, slots=True)
class ComposeHost:
    """A service of a Compose file: its names, its networks, the GPUs that it reserves by their ids, and the places of both.

    `host` is the name of its imagined host. `networks` is None where it is on the network of the machine, or of another
    container.
    """

    host: str
    names: tuple[str, ...]
    networks: frozenset[str] | None
    at: Mark
    devices: tuple[str, ...] = ()
    devices_at: Mark | None = None


@dataclass(frozen=True, slots=True)
class RayGroup:
    """The pods of one group of a Ray cluster: the GPUs that Ray is told of (None: those of the container), and those that the
    container has. `pods` is how many it has at most, None where that is not known. `cluster` is the name of its object.
    """

    told: int | None
    gpus: int
    at: Mark
    pods: int | None = None
    cluster: str = ""


@dataclass(frozen=True, slots=True)
class RayStart:
    """One `ray start` on an imagined host.

    `address` and `port` are what a worker connects to, None where they are not known; for a head, `port` is its own.
    `told` are its `--num-gpus`, `gpus` those of its host. `blocks`: it stays in the foreground, or a shell around it may.
    `starter` is the program that put it on its host, "" without one. `is_alone`: no shell around it runs anything else.
    `places` are where its options stand.
    """

    host: str
    is_head: bool
    at: Mark
    address: str | None = None
    port: int | None = None
    told: int | None = None
    gpus: int | None = None
    blocks: bool = False
    starter: str = ""
    is_certain: bool = True
    is_background: bool = False
    is_alone: bool = True
    places: dict[str, Mark] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """The GPUs that a program of Ray or vLLM asks for by its own options: on `host`, `text` are the options."""

    host: str
    gpus: int
    text: str
    at: Mark


@dataclass(frozen=True, slots=True)
class OtherProgram:
    """A program that is no launcher and no rank: its name, and what puts it on its host. `at` is where the hosts of the
    starter are listed, or else the starter.
    """

    name: str
    at: Mark
    starter: str


@dataclass(frozen=True, slots=True)
class RaySubmit:
    """`ray job submit` with an address: its scheme and port, and where it stands."""

    scheme: str
    host: str
    port: int | None
    at: Mark


@dataclass(frozen=True, slots=True)
class WordList:
    """A command that no shell reads: `words` of a Dockerfile's CMD or ENTRYPOINT, and the variables that they name."""

    instruction: str
    words: tuple[str, ...]
    names: tuple[str, ...]
    at: Mark


@dataclass(frozen=True, slots=True)
class Submission:
    """One job file. `is_awaited`: after its last background statement it waits, or starts something in the foreground.

    `names` are all names that resolve between its hosts, None where others may. `domains` are the subdomains of pods by
    their names, "" for a pod without one. `host_resolved` are the pods that resolve names by the DNS of their machine, with
    the place that makes them do so. `word_lists` are those of a Dockerfile. `is_submitting`: its shell submits the jobs.
    `shell` is the text of a shell or batch file, None for other files. `refused` are settings that their readers refuse.
    """

    file: str
    steps: tuple[Step, ...] = ()
    grant: Grant = field(default_factory=Grant)
    is_awaited: bool = True
    services: tuple[ClusterService, ...] = ()
    names: frozenset[str] | None = None
    word_lists: tuple[WordList, ...] = ()
    pod_sets: tuple[PodSet, ...] = ()
    restart_policies: tuple[RestartPolicy, ...] = ()
    volcano_names: tuple[VolcanoNames, ...] = ()
    compose_hosts: tuple[ComposeHost, ...] = ()
    ray_groups: tuple[RayGroup, ...] = ()
    pytorch_jobs: tuple[PyTorchJobSpec, ...] = ()
    ray_starts: tuple[RayStart, ...] = ()
    ray_submits: tuple[RaySubmit, ...] = ()
    demands: tuple[GpuDemand, ...] = ()
    programs: tuple[OtherProgram, ...] = ()
    domains: dict[str, str] = field(default_factory=dict)
    host_resolved: dict[str, Mark] = field(default_factory=dict)
    is_submitting: bool = False
    refused: tuple[Refused, ...] = ()
    shell: ShellText | None = None

    @property
    def text(self) -> str:
        """The text of a shell or batch file; "" for other files."""
        return "" if self.shell is None else self.shell.text

    @property
    def tasks(self) -> tuple[Task, ...]:
        """All that it starts, in the order of the file."""
        return tuple(task for step in self.steps for task in step.tasks)
