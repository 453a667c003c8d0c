"""`launch`: the launch lines of a job, one per node, or the lines of a file."""

from __future__ import annotations

from dataclasses import field

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gaps import Gap, Section
from ddpdoctor.facts.launch.layer import Layer, starts_ranks
from ddpdoctor.facts.launch.plan import Plan
from ddpdoctor.facts.launch.pod import Pod
from ddpdoctor.facts.launch.programs import UNREAD, LauncherKind
from ddpdoctor.facts.launch.reading import Given
from ddpdoctor.facts.launch.words import Mark, Word
from ddpdoctor.facts.torchrun_options import NEWEST, Version, version_of
from ddpdoctor.light_dataclass import dataclass

__all__ = ["Launch", "LaunchLine", "StartedScript"]


@dataclass(frozen=True, slots=True)
class MissingFile:
    """An option whose file does not exist; `kind` is what is there instead, such as "a named pipe"."""

    given: Given
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class StartedScript:
    """The training script of a line, with what matters for the line. None: not examined.

    `path` is where the launcher looks for it, `kind` what is there instead of a file, such as "a folder".
    `local_rank` are the spellings of the option that its parser declares.
    `ignores_unknown`: its parser ignores options that it does not know. `spawns`: it starts ranks itself (mp.spawn).
    `reads` are the variables of launchers and schedulers that it reads, `sets` those that it assigns. `initialises`:
    it joins the process group through the environment, whatever starts it. `declares` are the options of its own
    parser, `similar` an existing script with a similar name. `trainer_devices` and `trainer_nodes` are arguments of
    Lightning's Trainer. `backend` is the literal backend of a process group that it joins, whatever starts it,
    `workers` the most num_workers of its DataLoaders, `takes_gpu_of_local_rank`: it selects the GPU with the number
    of its local rank. `takes_master`: it joins a process group whose address is in the environment.
    `requires` are the variables without which every start of it fails.
    """

    path: str
    exists: bool | None = None
    kind: str | None = None
    is_executable: bool | None = None
    has_shebang: bool | None = None
    is_python: bool | None = None
    local_rank: tuple[str, ...] = ()
    local_rank_required: bool = False
    local_rank_used: bool = False
    ignores_unknown: bool = False
    spawns: bool = False
    reads: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    initialises: bool = False
    declares: tuple[str, ...] = ()
    similar: str | None = None
    frameworks: tuple[str, ...] = ()
    trainer_devices: int | None = None
    trainer_nodes: int | None = None
    nccl: bool = False
    backend: str | None = None
    workers: int = 0
    takes_gpu_of_local_rank: bool = False
    takes_master: bool = False
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """One launch line. `source` is its text, in which the spans of words count; `argv` are its words.

    `first_line` and `first_column` (from 1) are where `source` begins in `file`. `node` is the index of a `--node`
    line. `environ` is the environment of the innermost launcher, `cwd` its working folder (None: unknown). `batch`
    are the options of the sbatch file around it, as the layer of an `sbatch` command; `plan` are the settings of its
    torchrun, `config` the top level of accelerate's --config_file (None: not read). `known` are the variables of a
    shell file that `source` uses and whose values are certain there. `before` are effects of earlier commands:
    `memlock` (the argument of ulimit -l), `torch` (`cpu`: its build without CUDA was installed), `removed` (arguments
    of rm). `carriage_return` is the first row of its shell file that bash runs and that ends in a carriage return,
    None without one. `hostfile` is the text of the hostfile that mpirun or deepspeed is given, None if it is not read.
    `preceding` are the commands that its shell runs before it, as in `Layer`. `slots` are the hosts that its deepspeed uses of
    a host file, with the number of their GPUs (None: not read). `missing_files` are its launchers' options whose file does not
    exist.
    """

    source: str
    argv: tuple[Word, ...] = ()
    layers: tuple[Layer, ...] = ()
    environ: Environ = field(default_factory=Environ)
    cwd: str | None = None
    file: str | None = None
    first_line: int = 1
    first_column: int = 1
    node: int | None = None
    host: str | None = None
    script: StartedScript | None = None
    batch: Layer | None = None
    plan: Plan | None = None
    is_background: bool = False
    config: dict[str, str] | None = None
    known: dict[str, str] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    places: dict[str, Mark] = field(default_factory=dict)
    pod: Pod | None = None
    carriage_return: int | None = None
    preceding: tuple[str, ...] = ()
    hostfile: str | None = None
    slots: dict[str, int] | None = None
    missing_files: tuple[MissingFile, ...] = ()

    @property
    def agent(self) -> Layer | None:
        """The innermost torchrun (or `torch.distributed.launch`) of the line."""
        return self._innermost((LauncherKind.TORCHRUN, LauncherKind.LEGACY))

    @property
    def program(self) -> Layer | None:
        """The innermost layer of all."""
        return self.layers[-1] if self.layers else None

    @property
    def starter(self) -> Layer | None:
        """The innermost layer that starts the ranks of a node."""
        return next((layer for layer in reversed(self.layers) if starts_ranks(layer.launcher)), None)

    @property
    def task_starter(self) -> Layer | None:
        """The srun, mpirun or jsrun around it, which starts one copy per task."""
        return self._innermost((LauncherKind.SRUN, LauncherKind.MPIRUN, LauncherKind.JSRUN))

    def layer(self, launcher: LauncherKind) -> Layer | None:
        """The innermost layer of this kind."""
        return self._innermost((launcher,))

    @property
    def unread(self) -> tuple[Layer, ...]:
        """Launchers around it whose own options are not judged."""
        return tuple(layer for layer in self.layers if layer.launcher in UNREAD)

    def _innermost(self, launchers: tuple[LauncherKind, ...]) -> Layer | None:
        for layer in reversed(self.layers):  # called by every rule for every line: no generator
            if layer.launcher in launchers:
                return layer
        return None

    def place(self, at: int) -> tuple[int, int]:
        """Line and column, from 1, of an index in `source`; in the file for a line of a file."""
        mark = next((m for m in reversed(self.marks) if m.at <= at), None)
        if mark is not None:
            return mark.line, mark.column + at - mark.at
        before = self.source[:at]
        row = before.count("\n")
        column = len(before) - (before.rfind("\n") + 1) + 1
        return self.first_line + row, column + (self.first_column - 1 if row == 0 else 0)


@dataclass(frozen=True, slots=True)
class Launch(Section):
    """The launch: its lines, and the torch that decides how they are read.

    `torch` is a version such as `2.13.0`, `torch_from` one of `installed`, `source` (newer than our table; its own
    source was read), `option`, `assumed`; `python` is the version of the Python that runs the launcher. Several lines
    with a `node` are the nodes of one job, in their order.
    """

    lines: tuple[LaunchLine, ...] = ()
    torch: str = f"{NEWEST[0]}.{NEWEST[1]}"
    torch_from: str = "assumed"
    python: str = ""
    gaps: tuple[Gap, ...] = ()

    @property
    def version(self) -> Version:
        """Major and minor of `torch`."""
        return version_of(self.torch) or NEWEST

    @property
    def nodes(self) -> tuple[LaunchLine, ...]:
        """The lines of one job, one per node: those of `--node`. Fewer than two if nothing can be compared."""
        return tuple(line for line in self.lines if line.node is not None)
