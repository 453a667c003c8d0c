"""SCRIPT004: LOCAL_RANK is used as a string where a number is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace, safe
from ddpdoctor.rules.script.script001_to_003_device_selection import choices
from ddpdoctor.rules.script.script_questions import argument, each_rank, value
from ddpdoctor.scripts.syntax.module import Module, modules


@cause(
    "SCRIPT004",
    "local-rank-is-a-string",
    Severity.ERROR,
    signatures=(r"Invalid device string: '\d+'", r"argument 'index' \(position \d+\) must be int, not str"),
)
def local_rank_is_a_string(script: Script) -> Iterator[Finding]:
    """LOCAL_RANK is used as a string.

    ## Why it matters
    Environment variables are strings: as a device this fails with `Invalid device string: '0'` or `argument 'index'
    (position 2) must be int, not str`. Compared with a number it is never equal, so that no rank acts as rank 0,
    without any error.

    ## Fix
    Convert it: `int(os.environ["LOCAL_RANK"])`.

    ## Example
        # before
        local_rank = os.environ["LOCAL_RANK"]
        torch.cuda.set_device(local_rank)
        # RuntimeError: Invalid device string: '0'

        # after
        local_rank = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local_rank)
    """
    for module in modules(script):
        for node, part, consequence in _as_numbers(module):
            values = each_rank(module, part)
            if all(isinstance(v, str) and v.isdigit() for v in values):
                yield point(
                    module,
                    node,
                    f"{code(module, part)} is the string '{values[-1]}', not a number",
                    f"int({code(module, part)})",
                    label=consequence,
                    fix=f"Convert it: `int({code(module, part)})`.",
                    edits=safe((replace(module, part, f"int({code(module, part, 200)})"),)),
                )


def _as_numbers(module: Module) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Places that need a number: the node, the expression, and what happens with a string."""
    for node, part in choices(module):
        yield node, part, 'torch raises "Invalid device string"'
    for call in module.calls("dist.init_process_group", "DistributedSampler"):
        for name in ("rank", "world_size", "num_replicas"):
            given = argument(call, None, name)
            if given is not None:
                yield call, given, "torch raises a TypeError"
    if "environ" in module.text or "getenv" in module.text:
        for compare in module.index.parents:
            if isinstance(compare, ast.Compare) and len(compare.ops) == 1:
                yield from _compared(module, compare)


def _compared(module: Module, node: ast.Compare) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    op = node.ops[0]
    for part, against in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
        if not isinstance(against, ast.Constant) or isinstance(part, ast.Constant):
            continue
        number = value(module, against)
        if isinstance(op, (ast.Eq, ast.NotEq)) and type(number) is int and number >= 0:
            never = "never" if isinstance(op, ast.Eq) else "always"
            yield node, part, f"this condition is {never} true"
        elif isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and type(number) is int:
            yield node, part, "TypeError: '<' not supported between 'str' and 'int'"
