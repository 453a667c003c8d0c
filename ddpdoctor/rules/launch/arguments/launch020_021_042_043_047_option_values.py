"""LAUNCH020, 021, 042, 043, 047: values of torchrun's options."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import PlanSetting
from ddpdoctor.facts.launch.reading import ParseProblemKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import quote
from ddpdoctor.facts.submission import Submission
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.rendezvous import parse_nnodes
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, agents, point, replace_word, revalue, shown, spelled
from ddpdoctor.rules.launch.submitted import at_mark, launchers_of, mark_of

__all__ = ["bad", "source"]

PRIVATE_BACKENDS = ("npu", "hpu", "mlu", "musa", "privateuseone", "gcu", "maia", "sdaa", "tpu", "neuron")
"""Names of accelerators that plug into torch; torchrun 2.1 and newer accepts them if they are registered."""
ALLOWED_NPROC = "a number, gpu or auto"
BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
CONFUSED = ("nccl", "gloo", "mpi", "ucc", "tcp", "env", "torch", "ncll", "cuda", "cpu", "file")


def bad(
    launch: Launch,
    line: LaunchLine,
    layer: Layer,
    dest: str,
    setting: PlanSetting,
    message: str,
    expected: str,
    value: str | None,
    label: str,
) -> Finding:
    """A finding about an option's value: at its word, or at the launcher if a PET_ variable sets it."""
    given = layer.given(dest)
    if given is None:  # a PET_ variable sets it: an option on the line overrides that
        edits = None if value is None else [after(layer.own[0], f"{spelled(layer, dest, launch.version)}={value}")]
        if layer.own[0].text != layer.program.text or (len(layer.own) > 1 and layer.own[1].text == "-m"):
            edits = None
        return point(launch, line, layer.program, message, expected, edits, label=label)
    return point(
        launch,
        line,
        given.value_word,
        message,
        expected,
        [revalue(given, quote(value))] if value else None,
        label=label,
    )


def source(setting: PlanSetting, dest: str) -> str:
    """The option or the PET_ variable that sets a value."""
    return f"PET_{dest.upper()}" if setting.origin == "variable" else "--" + dest.replace("_", "-")


def _quoted(text: str, most: int = 20) -> str:
    return repr(text if len(text) <= most else text[: most - 1] + "…")


@cause(
    "LAUNCH020",
    "nproc-per-node-empty",
    Severity.ERROR,
    signatures=(
        r"Unsupported nproc_per_node value: ($|-)",
        r"argument --nproc[-_]per[-_]node\S*: (invalid int value: ''|expected one argument)",
        r"invalid literal for int\(\) with base 10: '(--|GPUS)",
    ),
)
def nproc_per_node_empty(launch: Launch) -> Iterator[Finding]:
    """--nproc-per-node has no value.

    ## Why it matters
    Usually a shell variable is not set: `--nproc-per-node=$NGPU` fails with `Unsupported nproc_per_node value: `. In
    `--nproc-per-node $NGPU train.py` torchrun reads train.py as the number and reports that the script is missing.

    ## Fix
    Set the variable, or write a number, `gpu` or `auto`.

    ## Example
        ValueError: Unsupported nproc_per_node value:

        # before
        torchrun --nproc-per-node=$NGPU train.py

        # after
        torchrun --nproc-per-node=auto train.py
    """
    for line in launch.lines:
        layer, plan = line.agent, line.plan
        if layer is None or plan is None or layer.typos:
            continue
        setting = plan.settings["nproc_per_node"]
        missing = next(
            (p for p in layer.reading.problems if p.trouble is ParseProblemKind.EXPECTED_VALUE and "nproc" in p.option),
            None,
        )
        given = layer.given("nproc_per_node")
        if missing is not None:
            yield point(
                launch,
                line,
                missing.word,
                f"{shown(missing.word)} has no value",
                ALLOWED_NPROC,
                [replace_word(missing.word, f"{missing.word.text}=auto")],
                label=f"use {ALLOWED_NPROC}",
            )
        elif setting.value == "":
            text = f"{source(setting, 'nproc_per_node')} is empty"
            label = "the variable is not set" if given is not None and "$" in line.source else f"use {ALLOWED_NPROC}"
            yield bad(launch, line, layer, "nproc_per_node", setting, text, ALLOWED_NPROC, "auto", label)
        elif given is not None and given.value and _took_script(layer, given.value, given.is_joined):
            yield point(
                launch,
                line,
                given.value_word,
                f"{given.written} reads {given.value:.30} as its value",
                ALLOWED_NPROC,
                [after(given.word, "auto")],
                label="write the number before the script",
            )


def _took_script(layer: Layer, value: str, is_joined: bool) -> bool:
    missing = any(p.trouble is ParseProblemKind.NO_SCRIPT for p in layer.reading.problems)
    return not is_joined and value.endswith((".py", ".sh")) and missing


@cause(
    "LAUNCH021",
    "nproc-per-node-invalid",
    Severity.ERROR,
    signatures=(r"Unsupported nproc_per_node value: [A-Za-z\d.]+",),
)
def nproc_per_node_invalid(launch: Launch) -> Iterator[Finding]:
    """--nproc-per-node is neither a positive number nor a word that torchrun accepts.

    ## Why it matters
    torchrun fails with `ValueError: Unsupported nproc_per_node value: cuda`; upper case and 2.0 are rejected too. Zero
    and negative numbers fail with an `AssertionError` without a message.

    ## Fix
    Use a positive number, `gpu`, `cpu` or `auto`.

    ## Example
        ValueError: Unsupported nproc_per_node value: cuda

        # before
        torchrun --nproc-per-node=cuda train.py

        # after
        torchrun --nproc-per-node=gpu train.py

    ## Source
    torch/distributed/run.py: `determine_local_world_size`; WorkerSpec.__post_init__.
    """
    for line, layer, plan in agents(launch):
        setting = plan.settings["nproc_per_node"]
        value = setting.value
        if value is None or value == "" or _is_nproc(value, launch.version):
            continue
        meant = _nproc(value)
        text = f"{source(setting, 'nproc_per_node')} does not accept {_quoted(value)}"
        label = "use a number, gpu, cpu, auto"
        yield bad(launch, line, layer, "nproc_per_node", setting, text, f"a number, such as {meant}", meant, label)


@nproc_per_node_invalid.look
def variables_that_hold_other_text(submission: Submission) -> Iterator[Finding]:
    """A variable of the scheduler is the number of processes and is not a number: SLURM_GPUS_PER_NODE=a100:4."""
    for task, layer in launchers_of(submission):
        given = layer.given("nproc_per_node")
        value = None if given is None else given.value
        if given is None or not value or not re.fullmatch(r"[A-Za-z][\w.-]*:\d+", value):
            continue
        text = f"--nproc-per-node does not accept {_quoted(value)}"
        fix = "Use `$SLURM_GPUS_ON_NODE`, which is a number." if submission.grant.scheduler == "Slurm" else ""
        mark, label = mark_of(task, given.value_word), "use a number, gpu, cpu, auto"
        yield at_mark(submission, mark, text, seen=value, expected="a number", label=label, fix=fix)
        return


def _is_nproc(value: str, version: Version) -> bool:
    try:
        return int(value) > 0
    except ValueError:
        words = ("auto", "cpu", "gpu", *(("xpu",) if version >= (2, 10) else ()))
        return value in words or (version >= (2, 1) and value in PRIVATE_BACKENDS)


def _nproc(value: str) -> str:
    number = re.fullmatch(r"\s*(\d+)(\.0*)?\s*", value)
    if number and int(number[1]) > 0:
        return number[1]
    if value.lower() in ("gpu", "cuda", "gpus", "all"):
        return "gpu"
    return value.lower() if value.lower() in ("cpu", "auto") else "auto" if not number else "1"


@cause(
    "LAUNCH042",
    "rdzv-backend-unknown",
    Severity.ERROR,
    explains=("LAUNCH034", "LAUNCH039"),
    signatures=(r"The rendezvous backend '[^']*' is not registered",),
)
def rdzv_backend_unknown(launch: Launch) -> Iterator[Finding]:
    """--rdzv-backend names a backend that torchrun does not have.

    ## Why it matters
    torchrun fails with `ValueError: The rendezvous backend 'nccl' is not registered. Did you forget to call
    `register`?` nccl and gloo are backends of the process group, not of the rendezvous, and names are lower case.

    ## Fix
    Use `c10d` on several nodes.

    On one node, remove the option.

    ## Example
        ValueError: The rendezvous backend 'nccl' is not registered.

        # before
        torchrun --nnodes=2 --rdzv-backend=nccl --rdzv-endpoint=HOST0:29400 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    for line, layer, plan in agents(launch):
        asked = plan.asked
        if plan.is_standalone or asked is None or asked in BACKENDS:
            continue
        name = asked.lower()
        meant = name if name in BACKENDS else _nearly(name) or "c10d"
        is_certain = name in (*CONFUSED, *BACKENDS, "") or meant == _nearly(name)
        setting = plan.settings["rdzv_backend"]
        text = f"{source(setting, 'rdzv_backend')} does not accept {_quoted(asked)}"
        finding = bad(launch, line, layer, "rdzv_backend", setting, text, "c10d or static", meant, f"use {meant}")
        yield finding.if_certain(is_certain)


def _nearly(name: str) -> str | None:
    """The rendezvous backend that a name misspells: one character is wrong, missing, or too many."""
    return next((backend for backend in ("c10d", "static") if _mistakes(name, backend) == 1), None)


def _mistakes(one: str, other: str) -> int:
    """How many characters differ; 2 for two or more."""
    longer, shorter = sorted((one, other), key=len, reverse=True)
    same = next((i for i, (a, b) in enumerate(zip(longer, shorter, strict=False)) if a != b), len(shorter))
    rest = longer[same + 1 :]
    is_single = rest == (shorter[same + 1 :] if len(longer) == len(shorter) else shorter[same:])
    return 0 if longer == shorter else 1 if is_single else 2


@cause(
    "LAUNCH043",
    "etcd-backend-not-installed",
    Severity.ERROR,
    signatures=(r"EtcdStubError", r"The 'etcd' module is required but not installed"),
)
def etcd_backend_not_installed(launch: Launch) -> Iterator[Finding]:
    """--rdzv-backend=etcd needs a package and a server that torch does not include.

    ## Why it matters
    Without python-etcd torchrun fails with `EtcdStubError: The 'etcd' module is required but not installed.`

    ## Fix
    Use `c10d`, which needs neither.

    Or install python-etcd on every node and start the server.

    ## Example
        EtcdStubError: The 'etcd' module is required but not installed.

        # before
        torchrun --nnodes=2 --rdzv-backend=etcd --rdzv-endpoint=HOST0:2379 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py
    """
    for line, layer, plan in agents(launch):
        if plan.backend in ("etcd", "etcd-v2"):
            setting = plan.settings["rdzv_backend"]
            text = f"{source(setting, 'rdzv_backend')}={plan.backend} needs python-etcd and an etcd server"
            finding = bad(launch, line, layer, "rdzv_backend", setting, text, "c10d", "c10d", "c10d needs neither")
            yield finding.if_certain(False)  # a line does not show whether they are installed


@cause("LAUNCH047", "nnodes-invalid", Severity.ERROR, signatures=(r"nnodes=\S{1,60} is not in",))
def nnodes_invalid(launch: Launch) -> Iterator[Finding]:
    """--nnodes is neither a number nor MIN:MAX.

    ## Why it matters
    The traceback does not name the option: `invalid literal for int() with base 10: '1-2'`, `AssertionError:
    min_nodes must be > 0 and <= max_nodes`, or `nnodes=1:2:3 is not in "MIN:MAX" format`.

    ## Fix
    Use a number from 1, or MIN:MAX with MIN at most MAX.

    ## Example
        ValueError: invalid literal for int() with base 10: 'two'

        # before
        torchrun --nnodes=two --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py

        # after
        torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=HOST0:29400 train.py

    ## Source
    torch/distributed/run.py: `parse_min_max_nnodes`.
    """
    for line, layer, plan in agents(launch):
        setting = plan.settings["nnodes"]
        if setting.value is None or setting.value == "" or parse_nnodes(setting.value) is not None:
            continue
        meant = _nnodes(setting.value)
        text = f"{source(setting, 'nnodes')} does not accept {_quoted(setting.value)}"
        label = "use a number, or MIN:MAX"
        yield bad(launch, line, layer, "nnodes", setting, text, meant or "a number", meant, label)


def _nnodes(value: str) -> str | None:
    numbers = [n for n in (int(m) for m in re.findall(r"\d{1,6}", value)) if n > 0]
    if not numbers:
        words = ("one", "two", "three", "four", "five", "six", "seven", "eight")
        return str(words.index(value.lower()) + 1) if value.lower() in words else "1" if value.strip() == "0" else None
    low, high = min(numbers), max(numbers)
    return str(high) if low == high or ("-" not in value and ":" not in value) else f"{low}:{high}"
