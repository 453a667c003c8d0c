"""SCRIPT555: an input or output that is not world_size times the other one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.script_questions import argument, has_more, start_of
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.interpreter.simulated_job import one_node
from ddpdoctor.scripts.interpreter.tensors import tensor_of
from ddpdoctor.scripts.syntax.module import Module, modules
from ddpdoctor.scripts.syntax.vocabulary import GROUP_POSITION

_LARGER_FIRST = {"dist.all_gather_into_tensor": True, "dist.reduce_scatter_tensor": False}
"""Whether the output, the first argument, is the larger tensor."""
_WORLDS = (2, 3, 4, 8)


@cause(
    "SCRIPT555",
    "output-size-wrong",
    Severity.ERROR,
    signatures=(r"(output|input) tensor size must be equal to world[_ ]size times (output|input) tensor size",),
)
def output_size_wrong(script: Script, launch: Launch | None = None) -> Iterator[Finding]:
    """One tensor is not world_size times as large as the other.

    ## Why it matters
    It fails with `ValueError: output tensor size must be equal to world_size times input tensor size`, or `input tensor
    size must be equal to world size times output tensor size`.

    ## Fix
    Pad to a multiple of the world size first.

    ## Example
        # before
        shard = torch.empty(len(flat) // world_size)
        dist.reduce_scatter_tensor(shard, flat)
        # ValueError: input tensor size must be equal to world size times output tensor size

        # after
        flat = F.pad(flat, (0, -len(flat) % world_size))
        shard = torch.empty(len(flat) // world_size)
        dist.reduce_scatter_tensor(shard, flat)

    ## Source
    torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp (_allgather_base, _reduce_scatter_base).
    """
    for module in modules(script):
        start = start_of(module, launch)
        known = start.world if start is not None and start.gives_ranks else None
        for name, is_larger_first in _LARGER_FIRST.items():
            for call in module.calls(name):
                output, given = argument(call, 0, "output_tensor", "output"), argument(call, 1, "input_tensor", "input")
                is_of_group = argument(call, GROUP_POSITION.get(name), "group") is not None
                if output is None or given is None or has_more(call) or is_of_group:
                    continue
                large, small = (output, given) if is_larger_first else (given, output)
                worlds = (known,) if known and 2 <= known <= 64 else _WORLDS
                sizes = [_sizes(module, world, large, small) for world in worlds]
                if all(s is not None and s[0] != s[1] * world for s, world in zip(sizes, worlds, strict=True)):
                    yield point(
                        module,
                        call,
                        f"{code(module, large, 30)} is not world_size times as large as {code(module, small, 30)}",
                        "sizes with the ratio world_size",
                        label=f"{_elements(sizes[0])} elements on {worlds[0]} ranks",
                    )


def _sizes(module: Module, world: int, large: ast.expr, small: ast.expr) -> tuple[int, int] | None:
    """The numbers of elements of both tensors in a world of this size; None if one is unknown."""
    evaluator = RankEvaluator(module, one_node(world)[0], trusting=True)
    tensors = [tensor_of(evaluator, node, evaluator.frame_of(node)) for node in (large, small)]
    counts = [t.elements for t in tensors if t is not None and t.elements is not None]
    return (counts[0], counts[1]) if len(counts) == 2 else None


def _elements(sizes: tuple[int, int] | None) -> str:
    return f"{sizes[0]} and {sizes[1]}" if sizes is not None else "other"
