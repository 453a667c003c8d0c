"""LAUNCH524 to LAUNCH526: the slots and rows of a hostfile."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import is_known
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.hostfiles import HostSlots, deepspeed_hosts, malformed_row, mpi_hosts
from ddpdoctor.launch.task_counts import TASKS, number, option
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import option_text, point, revalue

_MORE_ALLOWED = re.compile(r"oversubscribe|overload", re.IGNORECASE)


@cause("LAUNCH524", "mpirun-slots-exceeded", Severity.ERROR)
def mpirun_slots_exceeded(launch: Launch) -> Iterator[Finding]:
    """mpirun requests more processes than its hosts have slots.

    ## Why it matters
    Open MPI starts nothing: `There are not enough slots available in the system to satisfy the 16 slots that were
    requested by the application`.

    ## Fix
    Start as many processes as there are slots.

    Or correct the slots: one per GPU.

    ## Example
        There are not enough slots available in the system to satisfy the 16 slots

        # before
        mpirun -np 16 --host node1:4,node2:4 -x PATH python train.py

        # after
        mpirun -np 8 --host node1:4,node2:4 -x PATH python train.py

    ## Source
    mpirun(1) of Open MPI: a host in `--host` without a count has one slot; `slots=N` in a hostfile.
    """
    for line in launch.lines:
        layer = line.layer(LauncherKind.MPIRUN)
        given = option(layer, TASKS)
        wanted = number(given)
        if layer is None or given is None or wanted is None or any(_MORE_ALLOWED.search(w.text) for w in layer.own):
            continue
        slots = _slots(line, layer)
        if slots is None or wanted <= slots:
            continue
        text = f"{option_text(given)}, but the hosts have {slots} slot{'s' * (slots != 1)}"
        yield point(
            launch, line, given.value_word, text, str(slots), [revalue(given, str(slots))], label=f"at most {slots}"
        )


def _slots(line: LaunchLine, layer: Layer) -> int | None:
    """The slots of all hosts of Open MPI; None if not all are written, or another MPI may be meant."""
    listed = option(layer, ("--host", "-host", "-H"))
    is_openmpi = any(word.text in ("-x", "--mca", "--bind-to", "--map-by", "-bind-to", "-map-by") for word in layer.own)
    if listed is not None:
        if not is_known(listed.value) or not is_openmpi or line.batch is not None:
            return None
        counts = [re.fullmatch(r"[^:]+:(\d{1,6})", each) for each in (listed.value or "").split(",") if each]
        return sum(int(each[1]) for each in counts if each) if counts and all(counts) else None
    hosts = mpi_hosts(line.hostfile or "")
    if not hosts or any(host.slots is None for host in hosts):
        return None
    return sum(host.slots or 0 for host in hosts)


def _deepspeed(launch: Launch) -> Iterator[tuple[LaunchLine, Layer]]:
    for line in launch.lines:
        layer = line.layer(LauncherKind.DEEPSPEED)
        if layer is not None and line.hostfile is not None and not layer.is_garbled:
            yield line, layer


@cause("LAUNCH525", "deepspeed-slot-not-in-hostfile", Severity.ERROR)
def deepspeed_slot_not_in_hostfile(launch: Launch) -> Iterator[Finding]:
    """deepspeed's --include or --exclude names a host or slot that the hostfile does not have.

    ## Why it matters
    deepspeed fails with `No slot '2' specified on host 'worker-1'` or `Hostname 'worker-3' not found in hostfile`.

    ## Fix
    Use slots from 0 to one less than `slots=` of the hostfile.

    ## Example
        ValueError: No slot '2' specified on host 'worker-1'

        # before
        cat hostfile                    # worker-1 slots=2
        deepspeed --hostfile=hostfile --include=worker-1:2,3 train.py

        # after
        deepspeed --hostfile=hostfile --include=worker-1:0,1 train.py

    ## Source
    deepspeed/launcher/runner.py, `parse_resource_filter`.
    """
    for line, layer in _deepspeed(launch):
        hosts = {host.name: host for host in deepspeed_hosts(line.hostfile or "")}
        for dest in ("include", "exclude"):
            given = layer.given(dest)
            if given is None or not is_known(given.value) or not hosts:
                continue
            wrong = _not_there((given.value or "").strip("\"'"), hosts)
            if wrong is not None:
                yield point(
                    launch, line, given.value_word, wrong, "a host and slots of the hostfile", label="not in it"
                )


def _not_there(text: str, hosts: dict[str, HostSlots]) -> str | None:
    """What of `host1:0,1@host2` the hostfile does not have."""
    for each in text.split("@"):
        name, sign, listed = each.strip().partition(":")
        if name and name not in hosts:
            return f"the hostfile has no host {name}"
        count = hosts[name].slots if name else None
        numbers = [int(slot) for slot in listed.split(",") if slot.strip().isdigit()] if sign else []
        if count is not None and any(slot >= count for slot in numbers):
            return (
                f"the hostfile gives {name} {count} slot{'s' * (count != 1)}, from 0; there is no slot {max(numbers)}"
            )
    return None


@cause("LAUNCH526", "hostfile-line-malformed", Severity.ERROR, explains=("LAUNCH525",))
def hostfile_line_malformed(launch: Launch) -> Iterator[Finding]:
    """A line of deepspeed's hostfile is not `HOST slots=N`, or repeats a host.

    ## Why it matters
    deepspeed fails with `ValueError: Hostfile contains a bad entry: node2 lots=8, unable to proceed with launching` or
    `Hostfile contains multiple entries for node2`.

    ## Fix
    Write each host once, as `HOST slots=N`.

    ## Example
        ValueError: Hostfile contains a bad entry: node2 lots=8, unable to proceed with launching

        # before
        node1 slots=8
        node2 lots=8

        # after
        node1 slots=8
        node2 slots=8

    ## Source
    deepspeed/launcher/runner.py, `_parse_hostfile`.
    """
    for line, layer in _deepspeed(launch):
        bad, given = malformed_row(line.hostfile or ""), layer.given("hostfile")
        if bad is not None and given is not None:
            text = f"line {bad[0]} of the hostfile is not `HOST slots=N`: {bad[1]:.40}"
            yield point(launch, line, given.value_word, text, "HOST slots=N", label=f"its line {bad[0]} is malformed")
