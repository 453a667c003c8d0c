"""Batch jobs that a shell text submits: `sbatch FILE`, `sbatch <<EOF`, `sbatch --wrap TEXT`, salloc, qsub and `flux batch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.words import UNKNOWN, quote
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster import Allocation, components_of, option
from ddpdoctor.launch.evaluator.schedulers import allocation_of_script
from ddpdoctor.launch.evaluator.values import Value
from ddpdoctor.launch.sbatch import batch_layers
from ddpdoctor.light_dataclass import dataclass

__all__ = ["BatchJob", "batch_job", "other_batch_job"]


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job that a command submits: what it is given, its text, the words after its script, and its environment.

    `text` is None for salloc, whose words `arguments` are a command that runs where salloc does.
    """

    allocation: Allocation
    text: Value | None
    arguments: tuple[Value, ...]
    environ: dict[str, Value]


def batch_job(
    layer: Layer,
    inner: Sequence[Value],
    stdin: Value | None,
    environ: Mapping[str, Value],
    version: Version,
    read: Callable[[Value], Value | None],
) -> BatchJob | None:
    """The job that this layer submits; None where its text is not known.

    Args:
        inner: the words after the options.
        read: the text of the file that a word names.
    """
    given = " ".join(quote(word.text) for word in layer.own[1:] if not word.text.startswith("--wrap"))
    if layer.launcher is LauncherKind.SALLOC:
        layers = batch_layers("", version, given or "--nodes=1")
        return BatchJob(components_of(layers, {}), None, tuple(inner), dict(environ)) if inner else None
    wrapped = option(layer, "--wrap")
    if wrapped is not None:
        text: Value | None = Value(wrapped)
    elif inner:
        text = read(inner[0])
    else:
        text = stdin
    if text is None or text.text in ("", UNKNOWN):
        return None
    layers = batch_layers(text.text, version, given)
    if not layers:
        layers = batch_layers("", version, "--nodes=1")
    allocation = components_of(layers, {})
    return BatchJob(allocation, text, tuple(inner), _passed(allocation.exports, environ))


_FLAGS = ("--exclusive", "-x", "--wait", "--dry-run", "--quiet", "-V", "-I", "-W", "-cwd", "-h", "-terse", "-k")
"""Options of `flux batch` and qsub that take no value."""


def other_batch_job(
    words: Sequence[Value],
    stdin: Value | None,
    environ: Mapping[str, Value],
    version: Version,
    read: Callable[[Value], Value | None],
) -> BatchJob | None:
    """The job of `flux batch` or qsub: its options precede those of the script's comments, and win.

    Args:
        words: those after `flux batch` or `qsub`.
    """
    at, options, own = 0, [], {}
    while at < len(words) and words[at].text.startswith("-"):
        option, taken = words[at].text, 1
        is_whole = "=" in option or option in _FLAGS or (not option.startswith("--") and option[2:].isdigit())
        if not is_whole:
            taken = 3 if option == "-pe" else 2
        options.append(" ".join(word.text for word in words[at : at + taken]))
        name, sign, value = option.removeprefix("--env=").partition("=")
        if option.startswith("--env=") and sign:
            own[name] = Value(value, words[at].origins)
        at += taken
    rest = tuple(words[at:])
    text = read(rest[0]) if rest else stdin
    if text is None or text.text in ("", UNKNOWN):
        return None
    signs = [sign for sign in ("#PBS", "#$", "#flux:") if sign in text.text]
    found = [
        allocation_of_script(
            "\n".join((*_comments(text.text), *(f"{sign} {each}" for each in options))), "", {}, version
        )
        for sign in signs or (("#flux:",) if own or any("--nodes" in each for each in options) else ("#PBS", "#$"))
    ]
    return BatchJob(found[-1], text, rest, {**environ, **own})


def _comments(text: str) -> list[str]:
    return [row for row in text.splitlines() if row.startswith("#")]


def _passed(exports: str | None, environ: Mapping[str, Value]) -> dict[str, Value]:
    """The environment that sbatch passes on, by its `--export`."""
    if exports is None or UNKNOWN in exports or exports.upper() == "ALL":
        return dict(environ)
    names = exports.split(",")
    kept = {name: value for name, value in environ.items() if "ALL" in names or name in names}
    return kept | {name: Value(value) for name, sign, value in (each.partition("=") for each in names) if sign}
