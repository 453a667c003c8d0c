"""SCRIPT050: the same seed for data augmentation on all ranks."""

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
_DRAWS = re.compile(r"^(torch\.(rand|randn|randint|normal|bernoulli)(_like)?|numpy\.random\.\w+|random\.\w+)$")


@cause("SCRIPT050", "same-seed-on-all-ranks", Severity.NOTE)
def same_seed_on_all_ranks(script: Script) -> Iterator[Finding]:
    """All ranks use the same random seed for data augmentation.

    ## Why it matters
    All ranks draw the same crops, flips, and dropout masks. The global batch is less varied than it looks.

    ## Fix
    Add the rank to the seed, after the model is built.

    DDP broadcasts the weights of rank 0, so that the models are equal in any case.

    ## Example
        # before
        torch.manual_seed(42)
        model = Net()

        # after
        torch.manual_seed(42)
        model = Net()
        torch.manual_seed(42 + dist.get_rank())
    """
    for module in modules(script):
        if not module.calls("DDP") or module.frameworks or not _draws(module):
            continue
        calls = module.calls("torch.manual_seed", "random.seed", "cuda.manual_seed_all", "cuda.manual_seed")
        seeds = [c for c in calls if c.args]
        if not seeds or "worker_init_fn" in module.text or any(_by_rank(module, c.args[0]) for c in seeds):
            continue
        yield point(
            module,
            seeds[0],
            f"{code(module, seeds[0])} makes all ranks draw the same random augmentations",
            "seed + rank",
            label="the same seed on every rank",
            edits=(
                replace(module, seeds[0].args[0], f'{code(module, seeds[0].args[0])} + int(os.environ.get("RANK", 0))'),
                *imported(module, "os", "import os"),
            ),
        )


def _draws(module: Module) -> bool:
    """Whether the file augments its data: with transforms, or with random numbers in a dataset's `__getitem__`."""
    if _AUGMENTS.search(module.text):
        return True
    called = (c for c in module.index.calls if _DRAWS.match(module.names.of(c.func) or ""))
    return any((f := module.index.function_of(c)) is not None and f.name == "__getitem__" for c in called)


def _by_rank(module: Module, node: ast.expr) -> bool:
    seeds = each_rank(module, node, trusting=True)
    return (
        any(f is Unknown.VARIES for f in seeds)
        or any(f != seeds[0] for f in seeds)
        or "rank" in names_in(node)
        or ("seed" in names_in(node) and not known(seeds[0]))
    )
