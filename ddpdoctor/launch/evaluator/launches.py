"""What a job file starts: every program on every imagined host, through srun, mpirun, ssh, shells and wrappers."""

from __future__ import annotations

import itertools
import posixpath
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import REMOTE, LauncherKind
from ddpdoctor.facts.launch.words import UNKNOWN, Word, quote
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.batch_jobs import batch_job, other_batch_job
from ddpdoctor.launch.evaluator.cluster import MOST_NODES, Allocation, gpus_of, host_list, number_of, option
from ddpdoctor.launch.evaluator.imagined_run import (
    ImaginedRun,
    Launched,
    MissingVariables,
    Place,
    StartedProgram,
    Starter,
    Withheld,
)
from ddpdoctor.launch.evaluator.machine import ImaginedMachine
from ddpdoctor.launch.evaluator.schedulers import allocation_of_script
from ddpdoctor.launch.evaluator.shell import Budget, Shell, StartedCommand
from ddpdoctor.launch.evaluator.tools import host_names
from ddpdoctor.launch.evaluator.trainer_settings import trainer_sizes
from ddpdoctor.launch.evaluator.values import NODE, NOT_KNOWN, TASK, Origin, Value, joined, text_value
from ddpdoctor.launch.evaluator.variables import ShellVariable, Variables
from ddpdoctor.launch.hostfiles import deepspeed_pool, selected, slots_of_hosts
from ddpdoctor.launch.layers import parse_layers
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.launch.program_names import SHELLS
from ddpdoctor.launch.sbatch import option_places
from ddpdoctor.light_dataclass import dataclass

__all__ = ["PlacedCommand", "run_job_file", "run_placed"]

MOST_LAUNCHED = 1_024
"""Programs on imagined hosts that are kept."""
MOST_TASKS = 1_024
DEEPEST = 8
"""Launchers within launchers."""

_LEAVES = (
    LauncherKind.TORCHRUN,
    LauncherKind.LEGACY,
    LauncherKind.ACCELERATE,
    LauncherKind.DEEPSPEED,
    LauncherKind.PYTHON,
)


@dataclass(frozen=True, slots=True)
class PlacedCommand:
    """A command that something else than a shell starts on an imagined host.

    `allocation` are the hosts that its mpirun finds, `files` what can be read there. `inside` says where the characters of
    a text that its shells execute were written.
    """

    place: Place
    argv: tuple[Value, ...]
    environ: Mapping[str, Value]
    origin: Origin
    folder: str | None = None
    allocation: Allocation = field(default_factory=Allocation)
    files: FileLookup = NO_FILES
    inside: Mapping[str, Callable[[int, int], Origin]] = field(default_factory=dict)


def run_placed(command: PlacedCommand, version: Version, budget: Budget) -> ImaginedRun:
    """Execute a command on its host; each statement of its shells is a group."""
    runner = _Runner(command.allocation, version, command.files, budget, command.inside)
    return runner.run_command(command)


def run_job_file(
    text: str,
    file: str,
    environ: Mapping[str, str],
    version: Version,
    folder: str | None,
    files: FileLookup = NO_FILES,
) -> ImaginedRun:
    """Execute a shell or sbatch file on an imagined cluster."""
    allocation = allocation_of_script(text, file, environ, version)
    return _Runner(allocation, version, files).run(text, file, environ, folder)


@dataclass(frozen=True, slots=True)
class _Starting:
    """A launcher of tasks: its values, the words and the layer that they make, the command behind it, its environment."""

    argv: Sequence[Value]
    words: Sequence[Word]
    layer: Layer
    inner: Sequence[Value]
    environ: Mapping[str, Value]
    folder: str | None = None

    def places(self) -> dict[str, Origin]:
        """Where each option of the launcher is written."""
        at = {word.start: value.origins[0] for word, value in zip(self.words, self.argv, strict=True) if value.origins}
        found = {given.flag: at[given.word.start] for given in self.layer.reading.given if given.word.start in at}
        plain = {word.text.partition("=")[0]: at[word.start] for word in self.layer.own[1:] if word.start in at}
        return {**{name: origin for name, origin in plain.items() if name.startswith("-")}, **found}

    def value_of(self, written: Word, text: str) -> Value:
        """A text of this word, with its place."""
        pairs = zip(self.words, self.argv, strict=True)
        return next((each.with_text(text) for word, each in pairs if word.start == written.start), Value(text))

    def value(self, text: str) -> Value:
        """A text of one of its words, with the place of the word."""
        return next((each.with_text(text) for each in self.argv if text and text in each.text), Value(text))


@dataclass(frozen=True, slots=True)
class _Task:
    """One task that a launcher starts: its host, its numbers, the GPUs that it sees, its own variables."""

    host: str
    node: int
    number: int
    local: int
    gpus: int | None
    environ: Mapping[str, Value]


_Layout = tuple[list[_Task], dict[str, Value], dict[str, Withheld]]
"""The tasks, the environment that all get, and what other hosts do not get of it."""


class _Runner:
    """One execution of one file."""

    def __init__(
        self,
        allocation: Allocation,
        version: Version,
        files: FileLookup,
        budget: Budget | None = None,
        inside: Mapping[str, Callable[[int, int], Origin]] | None = None,
    ) -> None:
        self._allocation = allocation
        self._version = version
        self._files = files
        self._budget = Budget() if budget is None else budget
        self._inside = inside or {}
        self._found = ImaginedRun(allocation=allocation)
        self._variables: dict[int, ShellVariable] = {}
        self._others: dict[str, int] = {}
        self._written: dict[str, str | None] = dict(allocation.texts)
        self._written_at_places: dict[str, tuple[Origin, ...]] = {}
        self._group = 0
        self._source, self._file = "", ""

    def run(self, text: str, file: str, environ: Mapping[str, str], folder: str | None) -> ImaginedRun:
        allocation = self._allocation
        unset = _OF_MPI_TASKS - environ.keys() if _STARTS_MPI.search(text) else frozenset()
        if _STARTS_FLUX.search(text):
            unset |= {"FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"} - environ.keys()
        place = Place(
            allocation.hosts[0], 0, gpus=allocation.gpus_per_node, cpus=allocation.cpus_per_task, unset=frozenset(unset)
        )
        if not allocation.scheduler and _SUBMITS.search(text):
            place = replace(place, hostname="login-node")
        outside = {name: Value(value) for name, value in environ.items()}
        given = allocation.environ()
        if folder is not None:  # taken to be submitted from the folder of the file
            given |= {name: Value(folder) for name in _SUBMIT_FOLDERS & given.keys()}
        shell = self._shell(place, {**outside, **given}, folder)
        if folder is not None and "PWD" not in environ:
            shell.variables.assign("PWD", Value(folder))
        shell.name = Value(file)
        shell.invoked = self._found.invoked
        self._source, self._file = text, file
        shell.run(text, lambda start, end: Origin(file, start, end))
        for command in shell.started:
            self._group += 1
            self._expand(command, command.argv, command.environ, place, 0)
        self._found.left_out += self._budget.described(file, text)
        return self._found

    def run_command(self, command: PlacedCommand) -> ImaginedRun:
        started = StartedCommand(command.argv, dict(command.environ), command.folder, command.origin)
        self._expand(started, command.argv, command.environ, command.place, 0)
        return self._found

    def _shell(self, place: Place, environ: Mapping[str, Value], folder: str | None) -> Shell:
        machine = ImaginedMachine(
            host=place.host if place.hostname is None else place.hostname,
            address=f"10.0.{place.node // 250}.{place.node % 250 + 1}",
            gpus=place.gpus,
            cpus=place.cpus,
            identity=f"{place.via} {place.task}",
            nodelist=self._allocation.hosts,
            is_fixed=False,
            files=self._files,
            written=self._written,
            written_at=self._written_at_places,
            step=lambda argv: self._printed_by_step(argv, place),
        )
        named = {name: self._as_variable(value) for name, value in environ.items()}
        named["HOSTNAME"] = ShellVariable(Value(machine.host, varies=machine.varies), is_exported=True)
        shell = Shell(machine, self._budget, Variables(named, set(place.unset)))
        shell.folder = folder
        return shell

    def _as_variable(self, value: Value) -> ShellVariable:
        """The exported variable with this value: the same object for all tasks that get it."""
        known = self._variables.get(id(value))
        if known is None or known.value is not value:
            known = self._variables[id(value)] = ShellVariable(value, is_exported=True)
        return known

    def _printed_by_step(self, argv: Sequence[Value], place: Place) -> tuple[Value, int | None] | None:
        """What a job step of one task prints, such as `srun -N1 -n1 -w HOST hostname -i`; None: it is started."""
        words = _words(argv)
        layers = parse_layers(words, self._version, {})
        inner = self._inner(argv, words, layers[0]) if layers else ()
        if not inner or not _is_printed(inner[0].text) or layers[0].launcher is not LauncherKind.SRUN:
            return None
        hosts, tasks = self._step(layers[0])
        printed = []
        for task in range(min(tasks, MOST_TASKS)):
            node, _ = _placed(task, tasks, len(hosts))
            number = self._allocation.hosts.index(hosts[node]) if hosts[node] in self._allocation.hosts else node
            there = replace(place, host=hosts[node], node=number)
            shell = self._shell(there, {}, None)
            answer = shell.machine.output(inner, None, None)
            if answer is None:
                return None
            printed.append(answer[0])
        value = joined(printed)
        is_chosen = len(hosts) == 1  # every process gets the same host, so the value does not differ between nodes
        return replace(value, varies=value.varies - {NODE} if is_chosen else value.varies), 0

    def _expand(
        self, command: StartedCommand, argv: Sequence[Value], environ: Mapping[str, Value], place: Place, depth: int
    ) -> None:
        """Follow a command through everything that only starts another one."""
        if not argv or depth > DEEPEST or len(self._found.launched) >= MOST_LAUNCHED:
            return
        if argv[0].text.rpartition("/")[2] in SHELLS:
            self._nested_shell(command, argv, environ, place, depth)
            return
        words = _words(argv)
        layers = parse_layers(words, self._version, {})
        if not layers:
            return
        first = layers[0]
        name = first.name
        inner = self._inner(argv, words, first)
        own = {
            variable.name: self._value_of(variable.word, argv, words, variable.value) for variable in first.variables
        }
        environ = {**environ, **own}
        if name in SHELLS:
            self._nested_shell(command, argv, environ, place, depth)
        elif (script := self._own_script(argv[0], command.folder)) is not None:
            self._run_text(command, script, argv, environ, place, depth)
        elif name == "qsub" or (name == "flux" and [word.text for word in words[1:2]] in (["batch"], ["alloc"])):
            behind = argv[1 + (name == "flux") :]
            self._submit(command, _Starting(argv, words, first, behind, environ, command.folder), place, depth)
        elif name in REMOTE:
            self._remote(command, argv, first, environ, place, depth)
        elif first.launcher in _ON_HOSTS:
            self._on_hosts(command, _Starting(argv, words, first, inner, environ, command.folder), place, depth)
        elif first.launcher is LauncherKind.CONTAINER:
            self._expand(command, inner, environ if _keeps_environ(first) else own, place, depth + 1)
        elif first.launcher in (LauncherKind.SBATCH, LauncherKind.SALLOC):
            self._submit(command, _Starting(argv, words, first, inner, environ, command.folder), place, depth)
        elif first.launcher in _LEAVES:
            self._leaf(command, argv, words, environ, place, first)
        elif inner and first.launcher is LauncherKind.WRAPPER:
            self._expand(command, inner, self._as_env_says(first, environ), place, depth + 1)
        elif len(self._found.programs) < MOST_LAUNCHED:
            self._found.programs.append(
                StartedProgram(
                    place,
                    tuple(argv),
                    command.origin,
                    command.is_certain,
                    command.is_background,
                    is_alone=bool(place.via) and command.argv[0] is not argv[0],
                )
            )

    def _inner(self, argv: Sequence[Value], words: Sequence[Word], layer: Layer) -> tuple[Value, ...]:
        """The words after those of a wrapper."""
        last = layer.own[-1] if layer.own else layer.program
        at = next((i for i, word in enumerate(words) if word is last or word == last), -1)
        return tuple(argv[at + 1 :]) if at >= 0 else ()

    def _value_of(self, word: Word, argv: Sequence[Value], words: Sequence[Word], text: str) -> Value:
        at = next((i for i, each in enumerate(words) if each == word), None)
        return Value(text) if at is None else argv[at].with_text(text)

    def _as_env_says(self, layer: Layer, environ: Mapping[str, Value]) -> Mapping[str, Value]:
        """`env -i`, `env -u NAME`."""
        if layer.name != "env":
            return environ
        if any(given.flag in ("-i", "--ignore-environment", "-") for given in layer.reading.given):
            return {variable.name: environ[variable.name] for variable in layer.variables}
        gone = {given.value for given in layer.reading.given if given.flag in ("-u", "--unset")}
        return {name: value for name, value in environ.items() if name not in gone}

    def _nested_shell(
        self, command: StartedCommand, argv: Sequence[Value], environ: Mapping[str, Value], place: Place, depth: int
    ) -> None:
        """`bash -c 'text' name arguments`, `bash file arguments`."""
        texts = [value.text for value in argv]
        at = 1
        while at < len(texts) and texts[at].startswith(("-", "+")) and len(texts[at]) > 1:
            if "c" in texts[at] and not texts[at].startswith("--"):
                break
            at += 2 if texts[at] in ("-o", "-O", "+o") else 1
        if at >= len(texts):
            if command.stdin is not None and command.stdin.text.replace(UNKNOWN, "").strip():
                self._run_text(command, command.stdin, [], environ, place, depth)
            return
        if texts[at].startswith("-"):
            if at + 1 < len(argv):
                self._run_text(command, argv[at + 1], argv[at + 2 :], environ, place, depth)
            return
        text = self._read_script(argv[at], command.folder)
        if text is None:
            self._budget.leave_out(command.origin, f"{texts[at].replace(UNKNOWN, '…')}: not read")
            return
        self._run_text(command, text, argv[at:], environ, place, depth)

    def _read(self, path: str, folder: str | None) -> str | None:
        """A file that the job has written, or one that is there; None where a piece of it is unknown."""
        text = self._read_all(path, folder)
        return None if text is None or UNKNOWN in text else text

    def _read_all(self, path: str, folder: str | None) -> str | None:
        """The same with its unknown pieces, for a shell that executes it."""
        full = _path(path, folder)
        return self._written[full] if full in self._written else self._files.text(full)

    def _own_script(self, program: Value, folder: str | None) -> Value | None:
        """The text of a shell script that is run by its path, `./wrapper.sh`; None for every other program."""
        text = self._read_script(program, folder) if "/" in program.text else None
        return text if text is not None and _SHELL_SCRIPT.match(text.text) else None

    def _read_script(self, path: Value, folder: str | None) -> Value | None:
        """The text of a file with the place where the job file writes it, else that of the word that names it."""
        text = self._read_all(path.text, folder) if path.is_known else None
        origins = self._written_at_places.get(_path(path.text, folder), ())
        return None if text is None else Value(text, origins or path.origins)

    def _run_text(
        self,
        command: StartedCommand,
        text: Value,
        arguments: Sequence[Value],
        environ: Mapping[str, Value],
        place: Place,
        depth: int,
    ) -> None:
        used = {name for name in place.withheld if _expands(text.text, name)}
        place = replace(place, missed=place.missed | used) if used else place
        private = command.private - environ.keys()
        shell = self._shell(replace(place, unset=place.unset | private), environ, command.folder)
        shell.variables.private = private
        shell.stdin = command.stdin
        if arguments:
            shell.name, shell.positional = arguments[0], list(arguments[1:])
        origin = text.origins[0] if text.origins else command.origin
        shell.run(text.text, self._inside.get(text.text) or self._written_at(text) or (lambda start, end: origin))
        if shell.variables.missed:
            names = tuple(shell.variables.missed)
            self._found.missing.append(MissingVariables(names, command.origin, place.via, command.is_certain))
        for started in shell.started:
            if not place.via:  # on one host its statements run one after the other
                self._group += 1
            certain = replace(
                started,
                order=command.order,
                private=started.private | command.private,
                is_certain=started.is_certain and command.is_certain,
                is_background=started.is_background or command.is_background,
            )
            self._expand(certain, started.argv, started.environ, place, depth + 1)

    def _written_at(self, text: Value) -> Callable[[int, int], Origin] | None:
        """Where the characters of a text are: of `bash -c '…'` exactly, of a here-document with expansions by its rows."""
        whole = text.origins[0] if text.origins and text.text else None
        if whole is None or whole.file != self._file:
            return None
        at = self._source.find(text.text, whole.start, whole.end) if len(text.origins) == 1 else -1
        if at >= 0:
            return lambda start, end: Origin(whole.file, at + start, at + end)
        written = self._source[whole.start : whole.end]
        ends = [each.end() for each in _ROW_END.finditer(written)]
        if len(ends) != text.text.count("\n") or len(ends) < 2:
            return None
        rows = [whole.start, *(whole.start + end for end in ends)]
        breaks = [each.start() for each in re.finditer("\n", text.text)]

        def row_of(start: int, end: int) -> Origin:
            row = bisect_left(breaks, start)
            last = self._source.find("\n", rows[row])
            begin = rows[row] + len(self._source[rows[row] : last]) - len(self._source[rows[row] : last].lstrip())
            return Origin(whole.file, begin, max(begin, last))

        return row_of

    def _remote(
        self,
        command: StartedCommand,
        argv: Sequence[Value],
        layer: Layer,
        environ: Mapping[str, Value],
        place: Place,
        depth: int,
    ) -> None:
        """`ssh HOST text`, `pdsh -w HOSTS text`: another host, and nothing of this environment unless LSF passes it on."""
        texts = [value.text for value in argv]
        named, rest = _remote_words(texts, layer.name)
        if layer.name in _ONE_HOST and named is None:
            if not rest:
                return
            hosts, rest = [argv[rest[0]].with_text(texts[rest[0]].rpartition("@")[2])], rest[1:]
        elif layer.name == "pbsdsh" and named is None:
            hosts = [Value(name) for name in self._allocation.hosts]
        else:
            hosts = [Value(name) for each in (named or "").split() for name in host_names(each) or ()]
        text = joined((argv[at] for at in range(rest[0], len(argv))), " ") if rest else Value()
        known = {name: at for at, name in enumerate(self._allocation.hosts)}
        keeps = layer.name == "blaunch" or (layer.name == "qrsh" and "-V" in texts)
        for number, host in enumerate(hosts[:MOST_NODES]):
            node = known.get(host.text, number if len(hosts) > 1 else self._number_of(host.text))
            own = text
            if layer.name in ("pdsh", "clush"):  # pdsh puts these into each command
                own = text.with_text(text.text.replace("%h", host.text).replace("%n", str(number)))
            starter = Starter(layer.name, _origin(argv[0], command), tuple(each.text for each in hosts))
            there = replace(place, host=host.text, node=node, via=(*place.via, layer.name), starter=starter)
            private = command.private | {name for name, value in command.environ.items() if value.origins}
            if keeps:
                self._run_text(replace(command, folder=None), own, [], environ, there, depth)
            elif layer.name == "pbsdsh":  # it executes its words without a shell
                inner = argv[rest[0] :] if rest else ()
                self._expand(replace(command, folder=None, private=private), inner, {}, there, depth + 1)
            else:
                self._run_text(replace(command, folder=None, private=private), own, [], {}, there, depth)

    def _submit(self, command: StartedCommand, what: _Starting, place: Place, depth: int) -> None:
        """sbatch, salloc, qsub and `flux batch`: a job with an allocation of its own. What several of them are given is known if
        it is the same.
        """
        layer = what.layer
        own = what.argv[len(layer.own) :] if layer.launcher is LauncherKind.SBATCH else what.inner
        stdin, version = command.stdin, self._version

        def read(path: Value) -> Value | None:
            return self._read_script(path, command.folder)

        if layer.launcher in (LauncherKind.SBATCH, LauncherKind.SALLOC):
            job = batch_job(layer, own, stdin, what.environ, version, read)
        else:
            job = other_batch_job(what.inner, stdin, what.environ, version, read)
        if job is None:
            if layer.launcher is not LauncherKind.SALLOC:
                self._budget.leave_out(command.origin, "the text of the batch job is not known")
            return
        before = self._allocation
        is_first = not before.scheduler and not self._found.submits
        is_same = self._found.submits and replace(self._found.allocation, places={}) == job.allocation
        places = what.places() if job.text is None else {**self._directives(job.text, command.origin), **what.places()}
        known = (
            replace(job.allocation, places=places) if is_first else self._found.allocation if is_same else Allocation()
        )
        self._found.submits, self._found.allocation = True, known
        self._allocation = job.allocation
        there = Place(
            job.allocation.hosts[0],
            0,
            gpus=job.allocation.gpus_per_node,
            cpus=job.allocation.cpus_per_task,
            via=place.via if job.text is None else (),
        )
        environ = {**job.environ, **job.allocation.environ()}
        detached = replace(command, is_background=False, private=frozenset())
        if job.text is None:
            self._group += 1
            self._expand(detached, job.arguments, environ, there, depth + 1)
        else:
            self._run_text(detached, job.text, job.arguments, environ, there, depth)
        self._allocation = before

    def _directives(self, text: Value, origin: Origin) -> dict[str, Origin]:
        """Where the `#SBATCH` options of a submitted text are written."""
        at = self._written_at(text) or (lambda start, end: origin)
        return {name: at(*span) for name, span in option_places(text.text).items()}

    def _number_of(self, host: str) -> int:
        """A number for a host that is not one of the allocation, in the order in which they are met."""
        return self._others.setdefault(host, len(self._allocation.hosts) + len(self._others))

    def _on_hosts(self, command: StartedCommand, what: _Starting, place: Place, depth: int) -> None:
        """srun, mpirun, jsrun and flux: the same command on hosts, with the variables of each task."""
        launcher = what.layer.launcher
        if launcher is LauncherKind.FLUX and not {word.text for word in what.words[1:2]} & {"run", "submit"}:
            return
        if len(self._found.launched) >= MOST_LAUNCHED:
            self._budget.leave_out(command.origin, f"more than {MOST_LAUNCHED} processes")
            return
        tasks, base, withheld = _LAYOUTS[launcher](self, what, place)
        hosts = tuple(dict.fromkeys(task.host for task in tasks))
        is_mpi = launcher is LauncherKind.MPIRUN
        starter = Starter(
            what.layer.name,
            _origin(what.argv[0], command),
            hosts,
            len(tasks),
            what.places(),
            self._slots(what.layer, what.folder) if is_mpi else None,
            self._refused_row(what.layer, what.folder) if is_mpi else "",
        )
        for task in tasks[:MOST_TASKS]:
            gone = withheld if launcher is LauncherKind.SRUN or task.node != place.node else {}
            there = replace(
                place,
                host=task.host,
                node=task.node,
                task=task.number,
                local=task.local,
                gpus=task.gpus,
                via=(*place.via, what.layer.name),
                starter=starter,
                withheld={**place.withheld, **gone},
                unset=place.unset | gone.keys(),
            )
            environ = {name: value for name, value in base.items() if name not in gone}
            self._expand(command, what.inner, {**environ, **task.environ}, there, depth + 1)

    def _srun(self, what: _Starting, place: Place) -> _Layout:
        """A job step: tasks on the nodes of the allocation; of a heterogeneous job, on those of the chosen components."""
        layer, number_of_task, first_node = what.layer, 0, 0
        parts, tasks = self._parts(layer), []
        steps = [(part, *self._step(layer, part)) for part in parts]
        everywhere = tuple(host for _, hosts, _ in steps for host in hosts)
        total = sum(count for _, _, count in steps)
        of_all = _step_variables(total, everywhere, is_of_several=len(parts) > 1)
        for part, hosts, count in steps:
            per_task = number_of((option(layer, "--gpus-per-task") or "").rpartition(":")[2]) or part.gpus_per_task
            gpus = gpus_of(layer) or per_task or part.gpus_per_node
            for task in range(min(count, MOST_TASKS)):
                node, local = _placed(task, count, len(hosts))
                at = first_node + node
                own = _task_variables(number_of_task + task, at, local, hosts[node]) | of_all
                tasks.append(_Task(hosts[node], at, number_of_task + task, local, gpus, own))
            number_of_task, first_node = number_of_task + count, first_node + len(hosts)
        base, withheld = self._exported(what)
        per_node = option(layer, "--ntasks-per-node")
        if per_node is not None:
            base["SLURM_NTASKS_PER_NODE"] = what.value(per_node)
        elif self._allocation.components and parts[-1].tasks_per_node is not None:
            counts = {part.tasks_per_node for part in parts}
            base["SLURM_NTASKS_PER_NODE"] = Value(str(parts[-1].tasks_per_node)) if len(counts) == 1 else NOT_KNOWN
        return tasks, base, withheld

    def _parts(self, layer: Layer) -> tuple[Allocation, ...]:
        """The components of a heterogeneous job that a step uses: the first one unless it says which."""
        components = self._allocation.components
        chosen = option(layer, "--het-group", "--pack-group")
        if not components or chosen is None or UNKNOWN in chosen:
            return (components[0] if components else self._allocation,)
        numbers = {int(number) for number in re.findall(r"\d{1,3}", chosen)}
        for low, high in re.findall(r"(\d{1,3})-(\d{1,3})", chosen):
            numbers |= set(range(int(low), min(int(high), 64) + 1))
        return tuple(each for at, each in enumerate(components) if at in numbers) or components[:1]

    def _exported(self, what: _Starting) -> tuple[dict[str, Value], dict[str, Withheld]]:
        """What `--export` passes on, or SLURM_EXPORT_ENV, which sbatch sets by its own `--export`; and what it drops."""
        environ, given = what.environ, option(what.layer, "--export")
        inherited = environ.get("SRUN_EXPORT_ENV", environ.get("SLURM_EXPORT_ENV"))
        words = given if given is not None else None if inherited is None else inherited.text
        if words is None or UNKNOWN in words or words.upper() == "ALL":
            return dict(environ), {}
        names = [name for name in words.split(",") if name not in ("ALL", "NONE", "NIL")]
        is_all = "ALL" in words.split(",")
        kept = {name for name in environ if is_all or name.startswith(("SLURM_", "SPANK_"))}
        base = {name: value for name, value in environ.items() if name in kept or name in names}
        base.update({name: Value(value) for name, sign, value in (n.partition("=") for n in names) if sign})
        if given is None:
            place = self._allocation.places.get("--export")
            by, at = f"#SBATCH --export={words}", place or what.argv[0].origins[0]
        else:
            by, at = f"srun --export={words}", what.places().get("--export", Origin("", 0, 0))
        gone = {name: value for name, value in environ.items() if name not in base and value.origins}
        return base, {name: Withheld(value, by, at) for name, value in gone.items()}

    def _step(self, layer: Layer, allocation: Allocation | None = None) -> tuple[tuple[str, ...], int]:
        """The hosts and the number of tasks of a step."""
        allocation = self._allocation if allocation is None else allocation
        named = option(layer, "-w", "--nodelist")
        names = host_names(named) if named and UNKNOWN not in named else None
        nodes = number_of(option(layer, "-N", "--nodes"))
        tasks = number_of(option(layer, "-n", "--ntasks"))
        per_node = number_of(option(layer, "--ntasks-per-node"))
        hosts = tuple(names) if names else _left(layer, allocation.hosts)
        if nodes is not None and not allocation.is_slurm:
            hosts = tuple(f"node-{at}" for at in range(min(nodes, MOST_NODES)))
        elif nodes is not None:
            hosts = hosts[: max(1, nodes)]
        if tasks is None and per_node is not None:
            tasks = len(hosts) * per_node
        if tasks is None and nodes is not None and allocation.tasks_per_node is None:
            tasks = max(len(hosts), allocation.tasks or 0)
        if tasks is None and (nodes is not None or names is not None):
            tasks = len(hosts) * (allocation.tasks_per_node or 1)
        tasks = allocation.tasks_by_default if tasks is None else tasks
        if nodes is None and tasks < len(hosts) and names is None:
            hosts = hosts[: max(1, tasks)]
        return hosts, tasks

    def _mpirun(self, what: _Starting, place: Place) -> _Layout:
        """MPI ranks. Open MPI that reaches other hosts by ssh gives them only the variables that `-x` names; Hydra (MPICH,
        Intel MPI) passes all on, as Open MPI does where a scheduler starts its daemons.
        """
        layer, environ = what.layer, what.environ
        count = number_of(option(layer, "-np", "-n", "--np", "-c"))
        slots_of = self._mpi_slots(layer, what.folder)
        hosts = tuple(slots_of)
        per_node = _per_node(layer)
        slots = None if self._allocation.is_slurm else self._allocation.tasks_per_node
        per_host = per_node or slots
        sizes = {host: per_host or slots_of[host] for host in hosts}
        known = None if None in sizes.values() else sum(size or 0 for size in sizes.values())
        count = known if count is None and known else count or len(hosts)
        named = [given for given in layer.reading.given if given.flag == "-x"]
        forwarded = {
            name: what.value_of(given.value_word, text) if sign else environ.get(name, Value(UNKNOWN))
            for given in named
            for name, sign, text in ((given.value or "").partition("="),)
        }
        even = max(1, -(-count // len(hosts)))
        tasks, node, local = [], 0, 0
        for rank in range(min(count, MOST_TASKS)):
            while node + 1 < len(hosts) and local >= (sizes[hosts[node]] or even):
                node, local = node + 1, 0
            own = {
                "OMPI_COMM_WORLD_RANK": _of_task(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": _of_task(local),
                "OMPI_COMM_WORLD_SIZE": Value(str(count)),
                "PMI_RANK": _of_task(rank),
                "PMI_SIZE": Value(str(count)),
                "MPI_LOCALRANKID": _of_task(local),
            }
            if layer.name == "horovodrun":
                own = {
                    "HOROVOD_RANK": _of_task(rank),
                    "HOROVOD_LOCAL_RANK": _of_task(local),
                    "HOROVOD_SIZE": Value(str(count)),
                }
            tasks.append(_Task(hosts[node], node, rank, local, self._allocation.gpus_per_node, {**forwarded, **own}))
            local += 1
        flags = {given.flag for given in layer.reading.given}
        is_by_ssh = not self._allocation.scheduler and bool(flags & _OPEN_MPI) and not flags & _HYDRA
        is_by_ssh &= layer.name != "horovodrun"  # it exports the whole environment
        at = what.argv[0].origins[0] if what.argv[0].origins else Origin("", 0, 0)
        gone = {
            name: Withheld(value, "mpirun without -x", at)
            for name, value in environ.items()
            if name not in forwarded and value.origins
        }
        return tasks, dict(environ), gone if is_by_ssh else {}

    def _slots(self, layer: Layer, folder: str | None) -> int | None:
        """How many processes the hosts of Open MPI or horovodrun take: a host of a list without a count takes one."""
        flags = {given.flag for given in layer.reading.given}
        is_open_mpi = bool(flags & (_OPEN_MPI - {"--host"})) and not flags & _HYDRA
        is_horovod = layer.name == "horovodrun"
        if (self._allocation.scheduler and not is_horovod) or any(_MORE_ALLOWED.search(w.text) for w in layer.own):
            return None
        slots_of = self._mpi_slots(layer, folder)
        listed = option(layer, "-H", "--host", "-host", "-hosts", "--hosts")
        if UNKNOWN in (listed or "") or (listed is None and option(layer, "--hostfile", "-hostfile") is None):
            return None
        if None in slots_of.values() and (listed is None or not is_open_mpi):
            return None
        return sum(slots or 1 for slots in slots_of.values()) if is_open_mpi or is_horovod else None

    def _refused_row(self, layer: Layer, folder: str | None) -> str:
        """The first row of Hydra's host file with `slots=`, which is Open MPI's word; "" for another MPI."""
        flags = {given.flag for given in layer.reading.given}
        path = option(layer, "-f", "-hostfile", "-machinefile")
        if path is None or UNKNOWN in path or not (layer.name.endswith(".hydra") or flags & _HYDRA):
            return ""
        rows = (row.partition("#")[0].strip() for row in (self._read(path, folder) or "").splitlines())
        return next((row for row in rows if re.search(r"\s(?:max_)?slots\s*=", row)), "")

    def _mpi_slots(self, layer: Layer, folder: str | None) -> dict[str, int | None]:
        """The hosts of an MPI launcher, and the slots that its options give each."""
        listed = option(layer, "-H", "--host", "-host", "-hosts", "--hosts")
        if listed is not None and UNKNOWN not in listed:
            pairs = [name.partition(":") for name in listed.split(",") if name]
            if pairs:
                return {name: number_of(slots) for name, _, slots in pairs[:MOST_NODES]}
        path = option(layer, "--hostfile", "-hostfile", "-machinefile", "--machinefile", "-f")
        text = self._read(path, folder) if path is not None and UNKNOWN not in path else None
        if text is not None and (rows := slots_of_hosts(text)):
            return dict(list(rows.items())[:MOST_NODES])
        return dict.fromkeys(self._allocation.hosts)

    def _jsrun(self, what: _Starting, place: Place) -> _Layout:
        """Resource sets (`-n`), so many per host (`-r`), each with tasks (`-a`) and GPUs (`-g`)."""
        options = _plain_options(what.words)
        sets = _number_in(options, "-n", "--nrs") or 1
        per_host = _number_in(options, "-r", "--rs_per_host") or max(1, sets // len(self._allocation.hosts))
        per_set, gpus = _number_in(options, "-a", "--tasks_per_rs") or 1, _number_in(options, "-g", "--gpu_per_rs")
        hosts = self._allocation.hosts
        total, tasks = sets * per_set, []
        for rank in range(min(total, MOST_TASKS)):
            node = min(rank // (per_host * per_set), len(hosts) - 1)
            local = rank - node * per_host * per_set
            own = {
                "JSM_NAMESPACE_RANK": _of_task(rank),
                "JSM_NAMESPACE_LOCAL_RANK": _of_task(local),
                "JSM_NAMESPACE_SIZE": Value(str(total)),
                "OMPI_COMM_WORLD_RANK": _of_task(rank),
                "OMPI_COMM_WORLD_LOCAL_RANK": _of_task(local),
                "OMPI_COMM_WORLD_SIZE": Value(str(total)),
                "PMIX_RANK": _of_task(rank),
            }
            tasks.append(_Task(hosts[node], node, rank, local, gpus, own))
        return tasks, dict(what.environ), {}

    def _flux(self, what: _Starting, place: Place) -> _Layout:
        """Tasks (`-n`) on nodes (`-N`), each with `-g` GPUs."""
        options = _plain_options(what.words)
        nodes = _number_in(options, "-N", "--nodes")
        hosts = self._allocation.hosts
        if nodes is not None and self._allocation.scheduler != "Flux":
            hosts = tuple(f"node-{at}" for at in range(min(nodes, MOST_NODES)))
        hosts = hosts[:nodes] if nodes else hosts
        total = _number_in(options, "-n", "--ntasks") or nodes or 1
        per_node = _number_in(options, "--tasks-per-node")
        total = per_node * len(hosts) if per_node else total
        gpus, tasks = _number_in(options, "-g", "--gpus-per-task"), []
        for rank in range(min(total, MOST_TASKS)):
            node, local = _placed(rank, total, len(hosts))
            own = {
                "FLUX_TASK_RANK": _of_task(rank),
                "FLUX_TASK_LOCAL_ID": _of_task(local),
                "FLUX_JOB_SIZE": Value(str(total)),
                "FLUX_JOB_NNODES": Value(str(len(hosts))),
                "PMI_RANK": _of_task(rank),
                "PMI_SIZE": Value(str(total)),
            }
            tasks.append(_Task(hosts[node], node, rank, local, gpus, own))
        return tasks, dict(what.environ), {}

    def _leaf(
        self,
        command: StartedCommand,
        argv: Sequence[Value],
        words: tuple[Word, ...],
        environ: Mapping[str, Value],
        place: Place,
        layer: Layer,
    ) -> None:
        if layer.launcher is LauncherKind.PYTHON and layer.reading.script is None:
            return  # `python -c …`, `python --version`
        started = Launched(
            place=place,
            layer=layer,
            argv=tuple(argv),
            words=words,
            environ=dict(environ),
            folder=command.folder,
            origin=command.origin,
            group=self._group,
            is_certain=command.is_certain,
            is_background=command.is_background,
            order=command.order,
            trainer=self._trainer(argv, command.folder) if layer.launcher is LauncherKind.PYTHON else {},
        )
        self._found.launched += self._by_deepspeed(started) if layer.launcher is LauncherKind.DEEPSPEED else [started]

    def _trainer(self, argv: Sequence[Value], folder: str | None) -> dict[str, int]:
        """What LightningCLI reads: `fit --config FILE --trainer.devices 4`; the last one wins."""
        texts = [value.text for value in argv]
        if not {"fit", "validate", "test", "predict"} & set(texts):
            return {}
        found: dict[str, int] = {}
        for at, text in enumerate(texts):
            name, sign, value = text.partition("=")
            value = value if sign else texts[at + 1] if at + 1 < len(texts) else ""
            if name in ("--config", "-c") and UNKNOWN not in value:
                found |= trainer_sizes(self._read(value, folder) or "")
            elif name in ("--trainer.devices", "--trainer.num_nodes") and value.isdigit():
                found[name.partition(".")[2]] = int(value)
        return found

    def _by_deepspeed(self, started: Launched) -> list[Launched]:
        """What the runner of deepspeed starts: its launcher on each host of the host file, by pdsh or another runner; with
        `--no_ssh` only on its own host.
        """
        layer, place = started.layer, started.place
        path = layer.value("hostfile")
        text = self._read(path, started.folder) if path is not None and UNKNOWN not in path else None
        pool = None if text is None else deepspeed_pool(text)
        if pool is None:
            return [started]
        active = selected(pool, layer)
        started = replace(started, pool=pool, active=None if active is None else {h: len(g) for h, g in active.items()})
        if active is None or len(active) < 2 or layer.given("no_ssh") is not None:
            return [started]
        starter = Starter("deepspeed", started.origin, tuple(active))
        return [
            replace(
                started,
                place=replace(
                    place,
                    host=host,
                    node=node,
                    gpus=pool[host],
                    via=(*place.via, "deepspeed"),
                    starter=place.starter or starter,
                ),
                ranks=len(gpus),
            )
            for node, (host, gpus) in enumerate(list(active.items())[:MOST_NODES])
        ]


_ROW_END = re.compile(r"(?<!\\)(?:\\\\)*\n")
"""The end of a row that no backslash continues."""
_SUBMIT_FOLDERS = frozenset(("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "SGE_O_WORKDIR", "LS_SUBCWD"))
_SUBMITS = re.compile(r"(?m)^[^#\n]*\b(?:sbatch|salloc|qsub|flux batch)\b")
_STARTS_FLUX = re.compile(r"(?m)^[^#\n]*\bflux (?:run|submit)\b")
_STARTS_MPI = re.compile(r"(?m)^[^#\n]*\bmpi(?:run|exec)\b")
_OF_MPI_TASKS = frozenset(
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "MPI_LOCALRANKID")
)
"""Variables that only tasks have: a script that starts them itself runs in none."""
_LAYOUTS: Mapping[LauncherKind, Callable[[_Runner, _Starting, Place], _Layout]] = {
    LauncherKind.SRUN: _Runner._srun,
    LauncherKind.MPIRUN: _Runner._mpirun,
    LauncherKind.JSRUN: _Runner._jsrun,
    LauncherKind.FLUX: _Runner._flux,
}
_ON_HOSTS = tuple(_LAYOUTS)
_MORE_ALLOWED = re.compile(r"oversubscribe|overload", re.IGNORECASE)
_OPEN_MPI = frozenset(
    ("-x", "-H", "--host", "--mca", "-mca", "--allow-run-as-root", "-npernode", "--npernode", "--map-by")
)
_HYDRA = frozenset(
    ("-genv", "-genvall", "-genvlist", "-genvnone", "-ppn", "-hosts", "-f", "-iface", "-launcher", "-perhost")
)


def _origin(value: Value, command: StartedCommand) -> Origin:
    """Where a word is written; where its statement is, for one of unknown origin."""
    return value.origins[0] if value.origins else command.origin


def _expands(text: str, name: str) -> bool:
    """Whether a shell text uses a variable that it does not set itself."""
    is_used = re.search(rf"\$(?:{name}\b|\{{[#!]?{name}\b)", text) is not None
    return is_used and re.search(rf"(?:^|[\s;&]){name}=", text) is None


def _plain_options(words: Sequence[Word]) -> dict[str, str]:
    """Options with their values, of a launcher whose options have no table: `-n 2`, `-n2`, `--nrs=2`, `--nrs 2`."""
    found: dict[str, str] = {}
    for word, after in itertools.zip_longest(words[1:], words[2:]):
        name, sign, value = word.text.partition("=")
        follows = "" if after is None else after.text
        if name.startswith("--"):
            found.setdefault(name, value if sign else follows)
        elif re.fullmatch(r"-[A-Za-z]\d+", word.text):
            found.setdefault(word.text[:2], word.text[2:])
        elif re.fullmatch(r"-[A-Za-z]", word.text):
            found.setdefault(word.text, follows)
    return found


def _number_in(options: Mapping[str, str], *flags: str) -> int | None:
    return next((number for flag in flags if (number := number_of(options.get(flag))) is not None), None)


_REMOTE_VALUES = {
    "ssh": "pilobcDEFJLmOQRSwW",
    "pdsh": "wxgXfRltun",
    "clush": "wxgXflto",
    "qrsh": "lqPvwp",
    "blaunch": "uzi",
    "pbsdsh": "nch",
}
"""Short options of programs for other hosts that take a value."""
_ONE_HOST = ("ssh", "qrsh", "blaunch")
"""Those whose first operand is the host."""
_NAMES_HOSTS = {"pdsh": "w", "clush": "w", "blaunch": "z", "pbsdsh": "h"}
"""The option that names the hosts."""


def _remote_words(texts: Sequence[str], name: str) -> tuple[str | None, list[int]]:
    """The value of the option that names hosts, and the indices of the words that are not options."""
    named = None
    at = 1
    while at < len(texts) and texts[at].startswith("-") and len(texts[at]) > 1:
        letter, joined_value = texts[at][1], texts[at][2:]
        if name == "qrsh" and joined_value:
            letter, joined_value = "", ""  # `-inherit`, `-now`: its options are words
        takes_value = letter in _REMOTE_VALUES[name] and letter != ""
        if letter == _NAMES_HOSTS.get(name):
            named = joined_value or (texts[at + 1] if at + 1 < len(texts) else None)
        at += 2 if takes_value and not joined_value else 1
    return named, list(range(at, len(texts)))


def _left(layer: Layer, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts of an allocation that a step may use, by `--exclude` and `--relative`."""
    excluded = option(layer, "-x", "--exclude")
    gone = host_names(excluded) if excluded and UNKNOWN not in excluded else None
    first = number_of(option(layer, "-r", "--relative")) or 0
    return tuple(host for host in hosts[first:] if host not in (gone or ())) or hosts


def _keeps_environ(layer: Layer) -> bool:
    """Whether a container gets the variables of the shell around it, as Singularity's do."""
    cleans = {"-e", "--cleanenv", "-C", "--containall", "-c", "--contain"}
    return layer.name in ("singularity", "apptainer") and not any(word.text in cleans for word in layer.own)


def _is_printed(program: str) -> bool:
    """Whether a program is asked for what it prints about its host."""
    return program.rpartition("/")[2] in ("hostname", "ip", "nvidia-smi", "nproc", "uname", "getent")


def _words(argv: Sequence[Value]) -> tuple[Word, ...]:
    """The values as words of a line in which spaces separate them."""
    found = []
    at = 0
    for value in argv:
        raw = quote(value.text.replace(UNKNOWN, "…")) if value.text else "''"
        found.append(Word(value.text, raw, at, at + len(raw)))
        at += len(raw) + 1
    return tuple(found)


_SHELL_SCRIPT = re.compile(r"#!\S*/(?:env )?(?:ba|da|z|k)?sh\b")


def _path(path: str, folder: str | None) -> str:
    return path if path.startswith("/") or folder is None else posixpath.normpath(posixpath.join(folder, path))


def _placed(task: int, tasks: int, nodes: int) -> tuple[int, int]:
    """Node and local number of a task in block order: the first nodes get one more where the numbers do not divide."""
    size, more = divmod(tasks, nodes)
    border = more * (size + 1)
    if task < border:
        return divmod(task, size + 1)
    node, local = divmod(task - border, max(size, 1))
    return more + node, local


def _of_task(number: int) -> Value:
    return Value(str(number), varies=frozenset((TASK,)))


def _task_variables(task: int, node: int, local: int, host: str) -> dict[str, Value]:
    """What srun sets in one task."""
    return {
        "SLURM_PROCID": _of_task(task),
        "SLURM_LOCALID": _of_task(local),
        "SLURM_NODEID": Value(str(node), varies=frozenset((NODE,))),
        "SLURMD_NODENAME": Value(host, varies=frozenset((NODE,))),
    }


def _step_variables(tasks: int, hosts: tuple[str, ...], *, is_of_several: bool) -> dict[str, Value]:
    """What srun sets in all tasks of a step: the sizes are those of the step. Over several components of a job, those of the
    job are as well.
    """
    count, names = Value(str(len(hosts))), Value(host_list(hosts))
    found = dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), Value(str(tasks)))
    found |= dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), count)
    found |= dict.fromkeys(("SLURM_NODELIST", "SLURM_STEP_NODELIST"), names)
    return {**found, "SLURM_JOB_NUM_NODES": count, "SLURM_JOB_NODELIST": names} if is_of_several else found


def _per_node(layer: Layer) -> int | None:
    """Ranks per node: `-ppn N`, `-npernode N`, `--map-by ppr:N:node`."""
    mapped = re.match(r"ppr:(\d{1,4}):node", option(layer, "--map-by", "-map-by") or "")
    if mapped:
        return int(mapped[1])
    return number_of(option(layer, "-ppn", "--ppn", "-npernode", "--npernode", "-N", "-perhost"))


def values_of(environ: Mapping[str, Value]) -> Iterator[tuple[str, str]]:
    """The environment as texts."""
    for name, value in environ.items():
        yield name, value.text


def same(values: Sequence[Value]) -> Value | None:
    """The value that all have; None where two differ."""
    texts = {value.text for value in values}
    return text_value(texts.pop(), *values) if len(texts) == 1 else None
