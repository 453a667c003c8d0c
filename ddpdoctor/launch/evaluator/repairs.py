"""Corrections that a job file may need: proposals, of which only those that execution proves are shown.

Each is a set of replacements in the text of the file. None invents a script, a host or an address: what is put in stands in
the file, or Slurm sets it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from ddpdoctor.facts.launch.words import SpanEdit
from ddpdoctor.facts.shell_text import TextSpan
from ddpdoctor.facts.submission import Submission, Task
from ddpdoctor.launch.shell.text import Offsets, below, parse

__all__ = ["HEAD", "Repair", "repairs"]

Repair = tuple[SpanEdit, ...]

HEAD = "$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
"""The first host of a job of Slurm, in the batch script as in its tasks; without quotes, so that it fits between any."""
PORT = "$((20000 + SLURM_JOB_ID % 20000))"
"""A port that is the same on all nodes of a job, and different in another job."""

_OF_TASKS = re.compile(r"\$\{?(?:SLURM_(?:NODEID|PROCID|LOCALID)|OMPI_COMM_WORLD_(?:LOCAL_)?RANK|PMI_RANK)\}?")
_NODE_RANK = re.compile(r"--(?:node[-_]rank|machine_rank)(?:=|[ \t]+)(\d+)(?![\w.])")
_NNODES = re.compile(r"--(?:nnodes|num_machines)(?:=|[ \t]+)(\d+)(?![\w:.])")
_OWN_HOST = re.compile(
    r"\blocalhost\b|\b127\.0\.0\.1\b|\$\(hostname[^()]{0,80}\)|`hostname[^`]{0,80}`|\$\{?HOSTNAME\}?|\$\{?SLURMD_NODENAME\}?"
    r"|\$\{?SLURM_LAUNCH_NODE_IPADDR\}?|\$\{?SLURM_SUBMIT_HOST\}?|(?:(?<==)|(?<==\"))\$\{?SLURM_(?:JOB_)?NODELIST\}?"
)
_ADDRESS = re.compile(r"addr|endpoint|master|head|main_process_ip|rdzv|host", re.IGNORECASE)
_CHANCE = re.compile(
    r"\$\(\([^()]{0,80}\bRANDOM\b[^()]{0,80}(?:\([^()]{0,80}\)[^()]{0,80}){0,4}\)\)|\$\[[^\][]{0,80}RANDOM[^\][]{0,80}\]|\$\{?RANDOM\}?|\$\(shuf[^()]*\)|\$\(date[^()]*\)|\$\(uuidgen\)"
)
_RANK_LINE = re.compile(
    r"^[ \t]*(?:export[ \t]+)?(?P<set>(?P<name>RANK|LOCAL_RANK|NODE_RANK)=\$\{?SLURM_\w+\}?)[ \t]*\n", re.M
)


def repairs(submission: Submission, names: Iterable[str], expected: str) -> Iterator[Repair]:
    """The corrections that may remove a finding, the likeliest first.

    Args:
        names: what its cause declares.
        expected: what the finding says that it should be.

    Raises:
        KeyError: no correction has such a name.
    """
    for name in names:
        yield from (repair for repair in _PROPOSALS[name](submission, expected) if repair)


def _nodes_of(submission: Submission, *kinds: str) -> Iterator[TextSpan]:
    """The spans of the nodes of these kinds in the file's syntax tree."""
    offsets = Offsets(submission.text)
    for node in below(parse(submission.text)):
        if node.type in kinds:
            yield TextSpan(*offsets.of(node))


def _is_batch(submission: Submission) -> bool:
    return submission.shell is not None and submission.shell.is_batch


def _escaped(submission: Submission, expected: str) -> Iterator[Repair]:
    """A backslash before the variables of tasks in double quotes and heredocs, so that the task's shell expands them."""
    quoted = list(_nodes_of(submission, "string", "heredoc_body"))
    found = [
        each
        for each in _nodes_of(submission, "simple_expansion", "expansion")
        if _OF_TASKS.fullmatch(submission.text[each.start : each.end])
        and any(span.start < each.start and each.end <= span.end for span in quoted)
    ]
    yield tuple(SpanEdit(each.start, each.start, "\\") for each in sorted(found, key=lambda each: each.start))


def _wrapped(submission: Submission, expected: str) -> Iterator[Repair]:
    """`bash -c '…'` around what srun or mpirun starts, with the variables that it uses exported."""
    yield tuple(edit for task in _first_tasks(submission) for edit in _in_shell(submission, task))


def _first_tasks(submission: Submission) -> Iterator[Task]:
    """One task of each statement that srun or mpirun starts."""
    seen = set()
    for each in submission.tasks:
        if each.span not in seen and each.via and each.via[-1] in ("srun", "mpirun"):
            seen.add(each.span)
            yield each


def _in_shell(submission: Submission, task: Task, value: SpanEdit | None = None) -> Iterator[SpanEdit]:
    """The edits that put a command into a shell of each task.

    Args:
        value: a further edit inside the command.
    """
    text, span = submission.text, task.span
    starter = re.search(rf"\b(?:{task.via[-1]}|mpiexec)\b", text[span.start : span.end])
    first = _offset(text, *task.line.place(0))
    if starter is None or not span.start <= first < span.end:
        return
    inner = text[first : span.end].rstrip()
    prefix = text[span.start : span.start + starter.start()]  # NAME=value words before it
    if "'" in inner + prefix or re.search(r"\bbash\b|\$\{\w+\[", inner):
        return
    if value is not None and first <= value.start:
        inner = inner[: value.start - first] + value.text + inner[value.end - first :]
    lines = list(_RANK_LINE.finditer(text))
    own = prefix + "".join(f"{each['set']} " for each in lines)
    for each in lines:
        yield SpanEdit(each.start(), each.end(), "")
    end = first + len(text[first : span.end].rstrip())
    quoted = f"'{own}{inner}'"
    if task.via[-1] == "mpirun":  # passes only some variables to other hosts: this shell expands all others
        if '"' in inner or "\\$" in inner:
            return
        quoted = '"' + _OF_TASKS.sub(lambda found: f"\\{found[0]}", own + inner) + '"'
    else:
        yield from _exports(submission, inner)
    yield SpanEdit(span.start, end, f"{text[span.start + starter.start() : first]}bash -c {quoted}")


def _exports(submission: Submission, inner: str) -> Iterator[SpanEdit]:
    """`export` before the assignments of the variables that a text uses."""
    for name in dict.fromkeys(re.findall(r"\$\{?([A-Za-z_]\w*)", inner)):
        if re.search(rf"\bexport\b[^\n]*\b{name}\b", submission.text):
            continue
        for each in re.finditer(rf"^([ \t]*){name}=", submission.text, re.MULTILINE):
            yield SpanEdit(each.end(1), each.end(1), "export ")


def _offset(text: str, line: int, column: int) -> int:
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return start + column - 1


def _node_ranks(submission: Submission, expected: str) -> Iterator[Repair]:
    """The id that Slurm gives the node, in place of a constant."""
    if len({found[1] for found in _NODE_RANK.finditer(submission.text)}) > 1:
        return  # one command per node
    for task in _first_tasks(submission):
        found = _NODE_RANK.search(submission.text, task.span.start, task.span.end)
        if found is None or task.via[-1] != "srun":
            continue
        value = SpanEdit(found.start(1), found.end(1), "$SLURM_NODEID")
        yield (value,)
        yield tuple(_in_shell(submission, task, value))


def _addresses(submission: Submission, expected: str) -> Iterator[Repair]:
    """The first host of the job, in place of what is another host on each node."""
    if not _is_batch(submission):
        return
    last = re.search(r"\btail\s+-n?\s*1\b", submission.text)
    if last is not None:
        yield (SpanEdit(last.start(), last.end(), "head -n 1"),)
    found = [
        each for each in _OWN_HOST.finditer(submission.text) if _ADDRESS.search(_row(submission.text, each.start()))
    ]
    found = [each for each in found if not _row(submission.text, each.start()).lstrip().startswith("#")]
    every = tuple(SpanEdit(each.start(), each.end(), HEAD) for each in found)
    yield from ((each,) for each in every)
    if len(every) > 1:
        yield every


def _row(text: str, at: int) -> str:
    end = text.find("\n", at)
    return text[text.rfind("\n", 0, at) + 1 : end if end >= 0 else len(text)]


def _drawn(submission: Submission, expected: str) -> Iterator[Repair]:
    """A port, or an id, of the job in place of one that each node draws."""
    if not _is_batch(submission):
        return
    edits = []
    for each in _CHANCE.finditer(submission.text):
        before = submission.text[max(0, each.start() - 40) : each.start()].lower()
        names = [(before.rfind("port"), PORT), (before.rfind("id"), "$SLURM_JOB_ID"), (before.rfind(":"), PORT)]
        at, value = max(names)
        if at >= 0:
            edits.append(SpanEdit(each.start(), each.end(), value))
    yield from ((edit,) for edit in edits)
    if len(edits) > 1:
        yield tuple(edits)


def _node_counts(submission: Submission, expected: str) -> Iterator[Repair]:
    """The number of nodes that the job has."""
    for task in submission.tasks[:1]:
        found = _NNODES.search(submission.text, task.span.start, task.span.end)
        if found is not None and "srun" in task.via:
            yield (SpanEdit(found.start(1), found.end(1), "$SLURM_NNODES"),)
        if found is not None and expected.isdigit():
            yield (SpanEdit(found.start(1), found.end(1), expected),)


def _task_counts(submission: Submission, expected: str) -> Iterator[Repair]:
    """One task per node."""
    text = submission.text
    per_node = re.search(r"^#SBATCH\s+--(?:n)?tasks-per-node[= ](\d+)", text, re.MULTILINE)
    total = re.search(r"^#SBATCH\s+(?:-n\s*|--ntasks[= ])(\d+)", text, re.MULTILINE)
    nodes = re.search(r"^#SBATCH\s+(?:-N\s*|--nodes[= ])(\d+)", text, re.MULTILINE)
    edits = [SpanEdit(*per_node.span(1), "1")] if per_node else []
    if total and nodes:
        edits.append(SpanEdit(*total.span(1), nodes[1]))
    yield tuple(edits)


def _rank_variables(submission: Submission, expected: str) -> Iterator[Repair]:
    """The variable of the scheduler that means what the variable of torch means."""
    for torch, name in (("RANK", ""), ("LOCAL_RANK", "LOCAL_"), ("WORLD_SIZE", "SIZE")):
        slurm = {"": "SLURM_PROCID", "LOCAL_": "SLURM_LOCALID", "SIZE": "SLURM_NTASKS"}[name]
        mpi = "OMPI_COMM_WORLD_SIZE" if name == "SIZE" else f"OMPI_COMM_WORLD_{name}RANK"
        for each in re.finditer(rf"(?<![\w$]){torch}=(\$?\{{?(\w+)\}}?)", submission.text):
            right = mpi if each[2].startswith("OMPI") else slurm
            if each[2] != right and (each[2].startswith("OMPI") or _is_batch(submission)):
                yield (SpanEdit(each.start(1), each.end(1), f"${right}"),)


def _export_lists(submission: Submission, expected: str) -> Iterator[Repair]:
    """srun passes the whole environment, and what its list says."""
    for task in _first_tasks(submission):
        found = re.search(r"--export[= ](?!ALL\b)(?:NONE,?)?", submission.text[task.span.start : task.span.end])
        if found is not None:
            at = task.span.start
            more = "" if re.match(r"\s|$", submission.text[at + found.end() :]) else ","
            yield (SpanEdit(at + found.start(), at + found.end(), f"--export=ALL{more}"),)


def _double_quotes(submission: Submission, expected: str) -> Iterator[Repair]:
    """Double quotes around the text for another host, so that this shell expands its variables."""
    if submission.shell is None:
        return
    edits = []
    for each in _nodes_of(submission, "raw_string"):
        inner = submission.text[each.start + 1 : each.end - 1]
        names = {missing.name for missing in submission.shell.missing if missing.remote}
        if names & set(re.findall(r"\$\{?(\w+)", inner)) and not re.search(r"[\"\\`]", inner):
            edits += [SpanEdit(each.start, each.start + 1, '"'), SpanEdit(each.end - 1, each.end, '"')]
    yield tuple(edits)


def _ports(submission: Submission, expected: str) -> Iterator[Repair]:
    """Another port for each task of an array, or each round of a loop over numbers."""
    for task in submission.tasks:
        if task.fixed_port is None:
            continue
        found = re.search(rf"(?<!\d){task.fixed_port}(?!\d)", submission.text[task.span.start : task.span.end])
        if found is None:
            continue
        span = (task.span.start + found.start(), task.span.start + found.end())
        if submission.grant.is_array:
            yield (SpanEdit(*span, f"$(({task.fixed_port} + SLURM_ARRAY_TASK_ID))"),)
        loops = re.findall(r"\bfor\s+(?:\(\(\s*)?(\w+)", submission.text[: task.span.start])
        if loops:
            yield (SpanEdit(*span, f"$(({task.fixed_port} + {loops[-1]}))"),)
        return


def _waiting(submission: Submission, expected: str) -> Iterator[Repair]:
    """`wait` at the end of the file."""
    text = submission.text
    yield (SpanEdit(len(text), len(text), "wait\n" if text.endswith("\n") else "\nwait\n"),)


def _in_background(submission: Submission, expected: str) -> Iterator[Repair]:
    """`&` at the end of a command of a loop, and `wait` below the loop."""
    text = submission.text
    for task in submission.tasks:
        end = task.span.end
        end = len(text) if (newline := text.find("\n", end)) < 0 else newline
        done = re.compile(r"^([ \t]*)done\b[^\n]*\n?", re.MULTILINE).search(text, task.span.end)
        if done is None or text[task.span.end : end].strip():
            continue
        last = "" if done[0].endswith("\n") else "\n"
        yield (
            SpanEdit(task.span.end, task.span.end, " &"),
            SpanEdit(done.end(), done.end(), f"{last}{done[1]}wait\n"),
        )


_PROPOSALS: dict[str, Callable[[Submission, str], Iterator[Repair]]] = {
    "escape": _escaped,
    "wrap": _wrapped,
    "node-rank": _node_ranks,
    "address": _addresses,
    "same-value": _drawn,
    "node-count": _node_counts,
    "task-count": _task_counts,
    "rank-variable": _rank_variables,
    "export-list": _export_lists,
    "double-quotes": _double_quotes,
    "port": _ports,
    "wait": _waiting,
    "background": _in_background,
}
"""The corrections by the names with which causes declare them."""
