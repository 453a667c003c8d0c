"""What a job file starts: every program on every imagined host, through srun, mpirun, ssh, shells and wrappers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import REMOTE, LauncherKind
from ddpdoctor.facts.launch.words import UNKNOWN, Word
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.batch_jobs import batch_job, other_batch_job
from ddpdoctor.launch.evaluator.cluster import MOST_NODES, SUBMIT_HOST, Allocation
from ddpdoctor.launch.evaluator.execution_budget import Budget
from ddpdoctor.launch.evaluator.imagined_run import (
    ImaginedRun,
    Launched,
    MissingVariables,
    Place,
    StartedProgram,
    Starter,
    Withheld,
)
from ddpdoctor.launch.evaluator.job_texts import JobTexts
from ddpdoctor.launch.evaluator.machine import ImaginedMachine
from ddpdoctor.launch.evaluator.mpi_tasks import MpiTasks
from ddpdoctor.launch.evaluator.placed_commands import PlacedCommand
from ddpdoctor.launch.evaluator.remote_commands import ONE_HOST, remote_words
from ddpdoctor.launch.evaluator.resource_set_tasks import flux_tasks, jsrun_tasks
from ddpdoctor.launch.evaluator.schedulers import allocation_of_script
from ddpdoctor.launch.evaluator.shell import Shell
from ddpdoctor.launch.evaluator.shell_commands import StartedCommand
from ddpdoctor.launch.evaluator.slurm_steps import MOST_TASKS, SlurmSteps
from ddpdoctor.launch.evaluator.started_launchers import StartedLauncher, TaskLayout, as_words, placed
from ddpdoctor.launch.evaluator.started_trainers import on_hosts_of_deepspeed, trainer_options
from ddpdoctor.launch.evaluator.tools import host_names
from ddpdoctor.launch.evaluator.values import NODE, Origin, Value, joined, origins_of
from ddpdoctor.launch.evaluator.variables import ShellVariable, Variables
from ddpdoctor.launch.evaluator.wrapper_words import as_env_says, keeps_environ, value_of_word, words_after
from ddpdoctor.launch.layers import parse_layers
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.launch.program_names import SHELLS
from ddpdoctor.launch.sbatch import option_places

__all__ = ["run_job_file", "run_placed"]

MOST_LAUNCHED = 1_024
"""Programs on imagined hosts that are kept."""
DEEPEST = 8
"""Launchers within launchers."""
_LEAVES = (
    LauncherKind.TORCHRUN,
    LauncherKind.LEGACY,
    LauncherKind.ACCELERATE,
    LauncherKind.DEEPSPEED,
    LauncherKind.PYTHON,
)
_ON_HOSTS = (LauncherKind.SRUN, LauncherKind.MPIRUN, LauncherKind.JSRUN, LauncherKind.FLUX)


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
        self._texts = JobTexts(files, allocation.texts)
        self._group = 0
        self._statement = Origin("", 0, 0)

    def run(self, text: str, file: str, environ: Mapping[str, str], folder: str | None) -> ImaginedRun:
        allocation = self._allocation
        unset = _OF_MPI_TASKS - environ.keys() if _STARTS_MPI.search(text) else frozenset()
        unset |= {"PDSH_RANK"} - environ.keys()  # pdsh puts the number of a host where its command has %n
        if _STARTS_FLUX.search(text):
            unset |= {"FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID"} - environ.keys()
        place = Place(
            allocation.hosts[0], 0, gpus=allocation.gpus_per_node, cpus=allocation.cpus_per_task, unset=frozenset(unset)
        )
        if not allocation.scheduler and _SUBMITS.search(text):
            place = replace(place, hostname=SUBMIT_HOST)
        outside = {name: Value(value) for name, value in environ.items()}
        given = allocation.environ()
        if folder is not None:  # taken to be submitted from the folder of the file
            given |= {name: Value(folder) for name in _SUBMIT_FOLDERS & given.keys()}
        shell = self._shell(place, {**outside, **given}, folder)
        if folder is not None and "PWD" not in environ:
            shell.variables.assign("PWD", Value(folder))
        shell.name = Value(file)
        shell.invoked = self._found.invoked
        self._texts.source, self._texts.file = text, file
        shell.run(text, lambda start, end: Origin(file, start, end))
        for command in shell.started:
            self._group += 1
            self._statement = command.origin
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
            written=self._texts.written,
            written_at=self._texts.written_at_places,
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
        words = as_words(argv)
        layers = parse_layers(words, self._version, {})
        inner = words_after(argv, words, layers[0]) if layers else ()
        if not inner or not is_printed(inner[0].text) or layers[0].launcher is not LauncherKind.SRUN:
            return None
        hosts, tasks = SlurmSteps(self._allocation).size(layers[0])
        printed = []
        for task in range(min(tasks, MOST_TASKS)):
            node, _ = placed(task, tasks, len(hosts))
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
        words = as_words(argv)
        layers = parse_layers(words, self._version, {})
        if not layers:
            return
        first = layers[0]
        name = first.name
        inner = words_after(argv, words, first)
        own = {variable.name: value_of_word(variable.word, argv, words, variable.value) for variable in first.variables}
        environ = {**environ, **own}
        if name in SHELLS:
            self._nested_shell(command, argv, environ, place, depth)
        elif (script := self._texts.own_script(argv[0], command.folder)) is not None:
            self._run_text(command, script, argv, environ, place, depth)
        elif name == "qsub" or (name == "flux" and [word.text for word in words[1:2]] in (["batch"], ["alloc"])):
            behind = argv[1 + (name == "flux") :]
            self._submit(command, StartedLauncher(argv, words, first, behind, environ, command.folder), place, depth)
        elif name in REMOTE:
            self._remote(command, argv, first, environ, place, depth)
        elif first.launcher in _ON_HOSTS:
            self._on_hosts(command, StartedLauncher(argv, words, first, inner, environ, command.folder), place, depth)
        elif first.launcher is LauncherKind.CONTAINER:
            self._expand(command, inner, environ if keeps_environ(first) else own, place, depth + 1)
        elif first.launcher in (LauncherKind.SBATCH, LauncherKind.SALLOC):
            self._submit(command, StartedLauncher(argv, words, first, inner, environ, command.folder), place, depth)
        elif first.launcher in _LEAVES:
            self._leaf(command, argv, words, environ, place, first)
        elif inner and first.launcher is LauncherKind.WRAPPER:
            self._expand(command, inner, as_env_says(first, environ), place, depth + 1)
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
        text = self._texts.read_script(argv[at], command.folder)
        if text is None:
            self._budget.leave_out(command.origin, f"{texts[at].replace(UNKNOWN, '…')}: not read")
            return
        self._run_text(command, text, argv[at:], environ, place, depth)

    def _run_text(
        self,
        command: StartedCommand,
        text: Value,
        arguments: Sequence[Value],
        environ: Mapping[str, Value],
        place: Place,
        depth: int,
        written: Callable[[int, int], Origin] | None = None,
    ) -> None:
        used = {name for name in place.withheld if name not in environ and _expands(text.text, name)}
        place = replace(place, missed=place.missed | used) if used else place
        private = command.private - environ.keys()
        shell = self._shell(replace(place, unset=place.unset | private), environ, command.folder)
        shell.variables.private = private
        shell.stdin = command.stdin
        if arguments:
            shell.name, shell.positional = arguments[0], list(arguments[1:])
        whole = command.origin
        inside = (o for o in text.origins if o.file == whole.file and whole.start <= o.start and o.end <= whole.end)
        origin = next(inside, text.origins[0] if text.origins else whole)
        known = written or self._inside.get(text.text) or self._texts.places_of(text)
        shell.run(text.text, known or (lambda start, end: origin))
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
                is_left=started.is_left or command.is_left,
            )
            self._expand(certain, started.argv, started.environ, place, depth + 1)

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
        named, rest = remote_words(texts, layer.name)
        if layer.name in ONE_HOST and named is None:
            if not rest:
                return
            hosts, rest = [argv[rest[0]].with_text(texts[rest[0]].rpartition("@")[2])], rest[1:]
        elif layer.name == "pbsdsh" and named is None:
            hosts = [Value(name) for name in self._allocation.hosts]
        else:
            hosts = [Value(name) for each in (named or "").split() for name in host_names(each) or ()]
        if layer.name == "ssh" and any(re.fullmatch("-[nTtqxX]*f[nTtqxX]*", word.text) for word in layer.own):
            command = replace(command, is_background=True)
        pieces = argv[rest[0] :] if rest else ()
        text = joined(pieces, " ")
        written = origins_of(pieces, " ", command.origin) if len(pieces) > 1 else None
        known = {name: at for at, name in enumerate(self._allocation.hosts)}
        keeps = layer.name == "blaunch" or (layer.name == "qrsh" and "-V" in texts)
        gone = {
            name: Withheld(value, f"{layer.name} passes no variables on", value.origins[0])
            for name, value in command.environ.items()
            if name in _OF_JOBS and value.origins and not keeps
        }
        for number, host in enumerate(hosts[:MOST_NODES]):
            node = known.get(host.text, number if len(hosts) > 1 else self._number_of(host.text))
            own = text
            if layer.name in ("pdsh", "clush"):  # pdsh puts these into each command
                own = text.with_text(text.text.replace("%h", host.text).replace("%n", str(number)))
            starter = Starter(layer.name, _origin(argv[0], command), tuple(each.text for each in hosts))
            there = replace(
                place, host=host.text, node=node, via=(*place.via, layer.name), starter=starter, withheld=gone
            )
            private = command.private | {name for name, value in command.environ.items() if value.origins}
            if keeps:
                self._run_text(replace(command, folder=None), own, [], environ, there, depth, written)
            elif layer.name == "pbsdsh":  # it executes its words without a shell
                inner = argv[rest[0] :] if rest else ()
                self._expand(replace(command, folder=None, private=private), inner, {}, there, depth + 1)
            else:
                self._run_text(replace(command, folder=None, private=private), own, [], {}, there, depth, written)

    def _submit(self, command: StartedCommand, what: StartedLauncher, place: Place, depth: int) -> None:
        """sbatch, salloc, qsub and `flux batch`: a job with an allocation of its own. What several of them are given is known if
        it is the same.
        """
        layer = what.layer
        own = what.argv[len(layer.own) :] if layer.launcher is LauncherKind.SBATCH else what.inner
        stdin, version = command.stdin, self._version

        def read(path: Value) -> Value | None:
            return self._texts.read_script(path, command.folder)

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
        at = self._texts.places_of(text) or (lambda start, end: origin)
        return {name: at(*span) for name, span in option_places(text.text).items()}

    def _number_of(self, host: str) -> int:
        """A number for a host that is not one of the allocation, in the order in which they are met."""
        return self._others.setdefault(host, len(self._allocation.hosts) + len(self._others))

    def _on_hosts(self, command: StartedCommand, what: StartedLauncher, place: Place, depth: int) -> None:
        """srun, mpirun, jsrun and flux: the same command on hosts, with the variables of each task."""
        launcher = what.layer.launcher
        if launcher is LauncherKind.FLUX and not {word.text for word in what.words[1:2]} & {"run", "submit"}:
            return
        if len(self._found.launched) >= MOST_LAUNCHED:
            self._budget.leave_out(command.origin, f"more than {MOST_LAUNCHED} processes")
            return
        tasks, base, withheld = self._layout(what)
        hosts = tuple(dict.fromkeys(task.host for task in tasks))
        is_mpi, mpi, places = launcher is LauncherKind.MPIRUN, self._mpi(), what.places()
        slots_at = what.environ.get("OMPI_MCA_orte_set_default_slots", Value()).origins  # of an MPIJob
        if is_mpi and slots_at:
            places["slots"] = slots_at[0]
        starter = Starter(
            what.layer.name,
            _origin(what.argv[0], command),
            hosts,
            len(tasks),
            places,
            mpi.slots(what) if is_mpi else None,
            mpi.refused_row(what.layer, what.folder) if is_mpi else "",
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

    def _mpi(self) -> MpiTasks:
        return MpiTasks(self._allocation, self._texts.read)

    def _layout(self, what: StartedLauncher) -> TaskLayout:
        launcher = what.layer.launcher
        if launcher is LauncherKind.SRUN:
            return SlurmSteps(self._allocation).layout(what)
        if launcher is LauncherKind.MPIRUN:
            return self._mpi().layout(what)
        return (jsrun_tasks if launcher is LauncherKind.JSRUN else flux_tasks)(self._allocation, what)

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
            statement=self._statement,
            is_left=command.is_left,
            order=command.order,
            trainer=trainer_options(self._texts, argv, command.folder) if layer.launcher is LauncherKind.PYTHON else {},
        )
        self._found.launched += (
            on_hosts_of_deepspeed(self._texts, started) if layer.launcher is LauncherKind.DEEPSPEED else [started]
        )


_OF_JOBS = ("MASTER_ADDR", "MASTER_PORT", "NNODES", "NODE_RANK", "WORLD_SIZE")
"""Variables by which a script for each node is told its job."""
_SUBMIT_FOLDERS = frozenset(("SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "SGE_O_WORKDIR", "LS_SUBCWD"))
_SUBMITS = re.compile(r"(?m)^[^#\n]*\b(?:sbatch|salloc|qsub|flux batch)\b")
_STARTS_FLUX = re.compile(r"(?m)^[^#\n]*\bflux (?:run|submit)\b")
_STARTS_MPI = re.compile(r"(?m)^[^#\n]*\bmpi(?:run|exec)\b")
_OF_MPI_TASKS = frozenset(
    (
        *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "MPI_LOCALRANKID"),
        *("PMI_LOCAL_RANK", "PALS_RANKID", "PALS_LOCAL_RANKID"),
    )
)
"""Variables that only tasks have: a script that starts them itself runs in none."""


def _origin(value: Value, command: StartedCommand) -> Origin:
    """Where a word is written; where its statement is, for one of unknown origin."""
    return value.origins[0] if value.origins else command.origin


def _expands(text: str, name: str) -> bool:
    """Whether a shell text uses a variable that it does not set itself."""
    is_used = re.search(rf"\$(?:{name}\b|\{{[#!]?{name}\b)", text) is not None
    own = rf"(?:^|[\s;&]){name}=(?!\"?\$\{{{name}:?-)"  # but for a default, `NAME=${{NAME:-value}}`
    return is_used and re.search(own, text) is None


def is_printed(program: str) -> bool:
    """Whether a program is asked for what it prints about its host."""
    return program.rpartition("/")[2] in ("hostname", "ip", "nvidia-smi", "nproc", "uname", "getent")
