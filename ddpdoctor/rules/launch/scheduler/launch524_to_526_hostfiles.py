"""LAUNCH524 to LAUNCH526: the slots and rows of a hostfile."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import is_known
from ddpdoctor.facts.submission import Submission
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.hostfiles import deepspeed_pool, is_pool_row, malformed_row, slots_of_hosts
from ddpdoctor.launch.task_counts import TASKS, number, option
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import option_text, point, revalue
from ddpdoctor.rules.launch.submitted import at_mark, count_of, mark_of, option_mark

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


@mpirun_slots_exceeded.look
def more_than_the_hosts_take(submission: Submission) -> Iterator[Finding]:
    """mpirun or horovodrun starts more processes than the hosts of its options take."""
    told = set()
    for task in (task for step in submission.steps if step.is_certain for task in step.tasks):
        launcher = task.launcher
        if launcher is None or launcher.slots is None or launcher.tasks <= launcher.slots or launcher.at in told:
            continue
        told.add(launcher.at)
        text = (
            f"{launcher.name} starts {launcher.tasks} processes, but the hosts have {count_of(launcher.slots, 'slot')}"
        )
        mark = option_mark(submission, task, "slots", "-np", "-n", "--np", "--num-proc")
        expected = str(launcher.slots)
        yield at_mark(submission, mark, text, seen=str(launcher.tasks), expected=expected, label=f"at most {expected}")


def _slots(line: LaunchLine, layer: Layer) -> int | None:
    """The slots of all hosts of Open MPI; None if not all are written, or another MPI may be meant."""
    listed = option(layer, ("--host", "-host", "-H"))
    is_openmpi = any(word.text in ("-x", "--mca", "--bind-to", "--map-by", "-bind-to", "-map-by") for word in layer.own)
    if listed is not None:
        if not is_known(listed.value) or not is_openmpi or line.batch is not None:
            return None
        counts = [re.fullmatch(r"[^:]+:(\d{1,6})", each) for each in (listed.value or "").split(",") if each]
        return sum(int(each[1]) for each in counts if each) if counts and all(counts) else None
    of_hosts = list(slots_of_hosts(line.hostfile or "").values())
    known = [slots for slots in of_hosts if slots is not None]
    return sum(known) if known and len(known) == len(of_hosts) else None


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
        pool = deepspeed_pool(line.hostfile or "")
        for dest in ("include", "exclude"):
            given = layer.given(dest)
            if given is None or not is_known(given.value) or pool is None:
                continue
            wrong = _not_there((given.value or "").strip("\"'"), pool)
            if wrong is not None:
                yield point(
                    launch, line, given.value_word, wrong, "a host and slots of the hostfile", label="not in it"
                )


def _not_there(text: str, pool: dict[str, int]) -> str | None:
    """What of `host1:0,1@host2` the hostfile does not have."""
    for each in text.split("@"):
        name, sign, listed = each.strip().partition(":")
        if name and name not in pool:
            return f"the hostfile has no host {name}"
        count = pool.get(name)
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
            text = _refused(*bad)
            yield point(launch, line, given.value_word, text, "HOST slots=N", label=f"its line {bad[0]} is malformed")


def _refused(number: int, row: str) -> str:
    """What is wrong with a row that DeepSpeed does not read."""
    if is_pool_row(row):
        return f"line {number} of the hostfile repeats a host: {row:.40}"
    return f"line {number} of the hostfile is not `HOST slots=N`: {row:.40}"


@hostfile_line_malformed.look
def rows_that_the_file_writes(submission: Submission) -> Iterator[Finding]:
    """The job file writes the host file itself, such as from PBS_NODEFILE, which has one line per MPI process."""
    for task in (task for step in submission.steps if step.is_certain for task in step.tasks):
        given = task.layer.given("hostfile") if task.layer.launcher is LauncherKind.DEEPSPEED else None
        bad = malformed_row(task.line.hostfile or "") if given is not None else None
        if bad is not None and given is not None:
            fix = "List each host once: `sort -u $PBS_NODEFILE`." if is_pool_row(bad[1]) else ""
            mark = mark_of(task, given.value_word)
            expected = "HOST slots=N, once per host"
            label = f"its line {bad[0]} is refused"
            yield at_mark(submission, mark, _refused(*bad), seen=bad[1], expected=expected, label=label, fix=fix)
            return


@hostfile_line_malformed.look
def rows_of_another_mpi(submission: Submission) -> Iterator[Finding]:
    """mpiexec of MPICH or Intel MPI gets a host file with Open MPI's `slots=`."""
    for task in (task for step in submission.steps if step.is_certain for task in step.tasks):
        launcher = task.launcher
        if launcher is not None and launcher.refused:
            text = f"{launcher.name} does not read `slots=` in its host file: {launcher.refused:.40}"
            mark, expected = option_mark(submission, task, "-f", "-hostfile", "-machinefile"), "HOST:N"
            fix = "Write `HOST:N` for MPICH and Intel MPI: `token slots=4 not supported at this time`."
            label = "its rows need HOST:N"
            yield at_mark(submission, mark, text, seen=launcher.refused, expected=expected, label=label, fix=fix)
            return
