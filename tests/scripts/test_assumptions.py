"""Each assumption of the interpreter has an effect: without it, the false alarm or the miss that it prevents appears."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from script_cases import judged

from ddpdoctor.rules import load
from ddpdoctor.scripts.interpreter import assumptions
from ddpdoctor.scripts.interpreter.abstract_values import Unknown

RULES = [rule for rule in load(("script",)) if "script" in rule.needs and rule.code < "SCRIPT500"]
HEAD = (
    "import argparse, os, random\nimport torch\nimport torch.distributed as dist\nimport torch.multiprocessing as mp\n"
)
LOOP = "def train(model, loader):\n    for batch in loader:\n        loss = model(batch)\n"
TWO_WAYS = "    rank = dist.get_rank()\nelse:\n    rank = guess()\nif rank == 0:\n    dist.barrier()\n"
"""The rank is known on one way of a condition only."""


def _no(*_: object) -> bool:
    return False


def _unknown(*_: object) -> Unknown:
    return Unknown.SAME


@dataclass(frozen=True)
class Case:
    """A script for which `code` is reported only with the assumption, or (`is_false_alarm`) only without it.

    `without` takes the assumption's place when it is switched off.
    """

    name: str
    without: object
    code: str
    text: str
    is_false_alarm: bool


def _miss(name: str, without: object, code: str, text: str) -> Case:
    return Case(name, without, code, text, False)


def _false_alarm(name: str, without: object, code: str, text: str) -> Case:
    return Case(name, without, code, text, True)


CASES = [
    _miss("RANK_NAMES", {}, "SCRIPT024", "def save(rank):\n    if rank == 0:\n        dist.barrier()\n"),
    _miss(
        "RANK_ATTRIBUTES",
        {},
        "SCRIPT024",
        "def save(acc):\n    if acc.is_local_main_process:\n        dist.barrier()\n",
    ),
    _miss("HELPER_FUNCTIONS", {}, "SCRIPT024", "import tools\nif tools.is_main_process():\n    dist.barrier()\n"),
    _miss(
        "is_framework_attribute",
        _no,
        "SCRIPT009",
        "import transformers\ndef init(args):\n    dist.init_process_group('nccl', rank=args.local_rank, world_size=4)\n",
    ),
    _false_alarm(
        "is_rank_of_unknown_group",
        _no,
        "SCRIPT024",
        "def save(stage_rank, rank):\n    if stage_rank == 0:\n        if rank == 0:\n            dist.barrier()\n"
        "    else:\n        dist.barrier()\n",
    ),
    _miss(
        "holds_options",
        _no,
        "SCRIPT004",
        'parser = argparse.ArgumentParser()\nparser.add_argument("--local_rank")\n'
        "def main(args):\n    torch.cuda.set_device(args.local_rank)\n",
    ),
    _miss(
        "is_data_loader",
        _no,
        "SCRIPT026",
        f"{LOOP}        if loss > 9:\n            continue\n        dist.all_reduce(loss)\n",
    ),
    _false_alarm(
        "synchronizes",
        _no,
        "SCRIPT026",
        f"{LOOP}        loss = reduce_mean(loss)\n        if loss > 9:\n            continue\n        dist.all_reduce(loss)\n",
    ),
    _miss(
        "MAIN_ONLY_DECORATORS",
        (),
        "SCRIPT024",
        "from tools import rank_zero_only\n@rank_zero_only\ndef save():\n    dist.barrier()\nsave()\n",
    ),
    _false_alarm(
        "may_communicate",
        _no,
        "SCRIPT024",
        "rank = dist.get_rank()\nif rank == 0:\n    dist.barrier()\nelse:\n    follower.wait()\n",
    ),
    _miss("MODULE_NAME", Unknown.SAME, "SCRIPT024", f"if __name__ == '__main__':\n{TWO_WAYS}"),
    _false_alarm("is_gpus_per_node", _no, "SCRIPT001", "torch.cuda.set_device(dist.get_rank() % 8)\n"),
    _miss(
        "gpus_on_node",
        _unknown,
        "SCRIPT024",
        "if dist.get_rank() % torch.cuda.device_count() == 0:\n    dist.barrier()\n",
    ),
    _miss(
        "process_start_succeeds",
        _unknown,
        "SCRIPT024",
        "rank = dist.get_rank()\nif not dist.is_initialized():\n    rank = guess()\nif rank == 0:\n    dist.barrier()\n",
    ),
    _miss(
        "process_index",
        _unknown,
        "SCRIPT024",
        "def main(gpu):\n    if gpu == 0:\n        dist.barrier()\nmp.spawn(main, nprocs=2)\n",
    ),
    _miss(
        "launcher_passes_local_rank",
        _no,
        "SCRIPT004",
        'parser = argparse.ArgumentParser()\nparser.add_argument("--local_rank")\nargs = parser.parse_args()\n'
        "torch.cuda.set_device(args.local_rank)\n",
    ),
    _miss("is_set_by_launcher", _no, "SCRIPT024", f"if 'RANK' in os.environ:\n{TWO_WAYS}"),
    _miss(
        "tests_for_several_ranks",
        lambda node: None,
        "SCRIPT024",
        f"num_gpus = configured()\nif num_gpus > 1:\n{TWO_WAYS}",
    ),
    _miss(
        "is_default",
        _no,
        "SCRIPT024",
        "rank = 0\nif configured():\n    rank = dist.get_rank()\nif rank == 0:\n    dist.barrier()\n",
    ),
    _false_alarm(
        "draws_same_numbers", _no, "SCRIPT026", "random.seed(1)\nif random.random() < 0.5:\n    dist.barrier()\n"
    ),
    _false_alarm(
        "ends_with_input",
        _no,
        "SCRIPT026",
        "def train(loader):\n    for batch in loader:\n        while batch is not None:\n            dist.barrier()\n",
    ),
    _false_alarm(
        "is_configured_as_none",
        _no,
        "SCRIPT026",
        f"{LOOP}        if loss.aux is not None:\n            dist.all_reduce(loss)\n",
    ),
    _false_alarm(
        "has_same_fields", _no, "SCRIPT026", f'{LOOP}        if "mask" in batch:\n            dist.all_reduce(loss)\n'
    ),
    _false_alarm(
        "are_sizes", _no, "SCRIPT026", f"{LOOP}        if len(batch) == len(loss):\n            dist.all_reduce(loss)\n"
    ),
    _false_alarm(
        "SAME_ON_ALL_RANKS",
        frozenset(),
        "SCRIPT026",
        f"{LOOP}        if isinstance(batch, dict):\n            dist.all_reduce(loss)\n",
    ),
]


def _codes(text: str) -> set[str]:
    outcome = judged(HEAD + text, RULES)
    assert not outcome.crashed
    return {finding.code for finding in outcome.findings}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_without_an_assumption_its_effect_is_gone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (case.code in _codes(case.text)) is not case.is_false_alarm
    monkeypatch.setattr(assumptions, case.name, case.without)
    without = _codes(f"{case.text}\n")  # another text: nothing that was cached for the first one is used
    assert (case.code in without) is case.is_false_alarm


def test_every_assumption_has_a_case_and_says_what_it_prevents() -> None:
    prevents = {case.name: "Prevents a false alarm" if case.is_false_alarm else "Prevents a miss" for case in CASES}
    assert sorted(prevents) == sorted(assumptions.__all__)
    docstrings = _docstrings()
    assert [name for name, text in prevents.items() if text not in docstrings[name]] == []


def _docstrings() -> dict[str, str]:
    """The docstrings of the module's functions, and the texts below its tables."""
    body = ast.parse(Path(assumptions.__file__).read_text()).body
    texts = {node.name: ast.get_docstring(node) or "" for node in body if isinstance(node, ast.FunctionDef)}
    for table, text in pairwise(body):
        if isinstance(table, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            texts |= {target.id: str(text.value.value) for target in table.targets if isinstance(target, ast.Name)}
    return texts
