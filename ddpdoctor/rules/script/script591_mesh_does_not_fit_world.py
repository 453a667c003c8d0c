"""SCRIPT591: a device mesh with another number of ranks than the job."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ddpdoctor.facts.launch.record import Launch
from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.script_questions import argument, start_of
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.interpreter.simulated_job import one_node
from ddpdoctor.scripts.syntax.module import modules


@cause(
    "SCRIPT591",
    "mesh-does-not-fit-world",
    Severity.ERROR,
    signatures=(r"Mesh should not be bigger than default world size",),
)
def mesh_does_not_fit_world(script: Script, launch: Launch) -> Iterator[Finding]:
    """The device mesh does not have as many ranks as the launch line starts.

    ## Why it matters
    A larger mesh fails with `RuntimeError: Mesh should not be bigger than default world size`. With a smaller one some
    ranks belong to no group, and do nothing while the others communicate.

    ## Fix
    Choose dimensions whose product is the world size: `(world_size // tp, tp)`.

    ## Example
        # before
        # torchrun --nproc-per-node=4 train.py
        mesh = init_device_mesh("cuda", (2, 4))
        # RuntimeError: Mesh should not be bigger than default world size

        # after
        mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2))

    ## Source
    torch/distributed/device_mesh.py.
    """
    for module in modules(script):
        start = start_of(module, launch)
        if start is None or start.world is None or not start.gives_ranks or not 2 <= start.world <= 4096:
            continue
        rank = RankEvaluator(module, one_node(start.world)[0])
        for call in module.calls("dist.init_device_mesh", "dist.device_mesh.init_device_mesh"):
            shape = argument(call, 1, "mesh_shape")
            sizes = rank.value(shape) if shape is not None else None
            if shape is None or not isinstance(sizes, (tuple, list)) or not all(type(s) is int for s in sizes):
                continue
            size = math.prod(s for s in sizes if isinstance(s, int))
            if size > 0 and size != start.world:
                yield point(
                    module,
                    shape,
                    f"the mesh {code(module, shape, 30)} has {size} ranks, but the launch line starts {start.world}",
                    f"{start.world} ranks",
                    label="larger than the world" if size > start.world else "some ranks are in no group",
                )
