"""`ddpdoctor env`: the launcher, and each relevant variable: its value, who set it, what it means."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ddpdoctor.cli.screens import draw_all
from ddpdoctor.facts.environ import Environ, shorten
from ddpdoctor.facts.record import Facts
from ddpdoctor.facts.variables import meaning

__all__ = ["draw"]

NARROW = 70
LONGEST_VALUE = 160
"""The middle of longer values is left out."""
SCHEDULERS = {"slurm": "Slurm", "lsf": "LSF", "pbs": "PBS", "sagemaker": "SageMaker", "kubernetes": "Kubernetes"}


def draw(facts: Facts, *, width: int, colour: bool) -> str:
    """A paragraph about the launcher, then one row per variable, also those of NCCL's files; at most `width` columns wide."""
    if facts.environ is None:
        reason = next((g.reason for g in facts.gaps if g.path == "environ"), "not collected")
        return draw_all([Text(f"environment: {reason}")], width=width, colour=colour)
    pieces: list[RenderableType] = [Text(_header(facts.environ))]
    if facts.environ.settings:
        pieces += [Text(""), _table(facts.environ, width)]
    return draw_all(pieces, width=width, colour=colour)


def _header(environ: Environ) -> str:
    if not environ.settings:
        return "No variable of a launcher, torch, NCCL, Gloo, CUDA or OpenMP is set."
    words = [_launched(environ), _place(environ)]
    if environ.master_addr:
        port = environ.get("MASTER_PORT") or environ.get("PET_MASTER_PORT") or "not set"
        words.append(f"Master {shorten(environ.master_addr, 64)}, port {shorten(port, 12)}.")
    return " ".join(word for word in words if word)


def _launched(environ: Environ) -> str:
    launchers = environ.launchers
    scheduler = SCHEDULERS.get(environ.scheduler or "")
    if not launchers:
        within = f" inside a {scheduler} job" if scheduler else ""
        return f"No launcher started this process{within}."
    inner = launchers[0]
    if inner.name == "by-hand":
        within = f" inside a {scheduler} job" if scheduler else ""
        return f"RANK and WORLD_SIZE were set by hand{within}: no launcher's variables are set."
    outer = [row.title for row in launchers[1:] if row.name not in ("by-hand", inner.name)]
    if scheduler and not any(scheduler in title for title in (inner.title, *outer)):
        outer.append(scheduler)
    return f"Started by {inner.title}" + (f" inside {' inside '.join(outer)}" if outer else "") + "."


def _place(environ: Environ) -> str:
    parts = []
    launcher = environ.launcher
    counted = "pod" if launcher is not None and launcher.counts_pods else "rank"
    for word, index, total in (
        (counted, environ.rank, environ.nnodes if counted == "pod" else environ.world_size),
        ("local rank", environ.local_rank, environ.local_world_size),
        ("node", environ.node_rank, environ.nnodes),
    ):
        if index is not None and not (word == "node" and counted == "pod"):
            parts.append(f"{word} {index}" + ("" if total is None else f" of {total}"))
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _rows(environ: Environ) -> Iterator[tuple[str, str, str, str]]:
    """Name, value, who set it, and what it means."""
    for name, value in sorted(environ.settings.items(), key=_order):
        setter = environ.source(name)[1] or environ.setter(name)
        yield shorten(name, 40), shorten(value, LONGEST_VALUE) or '""', shorten(setter, 40), meaning(name)


def _table(environ: Environ, width: int) -> Table:
    """One row per variable; in narrow terminals the setter is printed below."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), width=width, show_header=width >= NARROW)
    if width < NARROW:
        table.add_column(overflow="fold")
        for name, value, setter, _ in _rows(environ):
            table.add_row(Text(f"{name}={value}"))
            table.add_row(Padding(Text(f"by {setter.removeprefix('by ')}", style="dim"), (0, 0, 0, 4)))
        return table
    table.add_column("variable", overflow="fold")
    table.add_column("value", overflow="fold", ratio=2)
    table.add_column("set by", overflow="fold")
    table.add_column("meaning", overflow="fold", ratio=3)
    for row in _rows(environ):
        table.add_row(*map(Text, row))
    return table


_FIRST = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def _order(item: tuple[str, str]) -> tuple[int, str]:
    name = item[0]
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)
