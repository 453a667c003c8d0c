"""SCRIPT004: the text of LOCAL_RANK where a number is needed."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace
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
    Variables are text. As a device it ends with `Invalid device string: '0'` or `argument 'index' (position 2) must be
    int, not str`; compared with a number it is silently never equal, so that no rank acts as the first one.

    ## Fix
    `int(os.environ["LOCAL_RANK"])`.
    """
    for module in modules(script):
        for node, part, consequence in _as_numbers(module):
            found = each_rank(module, part)
            if all(isinstance(v, str) and v.isdigit() for v in found):
                yield point(
                    module,
                    node,
                    f"{code(module, part)} is text such as '{found[-1]}' here: {consequence}; expected a number",
                    f"int({code(module, part)})",
                    edits=(replace(module, part, f"int({code(module, part, 200)})"),),
                )


def _as_numbers(module: Module) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    """Places that need a number: the node, the expression, what a text does there."""
    for node, part in choices(module):
        yield node, part, 'torch knows no such device ("Invalid device string")'
    for call in module.calls("dist.init_process_group", "DistributedSampler"):
        for name in ("rank", "world_size", "num_replicas"):
            given = argument(call, None, name)
            if given is not None:
                yield call, given, "torch compares it with a number and raises a TypeError"
    if "environ" in module.text or "getenv" in module.text:
        for each in module.index.parents:
            if isinstance(each, ast.Compare) and len(each.ops) == 1:
                yield from _compared(module, each)


def _compared(module: Module, node: ast.Compare) -> Iterator[tuple[ast.expr, ast.expr, str]]:
    op = node.ops[0]
    for part, against in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
        if not isinstance(against, ast.Constant) or isinstance(part, ast.Constant):
            continue
        number = value(module, against)
        if isinstance(op, (ast.Eq, ast.NotEq)) and type(number) is int and number >= 0:
            never = "never" if isinstance(op, ast.Eq) else "always"
            yield node, part, f"the condition is {never} true, whatever the rank"
        elif isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and type(number) is int:
            yield node, part, "TypeError: '<' not supported between instances of 'str' and 'int'"
