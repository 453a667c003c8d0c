"""ENV009, ENV010, ENV011, ENV505: the PET_* variables, from which torchrun takes the defaults of its options."""

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
"""The options that decide who runs and who meets whom; the others only decide about logs and patience."""


@cause("ENV009", "stray-pet-variable", Severity.WARNING)
def stray_pet_variable(environ: Environ) -> Iterator[Finding]:
    """PET_* variables change what torchrun does without an option on its line.

    ## Why it matters
    torchrun takes the default of every option from a variable: PET_NNODES=2 in a copied .bashrc makes a command for one
    node wait 15 minutes for a second one, PET_NPROC_PER_NODE=2 starts two workers, and nothing on the line explains it.
    Operators such as Kubeflow set these variables on purpose.

    ## Fix
    Unset them, or give the option on torchrun's line, which wins.

    ## Source
    torch/distributed/argparse_util.py: `env` and `check_env`.
    """
    found = [name for name in PET_OPTIONS if name in environ.variables]
    if not found or environ.scheduler == "kubernetes" or _is_deliberate(environ):
        return
    shaping = [name for name in found if name in SHAPING]
    shown = ", ".join(f"{name}={shorten(environ.variables[name], 30)}" for name in found)
    options = ", ".join(PET_OPTIONS[name] for name in found)
    yield Finding(
        f"{shown}: torchrun takes this as its default for {options}; expected options on its line",
        tuple(Evidence(f"environ.variables.{name}", shorten(environ.variables[name]), "unset") for name in found),
        fix_command=f"unset {' '.join(found)}",
        severity=None if shaping else Severity.NOTE,
    )


def _is_deliberate(environ: Environ) -> bool:
    """A whole set, with a number of nodes and the place to meet: somebody starts torchrun by variables."""
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
    torchrun reads it while it builds its parser, so that even `torchrun --help` ends with `ValueError: invalid literal for
    int() with base 10: 'true'` (or `''`) and a traceback that names no variable.

    ## Fix
    Set PET_STANDALONE=1, or unset it.
    """
    value = environ.get("PET_STANDALONE")
    if value is None or as_integer(value) is not None:
        return
    yield Finding(
        f"PET_STANDALONE={shorten(value)!r} is no integer: expected 1 or unset; torchrun stops at once",
        (Evidence("environ.variables.PET_STANDALONE", shorten(value), "1 or unset"),),
        fix_command="unset PET_STANDALONE",
    )


@cause("ENV011", "pet-variable-unknown", Severity.WARNING)
def pet_variable_unknown(environ: Environ) -> Iterator[Finding]:
    """A PET_* variable has a name that torchrun does not read.

    ## Why it matters
    torchrun looks only for PET_ and the exact name of an option. Some operators set PET_N_PROC_PER_NODE: nothing complains,
    and one process a node is started.

    ## Fix
    Use the name of the option: PET_NPROC_PER_NODE for --nproc-per-node, or give the option itself.
    """
    for name in environ.variables:
        if not name.startswith("PET_") or name in PET_OPTIONS:
            continue
        meant = _meant(name)
        if meant is None and environ.scheduler != "kubernetes" and not set(PET_OPTIONS) & set(environ.variables):
            continue  # nothing says that this is meant for torchrun
        hint = f"expected {meant}" if meant else "expected the name of one of its options"
        yield Finding(
            f"{shorten(name, 40)} is not read by torchrun: {hint}",
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
    """A PET_* variable that torchrun reads as a number holds none.

    ## Why it matters
    torchrun stops while it builds or reads its options: `invalid literal for int() with base 10` without the name of the
    variable for the flags, `argument --node-rank: invalid int value` for the others.

    ## Fix
    Set the variable to an integer (1 for a flag), or unset it.

    ## Source
    torch/distributed/argparse_util.py: `check_env` calls int(); argparse converts the other defaults.
    """
    for name in (*FLAGS, *INTEGERS):
        value = environ.get(name)
        if value is not None and as_integer(value) is None:
            yield Finding(
                f"{name}={shorten(value)!r} is no integer: expected one; torchrun stops at once",
                (Evidence(f"environ.variables.{name}", shorten(value), "an integer"),),
                fix_command=f"unset {name}",
            )
