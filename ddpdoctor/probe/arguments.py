"""The options of `python -m ddpdoctor.probe`, with argparse, because import time counts for every rank."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn

from ddpdoctor import __version__

__all__ = ["FORMATS", "parse"]

FORMATS = ("table", "json", "markdown", "junit", "sarif", "github", "concise")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of this rank; exits with 2 and one line if they are wrong, as argparse does."""
    parser = _Parser(
        prog="ddpdoctor.probe",
        description="Probe the ranks of a job. Start it with the job's launcher: torchrun … -m ddpdoctor.probe",
        allow_abbrev=False,
    )
    parser.add_argument("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="default: nccl with GPUs")
    parser.add_argument(
        "--join-timeout", type=_seconds, default=30.0, metavar="SECONDS", help="how long to wait for the other ranks"
    )
    parser.add_argument(
        "--timeout", type=_seconds, default=120.0, metavar="SECONDS", help="time limit of the whole probe"
    )
    parser.add_argument("--quick", action="store_true", help="do not measure what each GPU computes and copies")
    parser.add_argument("--format", choices=FORMATS, default="table", help="output format of the report")
    parser.add_argument("--output", metavar="FILE", help="write the report to FILE on every node")
    parser.add_argument("--save-baseline", metavar="FILE", help="save the measurements of rank 0 to FILE")
    parser.add_argument("--baseline", metavar="FILE", help="compare with a file from --save-baseline (read by rank 0)")
    parser.add_argument("--select", metavar="PREFIX,…", help="run only these rules")
    parser.add_argument("--ignore", metavar="PREFIX,…", help="skip these rules")
    parser.add_argument("--fail-on", choices=("error", "warning", "never"), default="error")
    parser.add_argument("--quiet", "-q", action="store_true", help="print findings only")
    parser.add_argument("--verbose", "-v", action="store_true", help="also show evidence and counts of rules")
    parser.add_argument("--no-color", action="store_true", help="no colors")
    # torch.distributed.launch and deepspeed add this to the command of every rank, in addition to the environment.
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)
    # Used by `ddpdoctor check`: print the facts instead of a report.
    parser.add_argument("--hand-over", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--job", type=int, help=argparse.SUPPRESS)
    # A worker that has started to import torch: its message, control and output pipes, and the process that forks it.
    parser.add_argument("--worker", type=_numbers, help=argparse.SUPPRESS)
    # A descriptor with notices about nodes that disappeared before their ranks joined.
    parser.add_argument("--news", type=int, help=argparse.SUPPRESS)
    # Started by `ddpdoctor probe`, which handles Ctrl-C for all its ranks.
    parser.add_argument("--launched", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--version", action="version", version=f"ddpdoctor {__version__}")
    return parser.parse_args(words)


class _Parser(argparse.ArgumentParser):
    """Reports errors in one line, as the other commands do."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def _numbers(word: str) -> tuple[int, ...]:
    return tuple(map(int, word.split(",")))


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{word!r}: expected a number of seconds above 0")
    return seconds
