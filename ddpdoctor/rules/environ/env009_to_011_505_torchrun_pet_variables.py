"""ENV009, ENV010, ENV011, ENV505: the PET_* variables, which are the defaults of torchrun's options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ, as_integer, shorten
from ddpdoctor.facts.variables import PET_OPTIONS
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause

FLAGS = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PET_VIRTUAL_LOCAL_RANK")
INTEGERS = ("PET_NODE_RANK", "PET_MAX_RESTARTS", "PET_SHUTDOWN_TIMEOUT")
SHAPING = (*list(PET_OPTIONS)[:11], "PET_NO_PYTHON", "PET_MODULE", "PET_RUN_PATH", "PET_VIRTUAL_LOCAL_RANK")
"""The options that decide which processes run and how they rendezvous; the others concern logs and time limits."""


@cause("ENV009", "stray-pet-variable", Severity.WARNING)
def stray_pet_variable(environ: Environ) -> Iterator[Finding]:
    """PET_* variables change what torchrun does although its command line does not show it.

    ## Why it matters
    torchrun takes the default of every option from such a variable. PET_NNODES=2 in a copied .bashrc makes a
    command for one node wait 15 minutes for a second node, and PET_NPROC_PER_NODE=2 starts two workers; operators
    such as Kubeflow set these variables on purpose.

    ## Fix
    Unset them, or give the option on torchrun's command line, which wins.

    ## Example

        PET_NNODES=2 is torchrun's default for --nnodes

        # before: waits 15 minutes for a second node
        export PET_NNODES=2          # in .bashrc
        torchrun --nproc-per-node 8 train.py

        # after
        unset PET_NNODES
        torchrun --nproc-per-node 8 train.py

    ## Source
    torch/distributed/argparse_util.py: `env` and `check_env`.
    """
    variables = [name for name in PET_OPTIONS if name in environ.variables]
    if not variables or environ.scheduler == "kubernetes" or _is_deliberate(environ):
        return
    shaping = [name for name in variables if name in SHAPING]
    shown = ", ".join(f"{name}={shorten(environ.variables[name], 30)}" for name in variables)
    options = ", ".join(PET_OPTIONS[name] for name in variables)
    count = "is torchrun's default" if len(variables) == 1 else "are torchrun's defaults"
    yield Finding(
        f"{shown} {count} for {options}",
        tuple(Evidence(f"environ.variables.{name}", shorten(environ.variables[name]), "unset") for name in variables),
        fix_command=f"unset {' '.join(variables)}",
        severity=None if shaping else Severity.NOTE,
    )


def _is_deliberate(environ: Environ) -> bool:
    """Whether the set is complete, with the number of nodes and the rendezvous address: torchrun is then configured by
    variables.
    """
    return environ.has("PET_NNODES") and (environ.has("PET_MASTER_ADDR") or environ.has("PET_RDZV_ENDPOINT"))


@cause(
    "ENV010",
    "pet-standalone-not-integer",
    Severity.ERROR,
    signatures=(r"invalid literal for int\(\) with base 10: '(true|True|false|False)'",),
)
def pet_standalone_not_integer(environ: Environ) -> Iterator[Finding]:
    """PET_STANDALONE is not an integer.

    ## Why it matters
    torchrun reads it while it builds its parser. Even `torchrun --help` ends with `ValueError: invalid literal for
    int() with base 10: 'true'` (or `''`) and a traceback that does not name the variable.

    ## Fix
    Set PET_STANDALONE=1, or unset it.

    ## Example

        ValueError: invalid literal for int() with base 10: 'true'

        # before
        export PET_STANDALONE=true
        # after
        export PET_STANDALONE=1
    """
    value = environ.get("PET_STANDALONE")
    if value is None or as_integer(value) is not None:
        return
    yield Finding(
        f"PET_STANDALONE={shorten(value)!r} is not an integer; torchrun cannot start",
        (Evidence("environ.variables.PET_STANDALONE", shorten(value), "1 or unset"),),
        fix_command="unset PET_STANDALONE",
    )


@cause("ENV011", "pet-variable-unknown", Severity.WARNING)
def pet_variable_unknown(environ: Environ) -> Iterator[Finding]:
    """A PET_* variable has a name that torchrun does not read.

    ## Why it matters
    torchrun reads only PET_ followed by the exact name of an option. Some operators set PET_N_PROC_PER_NODE:
    torchrun prints no warning and starts one process per node.

    ## Fix
    Use the name of the option (PET_NPROC_PER_NODE for --nproc-per-node), or give the option itself.

    ## Example

        torchrun does not read PET_N_PROC_PER_NODE; did you mean PET_NPROC_PER_NODE?

        # before: one process per node
        export PET_N_PROC_PER_NODE=8
        # after
        export PET_NPROC_PER_NODE=8
    """
    for name in environ.variables:
        if not name.startswith("PET_") or name in PET_OPTIONS:
            continue
        meant = _meant(name)
        if meant is None and environ.scheduler != "kubernetes" and not set(PET_OPTIONS) & set(environ.variables):
            continue  # it may not be for torchrun at all
        hint = f"; did you mean {meant}?" if meant else ""
        yield Finding(
            f"torchrun does not read {shorten(name, 40)}{hint}",
            (Evidence(f"environ.variables.{shorten(name)}", shorten(environ.variables[name]), meant or "unset"),),
            fix_command=f"export {meant}={environ.variables[name]}"
            if meant and re.fullmatch(r"[\w.:-]{1,64}", environ.variables[name])
            else None,
        )


def _meant(name: str) -> str | None:
    upper = name.upper()
    beginnings = [known for known in PET_OPTIONS if known.startswith(upper.rstrip("S")) and len(upper) > len("PET_N")]
    if beginnings:
        return beginnings[0]
    return next(iter(difflib.get_close_matches(upper, PET_OPTIONS, n=1, cutoff=0.7)), None)


@cause("ENV505", "pet-value-not-integer", Severity.ERROR, scope=CauseScope.PROCESS)
def pet_value_not_integer(environ: Environ) -> Iterator[Finding]:
    """A PET_* variable that torchrun reads as a number is not a number.

    ## Why it matters
    torchrun stops while it reads its options. For a flag it prints `invalid literal for int() with base 10` without
    the variable's name, for another option `argument --node-rank/--node_rank: invalid int value`.

    ## Fix
    Set the variable to an integer (1 for a flag), or unset it.

    ## Example

        torchrun: error: argument --node-rank/--node_rank: invalid int value: 'first'

        # before
        export PET_NODE_RANK=first
        # after
        export PET_NODE_RANK=0

    ## Source
    torch/distributed/argparse_util.py: `check_env` calls int(); argparse converts the other defaults.
    """
    for name in (*FLAGS, *INTEGERS):
        value = environ.get(name)
        if value is not None and as_integer(value) is None:
            yield Finding(
                f"{name}={shorten(value)!r} is not an integer; torchrun cannot start",
                (Evidence(f"environ.variables.{name}", shorten(value), "an integer"),),
                fix_command=f"unset {name}",
            )
