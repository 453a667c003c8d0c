"""A launch line split into layers: wrappers, launchers inside launchers, and the innermost program."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddpdoctor.facts.launch.layer import Layer, Variable
from ddpdoctor.facts.launch.programs import (
    ACCELERATE,
    ACCELERATE_PREFIXES,
    DEEPSPEED,
    ELSEWHERE,
    HOROVOD,
    MPIRUN,
    SHELL_TEXT,
    SRUN,
    WRAPPERS,
    LauncherKind,
    Syntax,
)
from ddpdoctor.facts.launch.reading import Given, ParseProblemKind, Reading
from ddpdoctor.facts.launch.typo import Typo, TypoKind
from ddpdoctor.facts.launch.words import UNKNOWN, Word
from ddpdoctor.facts.torchrun_options import Option, torchrun_options
from ddpdoctor.launch.option_parser import read
from ddpdoctor.launch.program_names import MODULES, MPI, NAMES, PYTHON, SHELLS, is_program, meant_program
from ddpdoctor.launch.shell.words import Simple, inner_text, simple_commands
from ddpdoctor.launch.typos import find_typos, typo_before_program
from ddpdoctor.launch.wrappers import searched, unjudged, wrapped

__all__ = ["launching", "parse_layers", "preceding"]

_PYTHON_VALUES = ("-X", "-W", "-Q")


def parse_layers(
    words: Sequence[Word], torch: tuple[int, int], known: Mapping[str, str] | None = None
) -> tuple[Layer, ...]:
    """The layers of one simple command, outermost first. Empty if it starts nothing.

    Args:
        known: variables of the shell that reads the words, if their values are certain.
    """
    layers: list[Layer] = []
    variables: tuple[Variable, ...] = ()
    rest: tuple[Word, ...] | None = tuple(words)
    while rest and len(layers) < 20:
        typo = typo_before_program(rest)
        if typo is not None and not any(layer.launcher is LauncherKind.CONTAINER for layer in layers):
            layers.append(Layer(LauncherKind.OTHER, typo.words[0], rest, variables=variables, typos=(typo,)))
            break
        if (pair := rest[0].assignment) is not None:
            variables = (*variables, Variable(pair[0], pair[1], rest[0]))
            rest = rest[1:]
            continue
        layer, rest = _layer(rest, torch, known or {})
        if layer.launcher in ELSEWHERE:
            variables = tuple(v for v in layer.variables)
        else:
            variables = (*variables, *layer.variables)
        layers.append(replace(layer, variables=variables))
    return tuple(layers)


def _layer(
    words: tuple[Word, ...], torch: tuple[int, int], known: Mapping[str, str]
) -> tuple[Layer, tuple[Word, ...] | None]:
    program = words[0]
    name = program.text.rpartition("/")[2]
    rest = words[1:]
    if UNKNOWN in program.text:
        return searched(words)
    if name in NAMES and NAMES[name] in (LauncherKind.TORCHRUN, LauncherKind.ACCELERATE, LauncherKind.DEEPSPEED):
        return _launcher(NAMES[name], program, words[:1], rest, torch)
    if name == "accelerate":
        if rest and rest[0].text == "launch":
            return _launcher(LauncherKind.ACCELERATE, program, words[:2], rest[1:], torch)
        return _accelerate(words, torch)
    if PYTHON.fullmatch(name):
        return _python(words, torch)
    if name in SHELLS:
        return _shell(words, known)
    if name in ("srun", "sbatch", "salloc"):
        launcher = LauncherKind(name)
        layer, inner = wrapped(words, SRUN, launcher)
        return layer, _wrap(layer) if launcher is LauncherKind.SBATCH else inner
    if MPI.fullmatch(name):
        return wrapped(words, MPIRUN, LauncherKind.MPIRUN)
    if name == "horovodrun":
        return wrapped(words, HOROVOD, LauncherKind.MPIRUN)
    if name in NAMES:
        return unjudged(words, NAMES[name])
    if name in WRAPPERS:
        syntax = WRAPPERS[name]
        if name in SHELL_TEXT and " " in words[-1].text.strip() and len(words) > 1:
            return _shell_text(words, len(words) - 1, known)
        if syntax.subcommands and not (rest and any(w.text in syntax.subcommands for w in rest)):
            return Layer(LauncherKind.OTHER, program, words), None
        if name == "taskset" and not any(w.text.startswith(("-c", "--cpu-list")) or w.text == "-ac" for w in rest[:2]):
            syntax = Syntax(operands=1)
        return wrapped(words, syntax, syntax.launcher)
    meant = meant_program(program.text)
    typos = () if meant is None or not rest else (Typo(TypoKind.PROGRAM, (program,), (meant,)),)
    return Layer(LauncherKind.OTHER, program, words, typos=typos), None


def _launcher(
    launcher: LauncherKind, program: Word, own: tuple[Word, ...], rest: tuple[Word, ...], torch: tuple[int, int]
) -> tuple[Layer, tuple[Word, ...] | None]:
    if launcher is LauncherKind.ACCELERATE:
        table: tuple[Option, ...] = ACCELERATE
        reading = _without_families(read(rest, table, abbreviations=False))
    else:
        table = DEEPSPEED
        if launcher is not LauncherKind.DEEPSPEED:
            table = torchrun_options(torch, legacy=launcher is LauncherKind.LEGACY)
        reading = read(rest, table)
    used = len(rest) if reading.script is None else rest.index(reading.script)
    typos = find_typos(reading, rest[:used], table)
    layer = Layer(launcher, program, (*own, *rest[:used]), reading, typos=typos)
    direct = reading.last("no_python") is not None
    inner = None
    if reading.script is not None and not reading.problems:
        if direct:
            inner = (reading.script, *reading.arguments)
        elif reading.last("module") and reading.script.text in MODULES:
            return layer, _as_module(program, reading)
        elif _names_launcher(reading.script):
            inner = (reading.script, *reading.arguments)
    return layer, inner


def _accelerate(words: tuple[Word, ...], torch: tuple[int, int]) -> tuple[Layer, tuple[Word, ...] | None]:
    """`accelerate` with another subcommand, or with a script or options but no subcommand."""
    program, rest = words[0], words[1:]
    flags = {flag for option in ACCELERATE for flag in option.flags}
    if not rest or not (rest[0].text.endswith(".py") or rest[0].text.partition("=")[0] in flags):
        return Layer(LauncherKind.OTHER, program, words), None
    layer, _ = _launcher(LauncherKind.ACCELERATE, program, words[:1], rest, torch)
    typo = Typo(TypoKind.NO_COMMAND, (program,), (program.text, "launch"))
    return replace(layer, typos=(typo,)), None


def _names_launcher(script: Word) -> bool:
    return script.text.rpartition("/")[2] in ("torchrun", "accelerate", "deepspeed")


def _as_module(program: Word, reading: Reading) -> tuple[Word, ...]:
    assert reading.script is not None
    dash = Word("-m", "", reading.script.start, reading.script.start, reading.script.context)
    python = Word("python", "", program.start, program.end, program.context)
    return (python, dash, reading.script, *reading.arguments)


def _without_families(reading: Reading) -> Reading:
    """The Megatron, FP8 and other option families of accelerate are not listed one by one: their options are accepted."""
    problems = tuple(
        p
        for p in reading.problems
        if not (p.trouble is ParseProblemKind.UNRECOGNIZED and p.word.text.replace("-", "_").startswith(_FAMILIES))
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
        return Layer(LauncherKind.PYTHON, words[0], words[:i], reading), None
    return Layer(LauncherKind.PYTHON, words[0], words), None


def _python_module(words: tuple[Word, ...], i: int, torch: tuple[int, int]) -> tuple[Layer, tuple[Word, ...] | None]:
    if i + 1 >= len(words):
        return Layer(LauncherKind.PYTHON, words[0], words), None
    module = words[i + 1]
    launcher = MODULES.get(module.text)
    if launcher is not None:
        return _launcher(launcher, words[0], words[: i + 2], words[i + 2 :], torch)
    if (
        module.text in ("accelerate.commands.accelerate_cli", "accelerate")
        and words[i + 2 : i + 3]
        and (words[i + 2].text == "launch")
    ):
        return _launcher(LauncherKind.ACCELERATE, words[0], words[: i + 3], words[i + 3 :], torch)
    given = Given("module", "-m", "-m", None, words[i], words[i])
    reading = Reading(given=(given,), script=module, arguments=words[i + 2 :])
    return Layer(LauncherKind.PYTHON, words[0], words[: i + 1], reading), None


def _shell(words: tuple[Word, ...], known: Mapping[str, str]) -> tuple[Layer, tuple[Word, ...] | None]:
    i = 1
    while i < len(words) and words[i].text.startswith(("-", "+")) and len(words[i].text) > 1:
        if "c" in words[i].text and not words[i].text.startswith("--"):
            if i + 1 >= len(words):
                break
            return _shell_text(words, i + 1, known)
        i += 2 if words[i].text in ("-o", "-O", "+o") else 1
    joined = typo_before_program(words[i:]) if i < len(words) else None
    if joined is not None and joined.kind is TypoKind.JOINED:  # a command where the shell expects a script
        typo = replace(joined, meant=("-c", words[i].text))
        return Layer(LauncherKind.SHELL, words[0], words, typos=(typo,)), None
    return Layer(LauncherKind.SHELL, words[0], words), None


def _wrap(layer: Layer) -> tuple[Word, ...] | None:
    """The command in `sbatch --wrap='…'`."""
    given = next((g for g in reversed(layer.reading.given) if g.flag == "--wrap"), None)
    if given is None or not given.value_word.is_literal or not given.value_word.raw:
        return None
    inner = inner_text(given.value_word, "--wrap=" if given.is_joined else "")
    return launching(simple_commands(inner.text, inside=inner))


def _shell_text(words: tuple[Word, ...], i: int, known: Mapping[str, str]) -> tuple[Layer, tuple[Word, ...] | None]:
    word = words[i]
    launcher = LauncherKind.SHELL if words[0].text.rpartition("/")[2] in SHELLS else LauncherKind.WRAPPER
    layer = Layer(launcher, words[0], words[: i + 1], is_shell_text=True)
    if not word.is_literal or not word.raw:
        return layer, None
    inner = inner_text(word, known=known)
    commands = simple_commands(inner.text, inside=inner)
    started = launching(commands)
    return replace(layer, preceding=preceding(commands, started)), started


def launching(commands: Sequence[Simple]) -> tuple[Word, ...] | None:
    """The simple command that starts a job: the last one that contains a launcher or Python, or a misspelled name of
    one.
    """
    launches = [command.words for command in commands if any(is_program(word) for word in command.words)]
    launches = launches or [command.words for command in commands if meant_program(command.words[0].text) is not None]
    return launches[-1] if launches else None


def preceding(commands: Sequence[Simple], launch: tuple[Word, ...] | None) -> tuple[str, ...]:
    """The commands that a shell runs before this one: the first two words of each."""
    before = itertools.takewhile(lambda command: command.words != launch, commands)
    return tuple(" ".join(word.text for word in command.words[:2]) for command in before)
