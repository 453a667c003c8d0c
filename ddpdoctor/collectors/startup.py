"""Collects `startup`: the programs, environment, interpreter and packages of a launch line on this machine.

The line is followed program by program; each is searched where the previous one would search. If that is unknown (inside a
container, on another host, after `source activate`), the rest is unknown.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import field

from ddpdoctor.collectors.environments import Environment, environment_of_layer
from ddpdoctor.collectors.interpreter import script_python
from ddpdoctor.collectors.launch_torch import version_in
from ddpdoctor.collectors.modules import ModuleAnswer, ask_modules
from ddpdoctor.facts.distributions import distribution_of
from ddpdoctor.facts.gaps import Gap, Why
from ddpdoctor.facts.launch.layer import Layer, starts_ranks
from ddpdoctor.facts.launch.programs import ELSEWHERE, REMOTE, UNJUDGED, LauncherKind
from ddpdoctor.facts.launch.record import LaunchLine
from ddpdoctor.facts.launch.typo import TypoKind
from ddpdoctor.facts.launch.words import UNKNOWN, quote
from ddpdoctor.facts.startup import LookupKind, LookupResult, MissingImport, Startup, StartupLookup
from ddpdoctor.launch.program_names import KNOWN, PYTHON, nearest
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.scripts.imports import TopImport, changes_the_search_path, top_imports
from ddpdoctor.scripts.source_text import decode
from ddpdoctor.system import process
from ddpdoctor.system.machine import Machine
from ddpdoctor.system.regular_file import read_regular, text_of_regular

__all__ = ["collect_startup"]

BUILTINS = ("exec", "command", "time", "eval", "builtin")
"""Shell builtins, which are not programs."""
CHANGES_PATH = ("source", ".", "module", "ml", "spack", "conda", "mamba", "micromamba", "eval", "alias", "use", "guix")
"""Commands before a launch that may change where its programs are found."""
TASKS = (LauncherKind.SRUN, LauncherKind.SBATCH, LauncherKind.SALLOC, LauncherKind.JSRUN, LauncherKind.FLUX)
LATER = ("bsub", "tmux", "screen", "systemd-run")
"""Programs whose commands may run in another environment or on another machine."""
MPI_HOSTS = (
    "-H",
    "-host",
    "--host",
    "-hosts",
    "--hosts",
    "-hostfile",
    "--hostfile",
    "-machinefile",
    "--machinefile",
    "-f",
)
SCRIPT_BYTES = 1 << 20
MOST_LOCAL = 40
PATH_FLAGS = ("-I", "-E", "-s", "-S", "-P")
PROVIDERS = {"torchrun": "torch", "accelerate": "accelerate", "deepspeed": "deepspeed"}
"""The distributions that install a program."""
MODULES = {
    LauncherKind.TORCHRUN: "torch.distributed.run",
    LauncherKind.LEGACY: "torch.distributed.launch",
    LauncherKind.ACCELERATE: "accelerate.commands.launch",
    LauncherKind.DEEPSPEED: "deepspeed.launcher.runner",
}


def collect_startup(line: LaunchLine, machine: Machine) -> Startup:
    """Look up on this machine what the line starts."""
    walk = _Walk(line, machine)
    for index, layer in enumerate(line.layers):
        walk.step(index, layer)
    return walk.asked()


@dataclass(slots=True)
class _Walk:
    """Follows the line from its first program to its last; `reason` is set once the rest is unknown."""

    line: LaunchLine
    machine: Machine
    path: str = ""
    reason: str = ""
    is_local: bool = True
    cwd: str | None = None
    environment: Environment | None = None
    python: str | None = None
    flags: tuple[str, ...] = ()
    module: tuple[int, str] | None = None
    found: list[StartupLookup] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = self.machine.environ.get("PATH", os.defpath)
        self.cwd = self.line.cwd
        if _changes_path(self.line.preceding):
            self.reason = "a command before the launch may change PATH"

    def step(self, index: int, layer: Layer) -> None:
        """Look up the program of one layer, and where the next one would be searched."""
        self._variables(layer)
        if layer.typos and not starts_ranks(layer.launcher) and layer.typos[0].kind is not TypoKind.PROGRAM:
            self.reason = "the shell parses the command differently than intended"
            return
        if self.reason:
            self._unknown(index, LookupKind.PROGRAM, layer.program.text)
            return
        place = self._look_up(index, layer)
        if not self.reason:
            self._into(index, layer, place)

    def _variables(self, layer: Layer) -> None:
        value = next((v.value for v in reversed(layer.variables) if v.name == "PATH"), None)
        if value is None or self.environment is not None:
            return
        self.path = value
        if UNKNOWN in value:
            self.reason = "the PATH that the line sets depends on the shell"

    def _look_up(self, index: int, layer: Layer) -> str | None:
        """The path of a layer's program, None if it is missing or not a program."""
        name = layer.program.text
        if not name or UNKNOWN in name:
            self.reason = f"{layer.program.raw or 'the program'} depends on the shell"
            self._unknown(index, LookupKind.PROGRAM, name)
            return None
        if layer.name in BUILTINS and "/" not in name:
            return None
        if self._is_script_of(index, layer):
            return None
        if "/" in name:
            return self._file(index, name)
        environ = self.machine.environ
        found = shutil.which(name, path=self.path)
        if found is None and layer.name in ("conda", "mamba", "micromamba"):
            found = next((p for v in ("CONDA_EXE", "MAMBA_EXE") if (p := environ.get(v)) and os.path.isfile(p)), None)
        if found is not None:
            self._add(index, LookupKind.PROGRAM, name, LookupResult.FOUND, path=found)
            return found
        self._missing(index, name)
        return None

    def _is_script_of(self, index: int, layer: Layer) -> bool:
        """`uv run train.py` runs a file with the project's own Python."""
        before = self.line.layers[index - 1].name if index else ""
        is_script = (
            layer.launcher is LauncherKind.OTHER and before in ("uv", "pipx", "rye") and layer.name.endswith(".py")
        )
        if is_script:
            self.reason = f"{before} chooses the interpreter of {layer.name}"
        return is_script

    def _file(self, index: int, name: str) -> str | None:
        """A program that is given by its path."""
        if self.cwd is None and not os.path.isabs(name):
            self.reason = "the working folder of the line is unknown"
            self._unknown(index, LookupKind.PROGRAM, name)
            return None
        path = os.path.normpath(os.path.join(self.cwd or "/", os.path.expanduser(name)))
        if os.path.isfile(path) and os.access(path, os.X_OK):
            self._add(index, LookupKind.PROGRAM, name, LookupResult.FOUND, path=path)
            return path
        place = "a file without execute permission" if os.path.isfile(path) else os.path.dirname(path)
        similar = None if os.path.isfile(path) else nearest(os.path.basename(path), _executables(os.path.dirname(path)))
        if similar is not None:
            similar = name[: len(name) - len(os.path.basename(name))] + similar
        self._add(index, LookupKind.PROGRAM, name, LookupResult.MISSING, place=place, similar=similar)
        self.reason = f"{name} was not found"
        return None

    def _missing(self, index: int, name: str) -> None:
        """A program that is not on PATH; a project's environment may still get it at the start of the line."""
        own = self.environment
        if own is not None and own.mentions(PROVIDERS.get(name, name)):
            self.reason = (
                f"{own.name} names {PROVIDERS.get(name, name)} and may install {name} at the start of the line"
            )
            self._unknown(index, LookupKind.PROGRAM, name)
            return
        beside = os.path.join(os.path.dirname(sys.executable), name)
        has_own = own is None and PYTHON.fullmatch(name) is None and os.access(beside, os.X_OK)
        place = "PATH" if own is None else own.name
        similar = None if name in KNOWN or name in UNJUDGED else nearest(name, KNOWN, least=4)
        if name == "python" and shutil.which("python3", path=self.path) is not None:
            similar = "python3"
        self._add(
            index,
            LookupKind.PROGRAM,
            name,
            LookupResult.MISSING,
            place=place,
            similar=similar,
            beside=beside if has_own else None,
        )
        self.reason = f"{name} was not found"

    def _into(self, index: int, layer: Layer, place: str | None) -> None:
        """How a program changes the search for the next one."""
        if layer.launcher in ELSEWHERE:
            self.reason = f"the container of {layer.name} was not examined"
            if layer.launcher is LauncherKind.RAY:
                self.reason = "ray starts the command on its cluster"
        elif layer.name in REMOTE:
            self.reason = f"{layer.name} starts the command on another host"
        elif layer.name in ("chroot", "enroot"):
            self.reason = f"{layer.name} changes the file system"
        elif layer.launcher in TASKS or layer.name in LATER or _has_hosts(layer):
            self.is_local = False
            if any(g.flag.startswith("--container") for g in layer.reading.given):
                self.reason = f"the container of {layer.name} was not examined"
        elif layer.name == "sudo":
            self.reason = "sudo may use another PATH"
        elif layer.is_shell_text or layer.launcher is LauncherKind.SHELL:
            self._shell(index, layer)
        elif layer.name == "env":
            self._env(layer)
        elif starts_ranks(layer.launcher) or layer.launcher is LauncherKind.PYTHON:
            self._interpreter(index, layer, place)
        else:
            self._environment(index, layer)
        if any(g.flag in ("-C", "--chdir", "-D", "-wdir", "--wdir", "-wd", "--directory") for g in layer.reading.given):
            self.cwd = None

    def _shell(self, index: int, layer: Layer) -> None:
        script = next((word.known for word in layer.own[1:] if not word.text.startswith(("-", "+"))), None)
        if not layer.is_shell_text and script is not None and self.cwd is not None:
            path = os.path.join(self.cwd, os.path.expanduser(script))
            if not os.path.exists(path):
                similar = nearest(os.path.basename(script), _executables(os.path.dirname(path)))
                folder = os.path.dirname(os.path.normpath(path))
                self._add(index, LookupKind.PROGRAM, script, LookupResult.MISSING, place=folder, similar=similar)
        own = [word.text for word in layer.own[1:] if word.text.startswith("-")]
        if _changes_path(layer.preceding):
            self.reason = "a command before the launch may change PATH"
        elif any(("l" in text or "i" in text) and not text.startswith("--") for text in own) or "--login" in own:
            self.reason = f"{layer.name} reads startup files, which may change PATH"
        if any(each.split(" ")[0] in ("cd", "pushd") for each in layer.preceding):
            self.cwd = None

    def _env(self, layer: Layer) -> None:
        flags = {g.flag for g in layer.reading.given}
        gone = {g.value for g in layer.reading.given if g.flag in ("-u", "--unset")}
        if flags & {"-i", "--ignore-environment", "-"} or "PATH" in gone:
            own = next((v.value for v in reversed(layer.variables) if v.name == "PATH"), None)
            self.path = "/usr/local/bin:/bin:/usr/bin" if own is None else own
        if flags & {"-S", "--split-string"}:
            self.reason = "env -S splits the command itself"

    def _environment(self, index: int, layer: Layer) -> None:
        """The environment that a program such as `conda run` starts the next one in."""
        own = environment_of_layer(layer, self.machine.environ, self.cwd)
        if own is None:
            return
        if own.is_missing:
            place = "this machine" if layer.name in ("conda", "mamba", "micromamba") else "this folder and its parents"
            self._add(index, LookupKind.ENVIRONMENT, own.name, LookupResult.MISSING, place=place, similar=own.similar)
            self.reason = f"{own.name} was not found"
        elif own.prefix is None:
            self.reason = own.reason
        else:
            self._add(index, LookupKind.ENVIRONMENT, own.name, LookupResult.FOUND, path=own.prefix)
            self.environment = own
            self.path = os.pathsep.join((os.path.join(own.prefix, "bin"), self.path))

    def _interpreter(self, index: int, layer: Layer, place: str | None) -> None:
        """The Python that runs this layer: the layer's program itself, or the one in its first line."""
        if place is None:
            return
        if PYTHON.fullmatch(layer.name):
            self.python = place
            self.flags = tuple(w.text for w in layer.own[1:] if w.text in PATH_FLAGS)
            own = MODULES.get(layer.launcher)
            module = layer.reading.script
            if own is not None:
                self.module = (index, own)
            elif layer.given("module") is not None and module is not None and module.known:
                self.module = (index, module.known)
            return
        try:
            self.python = script_python(place, self.path)
        except OSError as error:
            self.reason = f"{place}: {error.strerror}"
            return
        if self.python is None:
            self.reason = f"the interpreter of {place} is unknown"

    def asked(self) -> Startup:
        """The lookups, including modules, and the script's imports that are missing."""
        innermost = self.line.program
        starter = next((layer for layer in reversed(self.line.layers) if self._runs_python(layer)), None)
        if starter is None or innermost is None or innermost.typos:
            return Startup(tuple(self.found), is_local=self.is_local)
        variables = {v.name: v.value for v in innermost.variables}
        chosen = variables.get("PYTHON_EXEC") or self.machine.environ.get("PYTHON_EXEC")
        if self.reason or self.python is None or any(UNKNOWN in value for value in variables.values()):
            reason = self.reason or "the variables that the line sets depend on the shell"
            return self._without_interpreter(reason)
        if chosen and starter.launcher in (LauncherKind.TORCHRUN, LauncherKind.LEGACY):
            return self._without_interpreter("PYTHON_EXEC chooses the interpreter of the script")
        return self._judged(starter)

    def _runs_python(self, layer: Layer) -> bool:
        return layer.launcher is LauncherKind.PYTHON or starts_ranks(layer.launcher)

    def _without_interpreter(self, reason: str) -> Startup:
        gap = Gap("startup.python", reason, Why.NOT_HERE)
        return Startup(tuple(self.found), is_local=self.is_local, gaps=(gap,))

    def _judged(self, starter: Layer) -> Startup:
        assert self.python is not None
        path, text = self._script(starter)
        imports = () if text is None else top_imports(text) or ()
        names = {each.module.partition(".")[0]: each for each in reversed(imports)}
        folder = self.cwd or "/"
        if path is not None and starter.given("module") is None:
            folder = os.path.dirname(os.path.realpath(path))
        modules = self._modules(starter)
        try:
            answer = ask_modules(
                self.python,
                self.flags,
                folder,
                [*names],
                [each for _, each in modules],
                self._environ(),
                self.machine.deadline,
            )
        except (OSError, ValueError, process.LateError) as error:
            return self._without_interpreter(f"{self.python} could not be queried: {error}")
        for index, module in modules:
            self._module(index, module, answer)
        missing = [name for name in names.values() if answer.found.get(name.module.partition(".")[0]) is False]
        missing.sort(key=lambda each: (each.line, each.column))
        if text is not None and path is not None and (missing and _may_add_modules(text, path, missing, imports)):
            reason = f"{os.path.basename(path)} changes its module search path"
            self.found.append(
                StartupLookup(0, LookupKind.MODULE, missing[0].module, LookupResult.UNKNOWN, reason=reason)
            )
            missing = []
        if self.environment is not None and self.environment.installs:
            missing = [each for each in missing if not self._may_be_installed(each)]
        return Startup(
            tuple(self.found),
            python=self.python,
            python_version=answer.version,
            torch=None if answer.torch is None else version_in(answer.torch),
            has_torch=answer.torch is not None,
            script=path,
            imports=tuple(self._import(each, path) for each in missing),
            installer=self._installer(),
            is_local=self.is_local,
        )

    def _may_be_installed(self, each: TopImport) -> bool:
        name = each.module.partition(".")[0]
        own = self.environment
        assert own is not None
        return own.mentions(name) or own.mentions(distribution_of(name) or name)

    def _installer(self) -> str:
        if self.environment is not None and self.environment.adds is not None:
            return self.environment.adds
        return f"{quote(self.python or 'python')} -m pip install"

    def _environ(self) -> dict[str, str]:
        known = self.line.environ.variables.items()
        return {**{name: value for name, value in known if UNKNOWN not in value}, "PATH": self.path}

    def _modules(self, starter: Layer) -> list[tuple[int, str]]:
        found = [] if self.module is None else [self.module]
        script = starter.reading.script
        is_module = starter.given("module") is not None and starter.given("no_python") is None
        if (
            starts_ranks(starter.launcher)
            and is_module
            and script is not None
            and script.known
            and not starter.is_garbled
        ):
            found.append((self.line.layers.index(starter), script.known))
        return [(index, name) for index, name in found if all(part.isidentifier() for part in name.split("."))]

    def _module(self, index: int, name: str, answer: ModuleAnswer) -> None:
        found = answer.modules[name]
        place = self.python or ""
        if found.is_unknown:
            self._unknown(index, LookupKind.MODULE, name, "a package sets its own module search path")
        elif found.missing is None:
            self._add(index, LookupKind.MODULE, name, LookupResult.FOUND, place=place)
        elif self.environment is not None and self.environment.mentions(name.partition(".")[0]):
            self._unknown(index, LookupKind.MODULE, name, f"{self.environment.name} may install {name}")
        else:
            head, dot, last = found.missing.rpartition(".")
            near = nearest(last, found.beside)
            rest = name[len(found.missing) :]
            similar = None if near is None else f"{head}{dot}{near}{rest}"
            self._add(
                index,
                LookupKind.MODULE,
                name,
                LookupResult.MISSING,
                place=place,
                similar=similar,
                missing=found.missing,
            )

    def _script(self, starter: Layer) -> tuple[str | None, str | None]:
        """Path and text of the script, None if it is not Python or cannot be read."""
        script = self.line.script
        if script is None or not script.exists or script.is_python is False or starter.given("no_python") is not None:
            return None, None
        try:
            return script.path, decode(read_regular(script.path, SCRIPT_BYTES)).text
        except OSError:
            return None, None

    def _import(self, each: TopImport, path: str | None) -> MissingImport:
        name = each.module.partition(".")[0]
        return MissingImport(
            name,
            each.line,
            each.column,
            distribution_of(each.module) or distribution_of(name),
            self._folder_of(name, path),
        )

    def _folder_of(self, name: str, path: str | None) -> str | None:
        """A folder near the script that contains a module of this name."""
        own = os.path.dirname(os.path.abspath(path or "."))
        for base in dict.fromkeys((self.cwd or own, os.path.join(self.cwd or own, "src"), os.path.dirname(own))):
            package = os.path.join(base, name)
            if os.path.isfile(f"{package}.py") or os.path.isfile(os.path.join(package, "__init__.py")):
                return base
        return None

    def _unknown(self, index: int, kind: LookupKind, name: str, reason: str = "") -> None:
        self._add(index, kind, name, LookupResult.UNKNOWN, reason=reason or self.reason)

    def _add(
        self,
        index: int,
        kind: LookupKind,
        name: str,
        result: LookupResult,
        *,
        place: str = "",
        path: str | None = None,
        similar: str | None = None,
        missing: str = "",
        reason: str = "",
        beside: str | None = None,
    ) -> None:
        self.found.append(
            StartupLookup(index, kind, name, result, place, path, similar, missing, reason, self.is_local, beside)
        )


def _changes_path(commands: Sequence[str]) -> bool:
    """Whether commands before a launch may change PATH or the module search path."""
    words = [command.split(" ") for command in commands]
    return any(
        each[0] in CHANGES_PATH or any(word.startswith(("PATH=", "PYTHONPATH=", "VIRTUAL_ENV=")) for word in each)
        for each in words
    )


def _has_hosts(layer: Layer) -> bool:
    """Whether an mpirun starts its processes on listed hosts."""
    return layer.launcher is LauncherKind.MPIRUN and any(g.flag in MPI_HOSTS for g in layer.reading.given)


def _executables(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def _may_add_modules(text: str, path: str, missing: Sequence[TopImport], imports: Sequence[TopImport]) -> bool:
    """Whether the script, or a local module that it imports before them, may make the missing modules importable."""
    if changes_the_search_path(text):
        return True
    folder = os.path.dirname(path)
    last = max(each.line for each in missing)
    waiting = [each.module for each in imports if each.line < last]
    seen: set[str] = set()
    while waiting and len(seen) < MOST_LOCAL:
        stem = os.path.join(folder, *waiting.pop().split("."))
        for file in (f"{stem}.py", os.path.join(stem, "__init__.py")):
            if file in seen or not os.path.isfile(file):
                continue
            seen.add(file)
            try:
                local = text_of_regular(file, SCRIPT_BYTES)
            except OSError:
                return True
            if changes_the_search_path(local):
                return True
            waiting += [top_import.module for top_import in top_imports(local) or ()]
    return False
