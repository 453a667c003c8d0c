"""SCRIPT050: one seed for the augmentations of all ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, imported, point, replace
from ddpdoctor.rules.script.script_questions import each_rank, names_in
from ddpdoctor.scripts.interpreter.abstract_values import Unknown, known
from ddpdoctor.scripts.syntax.module import Module, modules

_AUGMENTS = re.compile(
    r"Random(Crop|ResizedCrop|HorizontalFlip|VerticalFlip|Rotation|Affine|Erasing|Apply)|ColorJitter|RandAugment"
)


@cause("SCRIPT050", "same-seed-on-all-ranks", Severity.NOTE)
def same_seed_on_all_ranks(script: Script) -> Iterator[Finding]:
    """All ranks use the same random seed for data augmentation.

    ## Why it matters
    All ranks draw the same crops, flips and dropout masks, so that the global batch is less varied than it looks.

    ## Fix
    Build the model first, then seed with base + rank: DDP sends rank 0's weights to the others anyway.
    """
    for module in modules(script):
        if not module.calls("DDP") or module.frameworks or not _AUGMENTS.search(module.text):
            continue
        calls = module.calls("torch.manual_seed", "random.seed", "cuda.manual_seed_all", "cuda.manual_seed")
        told = [c for c in calls if c.args]
        if not told or "worker_init_fn" in module.text or any(_by_rank(module, c.args[0]) for c in told):
            continue
        yield point(
            module,
            told[0],
            f"{code(module, told[0])} gives all ranks one seed, and the augmentations of this file draw alike on all "
            "of them; expected "
            "the seed plus the rank once the model is built",
            "seed + rank",
            edits=(
                replace(module, told[0].args[0], f'{code(module, told[0].args[0])} + int(os.environ.get("RANK", 0))'),
                *imported(module, "os", "import os"),
            ),
        )


def _by_rank(module: Module, node: ast.expr) -> bool:
    found = each_rank(module, node, trusting=True)
    return (
        any(f is Unknown.VARIES for f in found)
        or any(f != found[0] for f in found)
        or "rank" in names_in(node)
        or ("seed" in names_in(node) and not known(found[0]))
    )
