"""Values of expressions on each rank of the imagined job: what is followed, and what stays unknown."""

from __future__ import annotations

import ast

import pytest

from ddpdoctor.facts.script import Script, SourceFile
from ddpdoctor.scripts.interpreter.abstract_values import TorchDevice, Unknown
from ddpdoctor.scripts.interpreter.rank_evaluator import RankEvaluator
from ddpdoctor.scripts.interpreter.simulated_job import TWO_NODES, one_node
from ddpdoctor.scripts.syntax.module import Module, modules

RANKS = [0, 1, 2, 3]
LOCAL = [0, 1, 0, 1]
MAIN = [True, False, False, False]
HEAD = "import os, argparse, torch\nimport torch.distributed as dist\n"


def _module(text: str, **beside: str) -> Module:
    others = tuple(SourceFile(f"{name}.py", body) for name, body in beside.items())
    (module,) = modules(Script(files=(SourceFile("train.py", HEAD + text),), beside=others))
    return module


def _asked(module: Module) -> ast.expr:
    """The argument of the call of `asked`."""
    return next(c.args[0] for c in module.index.calls if isinstance(c.func, ast.Name) and c.func.id == "asked")


def _on_each_rank(text: str, *, trusting: bool = False, **beside: str) -> list[object]:
    module = _module(text, **beside)
    return [RankEvaluator(module, place, trusting=trusting).value(_asked(module)) for place in TWO_NODES]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("asked(dist.get_rank())", RANKS),
        ('asked(int(os.environ["LOCAL_RANK"]))', LOCAL),
        ('asked(os.environ["LOCAL_RANK"])', ["0", "1", "0", "1"]),
        ('env = os.environ\nasked(int(env.get("RANK", 0)))', RANKS),
        ("asked(f\"cuda:{int(os.getenv('RANK'))}\")", ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("rank = dist.get_rank()\nasked(rank % torch.cuda.device_count())", LOCAL),
        ("rank = 0\nif use():\n    rank = dist.get_rank()\nasked(rank)", RANKS),
        ("main = False\nif dist.get_rank() == 0:\n    main = True\nasked(main)", MAIN),
        ("first, rank = 1, dist.get_rank()\nasked(rank)", RANKS),
        ('asked(torch.device("cuda", int(os.environ["LOCAL_RANK"])))', [TorchDevice("cuda", n) for n in LOCAL]),
        (
            "def get():\n    if not dist.is_initialized():\n        return 0\n    return dist.get_rank()\nasked(get())",
            RANKS,
        ),
        ("def f(rank):\n    asked(rank)\nf(dist.get_rank())", RANKS),
        ("def f(*, rank=None):\n    asked(rank)\nf(rank=dist.get_rank())", RANKS),
        (
            "class A:\n    def __init__(self, r):\n        self.r = r\n"
            "    def go(self):\n        asked(self.r)\nA(dist.get_rank())",
            RANKS,
        ),
        (
            "class A:\n    @property\n    def main(self):\n        return dist.get_rank() == 0\n"
            "    def go(self):\n        asked(self.main)",
            MAIN,
        ),
        (
            'p = argparse.ArgumentParser()\np.add_argument("--local-rank", type=int)\n'
            "args = p.parse_args()\nasked(args.local_rank)",
            LOCAL,
        ),
        ("def f(args):\n    args.rank = dist.get_rank()\n    asked(args.rank)", RANKS),
        ("asked([1] * dist.get_world_size())", [[1] * 4] * 4),
        ("asked([i for i in range(dist.get_world_size())][dist.get_rank()])", RANKS),
        (
            "import torch.multiprocessing as mp\ndef f(index, n):\n    asked(index)\nmp.spawn(f, args=(2,), nprocs=2)",
            LOCAL,
        ),
        ("from torch.distributed import get_rank as who\nasked(who())", RANKS),
        ("from accelerate import Accelerator\na = Accelerator()\nasked(a.is_main_process)", MAIN),
    ],
)
def test_a_value_is_followed(text: str, expected: list[object]) -> None:
    assert _on_each_rank(text) == expected


def test_a_dataclass_reads_the_environment() -> None:
    text = """
from dataclasses import dataclass, field
@dataclass
class Config:
    rank: int = field(default_factory=lambda: int(os.environ["RANK"]))
config = Config()
asked(config.rank)
"""
    assert _on_each_rank(text) == RANKS


def test_a_helper_of_a_module_beside_is_read() -> None:
    helper = "import torch.distributed as dist\ndef is_main():\n    return dist.get_rank() == 0\n"
    assert _on_each_rank("from helpers import is_main\nasked(is_main())", helpers=helper) == MAIN
    assert _on_each_rank("import helpers\nasked(helpers.is_main())", helpers=helper) == MAIN


@pytest.mark.parametrize(
    "text",
    [
        "asked(something())",
        "rank = dist.get_rank()\nrank = shuffled(rank)\nasked(rank)",
        "def f(rank):\n    asked(rank)",
        "def f(rank=0):\n    asked(rank)",
        "x = dist.get_rank()\nwhile x < 9:\n    x += 1\nasked(x)",
        "asked(dist.get_rank(group))",
        "def f():\n    return f()\nasked(f())",
        "a = b\nb = a\nasked(a)",
    ],
)
def test_what_the_text_does_not_tell_stays_unknown(text: str) -> None:
    assert all(isinstance(value, Unknown) for value in _on_each_rank(text))


def test_a_trusting_reader_believes_names() -> None:
    assert _on_each_rank("def f(rank):\n    asked(rank == 0)", trusting=True) == MAIN
    assert _on_each_rank("def f(tp_rank):\n    asked(tp_rank == 0)", trusting=True) == [Unknown.VARIES] * 4


def test_batches_and_losses_are_a_ranks_own_data() -> None:
    loop = "def f(loader, model):\n    for i, x in enumerate(loader):\n        loss = model(x)\n"
    assert _on_each_rank(loop + "        asked(loss.item())")[0] is Unknown.DATA
    assert _on_each_rank(loop + "        asked(i)")[0] is Unknown.SAME
    assert _on_each_rank(loop + "        dist.all_reduce(loss)\n        asked(loss)")[0] is Unknown.SAME


def test_a_question_ends_whatever_the_text() -> None:
    rows = "\n".join(f"def f{n}(x):\n    return f{n + 1}(x) + f{n + 1}(x) + f{n + 2}(x)" for n in range(60))
    module = _module(f"{rows}\nasked(f0(dist.get_rank()))")
    assert isinstance(RankEvaluator(module, one_node(2)[0]).value(_asked(module)), Unknown)
