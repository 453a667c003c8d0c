"""SCRIPT065: rank 0 does long work while the others wait."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, imported, point, with_keyword
from ddpdoctor.rules.script.rank_branches import truths
from ddpdoctor.rules.script.script_questions import argument
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.nodes import inner
from ddpdoctor.scripts.syntax.vocabulary import COLLECTIVES

EVALUATES = re.compile(r"(?i)evaluate|validate|validation|^test|^eval(?!$)")
LONG = re.compile(
    r"(?i)preprocess|tokeni[sz]e|download|build_(index|dataset|vocab)|prepare_(data|dataset)|convert|extract|generate|untar|"
    rf"unzip|load_dataset|snapshot|{EVALUATES.pattern.removeprefix('(?i)')}"
)
_STARTS = (
    "map",
    "run",
    "system",
    "Popen",
    "check_call",
    "check_output",
    "urlretrieve",
    "load",
    "from_pretrained",
    "sleep",
)
"""Functions and methods that may take long, although their name does not say so."""


@cause("SCRIPT065", "rank-zero-long-work", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def rank_zero_long_work(script: Script) -> Iterator[Finding]:
    """Rank 0 works longer than the timeout while the others wait.

    ## Why it matters
    Rank 0 tokenizes, downloads, or evaluates, and the other ranks wait in the next collective. A progress bar moves
    until the job fails after exactly 10 minutes (NCCL) or 30 minutes (Gloo).

    ## Fix
    Do the work before the job, or raise the timeout of init_process_group.

    ## Example
        # before
        dist.init_process_group("nccl")
        if dist.get_rank() == 0:
            tokenize(dataset)  # takes an hour
        dist.barrier()
        # after 10 minutes: the watchdog reports a timeout on all other ranks

        # after
        dist.init_process_group("nccl", timeout=timedelta(hours=2))
        if dist.get_rank() == 0:
            tokenize(dataset)
        dist.barrier()
    """
    for module in modules(script):
        inits = module.calls("dist.init_process_group")
        if not inits or any(argument(c, None, "timeout") is not None for c in inits):
            continue
        for statement in (n for n in module.index.parents if isinstance(n, ast.If)):
            work = _long(module, statement)
            if work is None or not _is_main(module, statement):
                continue
            wait = _waits_after(module, statement)
            if wait is not None:
                yield point(
                    module,
                    work,
                    f"rank 0 runs {code(module, work, 40)} while other ranks wait in line {wait.lineno}",
                    "timeout=timedelta(hours=…)",
                    label="default timeout: 10 (NCCL) or 30 minutes",
                    fix="Do it before the job, or pass `timeout=timedelta(hours=2)` to init_process_group.",
                    severity=Severity.NOTE if _is_evaluation(work) else Severity.WARNING,
                    edits=(
                        with_keyword(module, inits[0], "timeout=timedelta(hours=2)"),
                        *imported(module, "timedelta", "from datetime import timedelta"),
                    ),
                )


def _is_evaluation(call: ast.Call) -> bool:
    """Whether it is an evaluation, which takes seconds as often as hours."""
    last = getattr(call.func, "attr", getattr(call.func, "id", ""))
    return any(word in last.lower() for word in ("eval", "valid", "test"))


def _is_main(module: Module, statement: ast.If) -> bool:
    values = truths(module, statement.test)
    return values[0] is True and any(f is False for f in values[1:])


def _long(module: Module, statement: ast.If) -> ast.Call | None:
    for body_statement in statement.body:
        for node in inner(body_statement):
            if isinstance(node, ast.Call):
                last = getattr(node.func, "attr", getattr(node.func, "id", ""))
                known = module.names.of(node.func) or ""
                is_map = last == "map" and isinstance(node.func, ast.Attribute) and not known
                is_made = last[:1].isupper()  # this only creates an Evaluator
                named = LONG.search(last) and not is_made and not known.startswith(("torch.", "dist."))
                if (named and not _is_short(module, node)) or is_map:
                    return node
    return None


def _is_short(module: Module, call: ast.Call) -> bool:
    """Whether the called function is in the project, has no loop, and starts nothing that may take long."""
    target = module.target(call)
    if target is None:
        return False
    nodes = [n for statement in target.function.body for n in ast.walk(statement)]
    called = (getattr(n.func, "attr", getattr(n.func, "id", "")) for n in nodes if isinstance(n, ast.Call))
    repeats = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)
    return not any(isinstance(n, repeats) for n in nodes) and not any(n in _STARTS or LONG.search(n) for n in called)


def _waits_after(module: Module, statement: ast.If) -> ast.Call | None:
    """The first collective after the branch in the same block."""
    parent = module.index.parents[statement]
    block = next(
        (b for n in ("body", "orelse") if isinstance(b := getattr(parent, n, None), list) and statement in b), []
    )
    for following in block[block.index(statement) + 1 :] if block else ():
        for node in inner(following):
            if isinstance(node, ast.Call) and module.names.of(node.func) in COLLECTIVES:
                return node
    return None
