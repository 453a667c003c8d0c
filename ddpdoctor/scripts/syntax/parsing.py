"""Parses source: which files concern distributed training at all, and why some have no syntax tree."""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache

from ddpdoctor.facts.script import SourceProblem

__all__ = ["MAX_DEPTH", "concerns", "parse"]

MAX_DEPTH = 150
"""Deepest nesting of statements and expressions that the analysis follows. Chains of `elif` count as levels."""

_CONCERNED = (
    "torch.distributed",
    "import distributed",
    "DistributedDataParallel",
    "DistributedSampler",
    "torch.multiprocessing",
    "init_process_group",
    "LOCAL_RANK",
    "accelerate",
    "lightning",
    "deepspeed",
    "horovod",
    "SyncBatchNorm",
    "device_map",
    "TrainingArguments",
    "is_world_process_zero",
)


def concerns(text: str) -> bool:
    """Whether a source mentions torch.distributed or a framework around it: others contain nothing to check."""
    return any(word in text for word in _CONCERNED)


@lru_cache(maxsize=256)
def parse(text: str) -> ast.Module | SourceProblem:
    """The syntax tree of Python source, or why there is none. Never raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like: Python itself warns about them
            tree = ast.parse(text)
    except SyntaxError as error:
        return SourceProblem(f"no Python: {error.msg}", error.lineno, error.offset)
    except ValueError as error:
        return SourceProblem(f"no Python: {error}")
    except (RecursionError, MemoryError):
        return SourceProblem("nested too deeply for Python's own parser")
    return tree
