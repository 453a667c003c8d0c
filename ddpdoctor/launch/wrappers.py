"""Programs that run another program, and how that program is found in their words."""

from __future__ import annotations

from ddpdoctor.facts.launch.layer import Layer, Variable
from ddpdoctor.facts.launch.programs import WRAPPERS, LauncherKind, Syntax
from ddpdoctor.facts.launch.reading import Given, Reading
from ddpdoctor.facts.launch.words import Word
from ddpdoctor.launch.program_names import is_program

__all__ = ["searched", "unjudged", "wrapped"]


def wrapped(words: tuple[Word, ...], syntax: Syntax, launcher: LauncherKind) -> tuple[Layer, tuple[Word, ...] | None]:
    given: list[Given] = []
    variables: list[Variable] = []
    i, operands, subcommand = 1, syntax.operands, bool(syntax.subcommands)
    is_open = False
    while i < len(words):
        word = words[i]
        text = word.text
        if text == "--":
            i += 1
            if operands and launcher is not LauncherKind.CONTAINER:
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
        elif (
            launcher is LauncherKind.WRAPPER and word.assignment and words[0].text.rpartition("/")[2] in ("env", "sudo")
        ):
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
    return is_program(word) or name in WRAPPERS or word.assignment is not None or name in ("salloc",)


def _search(words: tuple[Word, ...]) -> tuple[Word, ...] | None:
    """An unknown option of the wrapper may have used a word: continue at the first launcher."""
    if any(w.text.endswith((".py", ".sh")) for w in words[:1]):
        return None
    at = next((i for i, w in enumerate(words) if is_program(w)), None)
    return None if at is None else words[at:]


def unjudged(words: tuple[Word, ...], launcher: LauncherKind) -> tuple[Layer, tuple[Word, ...] | None]:
    """jsrun, flux and ray: their own options are not read, only the program that they start is looked for."""
    rest = words[1:]
    if launcher is LauncherKind.RAY:
        texts = [w.text for w in words]
        rest = words[texts.index("--") + 1 :] if texts[1:3] == ["job", "submit"] and "--" in texts else ()
    inner = _search(rest) if rest else None
    layer = Layer(launcher, words[0], words[: len(words) - len(inner or ())], Reading(is_open=True))
    return layer, inner


_PACKAGES = frozenset(
    ("pip", "pip3", "conda", "mamba", "apt", "apt-get", "dnf", "yum", "install", "uninstall", "rm", "which")
)
"""Programs and commands whose arguments are names, not commands."""


def searched(words: tuple[Word, ...]) -> tuple[Layer, tuple[Word, ...] | None]:
    rest = words[1:]
    inner = _search(rest) if rest else None
    if inner is not None and any(word.text in _PACKAGES for word in rest[: len(rest) - len(inner)]):
        inner = None  # the name of a package: `$SUDO pip uninstall deepspeed`
    layer = Layer(LauncherKind.OTHER, words[0], words[: len(words) - len(inner or ())], Reading(is_open=True))
    return layer, inner


def _wrapper_option(
    words: tuple[Word, ...], i: int, syntax: Syntax, given: list[Given], variables: list[Variable]
) -> int:
    word = words[i]
    name, sign, value = word.text.partition("=")
    after = words[i + 1] if i + 1 < len(words) else None
    if word.text in syntax.doubles:
        if after is not None and "env" in word.text and after.assignment is not None:
            variables.append(Variable(*after.assignment, after))  # `-genv NAME=value`
            return i + 2
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
