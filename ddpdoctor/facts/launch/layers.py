"""A launch line taken apart: wrappers, launchers inside launchers, and the program at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ddpdoctor.facts.launch.options import Given, Reading, Trouble, read
from ddpdoctor.facts.launch.programs import (
    ACCELERATE,
    ACCELERATE_PREFIXES,
    DEEPSPEED,
    MPIRUN,
    SHELL_TEXT,
    SRUN,
    WRAPPERS,
    Launcher,
    Syntax,
)
from ddpdoctor.facts.launch.shell import Simple, inner_text, split
from ddpdoctor.facts.launch.slips import Slip, find_slips
from ddpdoctor.facts.launch.words import UNKNOWN, Word
from ddpdoctor.facts.torchrun_options import Option, torchrun_options

__all__ = ["ELSEWHERE", "UNREAD", "Layer", "Variable", "peel", "starts_ranks"]

_PYTHON = re.compile(r"(python|pypy)[\d.]*")
_MPI = re.compile(r"(mpirun|mpiexec|orterun|prterun|aprun)(\.\w+)?")
_SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
_MODULES = {
    "torch.distributed.run": Launcher.TORCHRUN,
    "torch.distributed.launcher": Launcher.TORCHRUN,
    "torch.distributed.launch": Launcher.LEGACY,
    "accelerate.commands.launch": Launcher.ACCELERATE,
    "deepspeed.launcher.runner": Launcher.DEEPSPEED,
}
_NAMES = {
    "torchrun": Launcher.TORCHRUN,
    "torchrun.exe": Launcher.TORCHRUN,
    "accelerate-launch": Launcher.ACCELERATE,
    "deepspeed": Launcher.DEEPSPEED,
    "ds": Launcher.DEEPSPEED,
    "jsrun": Launcher.JSRUN,
    "ray": Launcher.RAY,
}
ELSEWHERE = (Launcher.CONTAINER, Launcher.RAY)
"""What these start has an environment and files of its own."""
UNREAD = (Launcher.JSRUN, Launcher.RAY)
"""Their own options have no table here: only what they start is judged."""
_PYTHON_VALUES = ("-X", "-W", "-Q")


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that the line sets for what it starts; `word` is the assignment. UNKNOWN pieces are possible."""

    name: str
    value: str
    word: Word


@dataclass(frozen=True, slots=True)
class Layer:
    """One program of the line. `program` is its name as written, `own` its words up to the next layer or the script.

    For launchers with a script, `reading` is what their parser makes of the words. `variables` are the assignments in
    force for this program that the line itself makes.
    """

    launcher: Launcher
    program: Word
    own: tuple[Word, ...] = ()
    reading: Reading = field(default_factory=Reading)
    variables: tuple[Variable, ...] = ()
    is_shell_text: bool = False
    slips: tuple[Slip, ...] = ()

    @property
    def is_garbled(self) -> bool:
        """The parser stops, or takes a word for something else: what else it read may not be what was meant."""
        return bool(self.slips or self.reading.problems)

    @property
    def name(self) -> str:
        """The program's name without its folder."""
        return self.program.text.rpartition("/")[2]

    def given(self, dest: str) -> Given | None:
        """The option as it counts, None when the line does not give it."""
        return self.reading.last(dest)

    def value(self, dest: str) -> str | None:
        """The value that the line gives, None when it gives none; it may hold UNKNOWN pieces."""
        found = self.reading.last(dest)
        return None if found is None else found.value


def starts_ranks(launcher: Launcher) -> bool:
    """A launcher that starts the ranks of one node itself."""
    return launcher in (Launcher.TORCHRUN, Launcher.LEGACY, Launcher.ACCELERATE, Launcher.DEEPSPEED)


def peel(words: Sequence[Word], torch: tuple[int, int]) -> tuple[Layer, ...]:
    """The layers of one simple command, outermost first. Empty when it runs nothing."""
    layers: list[Layer] = []
    variables: tuple[Variable, ...] = ()
    rest: tuple[Word, ...] | None = tuple(words)
    while rest and len(layers) < 20:
        while rest and (pair := rest[0].assignment) is not None:
            variables = (*variables, Variable(pair[0], pair[1], rest[0]))
            rest = rest[1:]
        if not rest:
            break
        layer, rest = _layer(rest, torch)
        if layer.launcher in ELSEWHERE:
            variables = tuple(v for v in layer.variables)
        else:
            variables = (*variables, *layer.variables)
        layers.append(replace(layer, variables=variables))
    return tuple(layers)


def _layer(words: tuple[Word, ...], torch: tuple[int, int]) -> tuple[Layer, tuple[Word, ...] | None]:
    program = words[0]
    name = program.text.rpartition("/")[2]
    rest = words[1:]
    if UNKNOWN in program.text:
        return _searched(words)
    if name in _NAMES and _NAMES[name] in (Launcher.TORCHRUN, Launcher.ACCELERATE, Launcher.DEEPSPEED):
        return _launcher(_NAMES[name], program, words[:1], rest, torch)
    if name == "accelerate":
        if rest and rest[0].text == "launch":
            return _launcher(Launcher.ACCELERATE, program, words[:2], rest[1:], torch)
        return Layer(Launcher.OTHER, program, words), None
    if _PYTHON.fullmatch(name):
        return _python(words, torch)
    if name in _SHELLS:
        return _shell(words)
    if name in ("srun", "sbatch", "salloc"):
        launcher = Launcher(name)
        layer, inner = _wrapped(words, SRUN, launcher)
        return layer, None if launcher is Launcher.SBATCH else inner
    if _MPI.fullmatch(name):
        return _wrapped(words, MPIRUN, Launcher.MPIRUN)
    if name in _NAMES:
        return _unjudged(words, _NAMES[name])
    if name in WRAPPERS:
        syntax = WRAPPERS[name]
        if name in SHELL_TEXT and " " in words[-1].text.strip() and len(words) > 1:
            return _shell_text(words, len(words) - 1)
        if syntax.subcommands and not (rest and any(w.text in syntax.subcommands for w in rest)):
            return Layer(Launcher.OTHER, program, words), None
        if name == "taskset" and not any(w.text.startswith(("-c", "--cpu-list")) or w.text == "-ac" for w in rest[:2]):
            syntax = Syntax(operands=1)
        return _wrapped(words, syntax, syntax.launcher)
    return Layer(Launcher.OTHER, program, words), None


def _launcher(
    launcher: Launcher, program: Word, own: tuple[Word, ...], rest: tuple[Word, ...], torch: tuple[int, int]
) -> tuple[Layer, tuple[Word, ...] | None]:
    if launcher is Launcher.ACCELERATE:
        table: tuple[Option, ...] = ACCELERATE
        reading = _without_families(read(rest, table, abbreviations=False))
    else:
        table = DEEPSPEED
        if launcher is not Launcher.DEEPSPEED:
            table = torchrun_options(torch, legacy=launcher is Launcher.LEGACY)
        reading = read(rest, table)
    used = len(rest) if reading.script is None else rest.index(reading.script)
    slips = find_slips(reading, rest[:used], table)
    layer = Layer(launcher, program, (*own, *rest[:used]), reading, slips=slips)
    direct = reading.last("no_python") is not None
    inner = None
    if reading.script is not None and not reading.problems:
        if direct:
            inner = (reading.script, *reading.arguments)
        elif reading.last("module") and reading.script.text in _MODULES:
            return layer, _as_module(program, reading)
        elif _names_launcher(reading.script):
            inner = (reading.script, *reading.arguments)
    return layer, inner


def _names_launcher(script: Word) -> bool:
    return script.text.rpartition("/")[2] in ("torchrun", "accelerate", "deepspeed")


def _as_module(program: Word, reading: Reading) -> tuple[Word, ...]:
    assert reading.script is not None
    dash = Word("-m", "-m", reading.script.start, reading.script.start, reading.script.context)
    python = Word("python", "", program.start, program.end, program.context)
    return (python, dash, reading.script, *reading.arguments)


def _without_families(reading: Reading) -> Reading:
    """accelerate's Megatron, FP8 and other families are not listed one by one: their options are taken as known."""
    problems = tuple(
        p
        for p in reading.problems
        if not (p.trouble is Trouble.UNRECOGNIZED and p.word.text.replace("-", "_").startswith(_FAMILIES))
    )
    if len(problems) == len(reading.problems):
        return reading
    return Reading(reading.given, problems, reading.script, reading.arguments, True, reading.is_help, reading.separator)


_FAMILIES = tuple("__" + p[2:] for p in ACCELERATE_PREFIXES)


def _python(words: tuple[Word, ...], torch: tuple[int, int]) -> tuple[Layer, tuple[Word, ...] | None]:
    i = 1
    while i < len(words):
        text = words[i].text
        if text == "-m" or (
            text.startswith("-") and not text.startswith("--") and text.endswith("m") and len(text) <= 3
        ):
            return _python_module(words, i, torch)
        if text.startswith("-m"):
            break
        if text == "-c" or not text.startswith("-"):
            break
        i += 2 if text in _PYTHON_VALUES else 1
    if i < len(words) and words[i].text not in ("-c", "-") and not words[i].text.startswith("-"):
        reading = Reading(script=words[i], arguments=words[i + 1 :], is_open=words[i].splits)
        return Layer(Launcher.PYTHON, words[0], words[:i], reading), None
    return Layer(Launcher.PYTHON, words[0], words), None


def _python_module(words: tuple[Word, ...], i: int, torch: tuple[int, int]) -> tuple[Layer, tuple[Word, ...] | None]:
    if i + 1 >= len(words):
        return Layer(Launcher.PYTHON, words[0], words), None
    module = words[i + 1]
    launcher = _MODULES.get(module.text)
    if launcher is not None:
        return _launcher(launcher, words[0], words[: i + 2], words[i + 2 :], torch)
    if (
        module.text in ("accelerate.commands.accelerate_cli", "accelerate")
        and words[i + 2 : i + 3]
        and (words[i + 2].text == "launch")
    ):
        return _launcher(Launcher.ACCELERATE, words[0], words[: i + 3], words[i + 3 :], torch)
    given = Given("module", "-m", "-m", None, words[i], words[i])
    reading = Reading(given=(given,), script=module, arguments=words[i + 2 :])
    return Layer(Launcher.PYTHON, words[0], words[: i + 1], reading), None


def _shell(words: tuple[Word, ...]) -> tuple[Layer, tuple[Word, ...] | None]:
    i = 1
    while i < len(words) and words[i].text.startswith(("-", "+")) and len(words[i].text) > 1:
        if "c" in words[i].text and not words[i].text.startswith("--"):
            if i + 1 >= len(words):
                break
            return _shell_text(words, i + 1)
        i += 2 if words[i].text in ("-o", "-O", "+o") else 1
    return Layer(Launcher.SHELL, words[0], words), None


def _shell_text(words: tuple[Word, ...], i: int) -> tuple[Layer, tuple[Word, ...] | None]:
    word = words[i]
    launcher = Launcher.SHELL if words[0].text.rpartition("/")[2] in _SHELLS else Launcher.WRAPPER
    layer = Layer(launcher, words[0], words[: i + 1], is_shell_text=True)
    if not word.is_literal or not word.raw:
        return layer, None
    inner = inner_text(word)
    commands = split(inner.text, inside=inner)
    return layer, launching(commands)


def launching(commands: Sequence[Simple]) -> tuple[Word, ...] | None:
    """Of several simple commands the one that starts a job: the last whose words name a launcher or Python."""
    found = [command.words for command in commands if any(_is_program(word) for word in command.words)]
    return found[-1] if found else None


def _is_program(word: Word) -> bool:
    name = word.text.rpartition("/")[2]
    return bool(
        name in _NAMES
        or name in ("accelerate", "srun", "sbatch", *_SHELLS)
        or _PYTHON.fullmatch(name)
        or _MPI.fullmatch(name)
    )


def _wrapped(words: tuple[Word, ...], syntax: Syntax, launcher: Launcher) -> tuple[Layer, tuple[Word, ...] | None]:
    given: list[Given] = []
    variables: list[Variable] = []
    i, operands, subcommand = 1, syntax.operands, bool(syntax.subcommands)
    is_open = False
    while i < len(words):
        word = words[i]
        text = word.text
        if text == "--":
            i += 1
            if operands and launcher is not Launcher.CONTAINER:
                continue
            break
        if word.splits:
            is_open = True
            i += 1
            continue
        if subcommand and text in syntax.subcommands:
            subcommand = False
            i += 1
        elif text.startswith("-") and len(text) > 1:
            i = _wrapper_option(words, i, syntax, given, variables)
        elif launcher is Launcher.WRAPPER and word.assignment and words[0].text.rpartition("/")[2] in ("env", "sudo"):
            name, value = word.assignment
            variables.append(Variable(name, value, word))
            i += 1
        elif subcommand or operands > 0:
            operands -= 0 if subcommand else 1
            i += 1
        else:
            break
    reading = Reading(given=tuple(given), is_open=is_open)
    layer = Layer(launcher, words[0], words[:i], reading, tuple(variables))
    inner = words[i:]
    if inner and not _can_start(inner[0]):
        inner = _search(inner) or inner
    return layer, inner or None


def _can_start(word: Word) -> bool:
    name = word.text.rpartition("/")[2]
    return _is_program(word) or name in WRAPPERS or word.assignment is not None or name in ("salloc",)


def _search(words: tuple[Word, ...]) -> tuple[Word, ...] | None:
    """An option of the wrapper that we do not know may have taken a word: go on at the first launcher in sight."""
    if any(w.text.endswith((".py", ".sh")) for w in words[:1]):
        return None
    at = next((i for i, w in enumerate(words) if _is_program(w)), None)
    return None if at is None else words[at:]


def _unjudged(words: tuple[Word, ...], launcher: Launcher) -> tuple[Layer, tuple[Word, ...] | None]:
    """jsrun and ray: their own options are not read, only the program that they start is looked for."""
    rest = words[1:]
    if launcher is Launcher.RAY:
        texts = [w.text for w in words]
        rest = words[texts.index("--") + 1 :] if texts[1:3] == ["job", "submit"] and "--" in texts else ()
    inner = _search(rest) if rest else None
    layer = Layer(launcher, words[0], words[: len(words) - len(inner or ())], Reading(is_open=True))
    return layer, inner


def _searched(words: tuple[Word, ...]) -> tuple[Layer, tuple[Word, ...] | None]:
    rest = words[1:]
    found = _search(rest) if rest else None
    layer = Layer(Launcher.OTHER, words[0], words[: len(words) - len(found or ())], Reading(is_open=True))
    return layer, found


def _wrapper_option(
    words: tuple[Word, ...], i: int, syntax: Syntax, given: list[Given], variables: list[Variable]
) -> int:
    word = words[i]
    name, sign, value = word.text.partition("=")
    after = words[i + 1] if i + 1 < len(words) else None
    if word.text in syntax.doubles:
        if i + 2 < len(words) and "env" in word.text:
            variables.append(Variable(words[i + 1].text, words[i + 2].text, words[i + 2]))
        return i + 3
    if word.text in syntax.values and after is not None:
        given.append(Given(name, name, name, after.text, word, after))
        _exported(name, after, variables)
        return i + 2
    short = name[:2]
    if sign and name.startswith("--"):
        given.append(Given(name, name, name, value, word, word))
        return i + 1
    if not name.startswith("--") and short in syntax.values and len(word.text) > 2 and word.text not in syntax.values:
        given.append(Given(short, short, short, word.text[2:].removeprefix("="), word, word))
        return i + 1
    given.append(Given(name, name, name, None, word, word))
    return i + 1


def _exported(option: str, word: Word, variables: list[Variable]) -> None:
    """`docker run -e NAME=value` and `mpirun -x NAME=value` set variables; `--export=ALL,NAME=value` is srun's."""
    if option in ("-e", "--env", "-x") and word.assignment is not None:
        variables.append(Variable(*word.assignment, word))
