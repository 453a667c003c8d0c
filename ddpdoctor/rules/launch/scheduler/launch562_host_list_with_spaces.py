"""LAUNCH562: the hosts of mpirun or horovodrun, separated by spaces instead of commas."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.submitted import at_mark

__all__: list[str] = []

_HOST = re.compile(r"[A-Za-z0-9][\w.-]*:\d{1,3}")
_TAKE_LISTS = ("mpirun", "mpiexec", "mpiexec.hydra", "horovodrun", "orterun", "prterun")


@cause("LAUNCH562", "host-list-with-spaces", Severity.ERROR)
def host_list_with_spaces(submission: Submission) -> Iterator[Finding]:
    """mpirun or horovodrun takes a host as its program: spaces separate the hosts of `-H`.

    ## Why it matters
    `-H` takes one word. The second host is taken as the program to start: `executable file not found: node2:4`, and only
    the first host would be used.

    ## Fix
    Separate the hosts with commas: `-H node1:4,node2:4`.

    ## Example
        error[LAUNCH562]: horovodrun takes node2:4 as the program to start

        # before
        horovodrun -np 8 -H node1:4 node2:4 python train.py

        # after
        horovodrun -np 8 -H node1:4,node2:4 python train.py

    ## Source
    horovod/runner/launch.py; mpirun(1) of Open MPI: `--host <host1,host2,...>`.
    """
    for program in submission.programs:
        if program.starter in _TAKE_LISTS and _HOST.fullmatch(program.name):
            text = f"{program.starter} takes {program.name:.40} as the program to start"
            fix = "Separate the hosts of `-H` with commas."
            yield at_mark(
                submission, program.at, text, seen=program.name, expected="commas", label="use commas", fix=fix
            )
            return
