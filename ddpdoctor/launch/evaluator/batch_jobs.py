"""Batch jobs that a shell text submits: `sbatch FILE`, `sbatch <<EOF`, `sbatch --wrap TEXT`, and commands of salloc."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.words import UNKNOWN, quote
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster import Allocation, components_of, option
from ddpdoctor.launch.evaluator.values import Value
from ddpdoctor.launch.sbatch import batch_layers

__all__ = ["BatchJob", "batch_job"]


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
    read: Callable[[str], str | None],
) -> BatchJob | None:
    """The job that this layer submits; None where its text is not known.

    Args:
        inner: the words behind the options.
        read: the text of a file.
    """
    given = " ".join(quote(word.text) for word in layer.own[1:] if not word.text.startswith("--wrap"))
    if layer.launcher is LauncherKind.SALLOC:
        layers = batch_layers("", version, given or "--nodes=1")
        return BatchJob(components_of(layers, {}), None, tuple(inner), dict(environ)) if inner else None
    wrapped = option(layer, "--wrap")
    if wrapped is not None:
        text: Value | None = Value(wrapped)
    elif inner:
        content = read(inner[0].text) if inner[0].is_known else None
        text = None if content is None else Value(content, inner[0].origins)
    else:
        text = stdin
    if text is None or text.text in ("", UNKNOWN):
        return None
    layers = batch_layers(text.text, version, given)
    if not layers:
        layers = batch_layers("", version, "--nodes=1")
    allocation = components_of(layers, {})
    return BatchJob(allocation, text, tuple(inner), _passed(allocation.exports, environ))


def _passed(exports: str | None, environ: Mapping[str, Value]) -> dict[str, Value]:
    """The environment that sbatch passes on, by its `--export`."""
    if exports is None or UNKNOWN in exports or exports.upper() == "ALL":
        return dict(environ)
    names = exports.split(",")
    kept = {name: value for name, value in environ.items() if "ALL" in names or name in names}
    return kept | {name: Value(value) for name, sign, value in (each.partition("=") for each in names) if sign}
