"""LOG522: a script that rejected its arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import finding_of

__all__: list[str] = []

REFUSED = (
    r"(?:\.py: e|^\W{0,3}E)rror: (unrecognized arguments|the following arguments are required|(ambiguous option|argument \S+): )",
)
"""How argparse ends a script, with exit code 2."""
OTHERS = re.compile(
    r"--local[-_]rank\b|arguments: +[–—]|\blaunch\.py: error: |\brun\.py: error: argument --(?:nproc|nnodes|node|rdzv)"
)
"""Options that LAUNCH015, LAUNCH050, and LAUNCH051 report, and a launcher's options, which LAUNCH501 reports."""
_REQUIRED = re.compile(r"the following arguments are required: (?P<names>[^\n]{1,200})")
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<words>[^\n]{1,200})")
_VALUE = re.compile(r"argument (?P<name>[^\s:]{1,100}): (?P<why>[^\n]{1,200})")
_SCRIPT = re.compile(r"(?<![\w./-])(?P<script>[\w./-]{1,200}\.py): error: ")


@cause("LOG522", "arguments-refused", Severity.ERROR, stage=CausalStage.DEATH, signatures=REFUSED)
def arguments_refused(log: Log) -> Iterator[Finding]:
    """The script rejected its arguments and ended with exit code 2.

    ## Why it matters
    `train.py: error: the following arguments are required: --config`: argparse ends every rank before the job starts. The
    launcher's summary only shows `exitcode : 2`.

    ## Fix
    Correct the arguments after the script name; `python train.py --help` lists the valid ones. Options of the launcher go before
    the script name.

    ## Example

        train.py: error: the following arguments are required: --config

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        torchrun --nproc-per-node 8 train.py --config CONFIG
    """
    lines = [line for line in matching_lines(log, REFUSED) if not OTHERS.search(line.text)]
    if lines:
        found = finding_of(log, lines, "The script rejected its arguments (exit code 2)", blames_speaker=True)
        yield replace(found, fix=_fix(lines[0]))


def _fix(line: LogLine) -> str:
    """What to type, as far as the message shows it."""
    named = _SCRIPT.search(line.text)
    script = named["script"] if named is not None else "the script"
    if (required := _REQUIRED.search(line.text)) is not None:
        names = required["names"].strip()
        return (
            f"Add {names} with a value after {script} in the launch command; python {script} --help lists the options"
        )
    if (unknown := _UNKNOWN.search(line.text)) is not None:
        words = unknown["words"].strip()
        return f"Remove or correct {words} after {script}; options of the launcher go before {script}"
    if (value := _VALUE.search(line.text)) is not None:
        return f"Correct the value of {value['name']} after {script}: {value['why'].strip()}"
    return f"Write the full name of the option after {script}: several options begin with these letters"
