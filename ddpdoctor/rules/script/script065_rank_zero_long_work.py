"""SCRIPT065: rank 0 works while the others wait."""

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


@cause("SCRIPT065", "rank-zero-long-work", Severity.ERROR, stage=CausalStage.NOT_IN_COLLECTIVE)
def rank_zero_long_work(script: Script) -> Iterator[Finding]:
    """Rank 0 works longer than the timeout while the others wait.

    ## Why it matters
    A progress bar shows life until the job dies at exactly 10 minutes (NCCL) or 30 minutes (Gloo): rank 0 tokenises,
    downloads or evaluates, and the others wait in the next collective.

    ## Fix
    Do it before the job, or raise the timeout: `init_process_group(..., timeout=timedelta(hours=2))`.
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
                    f"only one rank does {code(module, work, 40)}, while the others wait in line {wait.lineno} and "
                    "give up after the "
                    "default timeout of 10 (NCCL) or 30 minutes; expected a longer timeout, or the work before the "
                    "job",
                    "timeout=timedelta(hours=…)",
                    severity=Severity.WARNING,
                    edits=(
                        with_keyword(module, inits[0], "timeout=timedelta(hours=2)"),
                        *imported(module, "timedelta", "from datetime import timedelta"),
                    ),
                )


def _is_main(module: Module, statement: ast.If) -> bool:
    found = truths(module, statement.test)
    return found[0] is True and any(f is False for f in found[1:])


def _long(module: Module, statement: ast.If) -> ast.Call | None:
    for each in statement.body:
        for node in inner(each):
            if isinstance(node, ast.Call):
                last = getattr(node.func, "attr", getattr(node.func, "id", ""))
                known = module.names.of(node.func) or ""
                is_map = last == "map" and isinstance(node.func, ast.Attribute) and not known
                is_made = last[:1].isupper()  # an Evaluator is made here, it does not evaluate yet
                named = LONG.search(last) and not is_made and not known.startswith(("torch.", "dist."))
                if (named and not (EVALUATES.search(last) and _is_short(module, node))) or is_map:
                    return node
    return None


def _is_short(module: Module, call: ast.Call) -> bool:
    """Whether what is called stands in the project and runs over no data: an evaluation of one batch."""
    target = module.target(call)
    if target is None:
        return False
    nodes = [n for statement in target.function.body for n in ast.walk(statement)]
    called = (getattr(n.func, "attr", getattr(n.func, "id", "")) for n in nodes if isinstance(n, ast.Call))
    repeats = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)
    return not any(isinstance(n, repeats) for n in nodes) and not any(n == "map" or LONG.search(n) for n in called)


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
