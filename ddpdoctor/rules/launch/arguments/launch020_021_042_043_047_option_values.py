"""LAUNCH020, 021, 042, 043, 047: the grammars of torchrun's option values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.plan import PlanSetting
from ddpdoctor.facts.launch.reading import ParseProblemKind
from ddpdoctor.facts.launch.record import Launch, LaunchLine
from ddpdoctor.facts.launch.words import quote
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.launch.rendezvous import parse_nnodes
from ddpdoctor.rules import cause
from ddpdoctor.rules.launch.pointing import after, agents, point, replace_word, revalue, shown, spelled

__all__ = ["bad", "told"]

PRIVATE_BACKENDS = ("npu", "hpu", "mlu", "musa", "privateuseone", "gcu", "maia", "sdaa", "tpu", "neuron")
"""Names of accelerators that plug into torch; torchrun (2.1 and newer) takes such a name where it is registered."""
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
) -> Finding:
    """A finding about an option's value: at its word, or at the launcher when a PET_ variable gives it."""
    given = layer.given(dest)
    if given is None:  # it came from PET_*: the option on the line wins
        edits = None if value is None else [after(layer.own[0], f"{spelled(layer, dest, launch.version)}={value}")]
        if layer.own[0].text != layer.program.text or (len(layer.own) > 1 and layer.own[1].text == "-m"):
            edits = None
        return point(launch, line, layer.program, message, expected, edits)
    return point(
        launch,
        line,
        given.value_word,
        message,
        expected,
        [revalue(given, quote(value))] if value else None,
    )


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
    Mostly a shell variable that is not set. `--nproc-per-node=$NGPU` becomes `Unsupported nproc_per_node value: ` with a
    traceback inside torch/distributed/run.py; `--nproc-per-node $NGPU train.py` takes train.py for the number and asks for a
    script.

    ## Fix
    Set the variable, or write the number of processes, gpu, or auto.
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
                f"{shown(missing.word)} has no value: expected a number, gpu or auto",
                "a number, gpu or auto",
                [replace_word(missing.word, f"{missing.word.text}=auto")],
            )
        elif setting.value == "":
            yield bad(
                launch, line, layer, "nproc_per_node", setting,
                told(setting, "nproc_per_node", "is empty: expected a number, gpu or auto"), "a number, gpu or auto", "auto",
            )  # fmt: skip
        elif given is not None and given.value and _took_script(layer, given.value, given.is_joined):
            yield point(
                launch,
                line,
                given.value_word,
                f"{given.written} takes {given.value} as its number and no script is left: expected a number first",
                "a number, gpu or auto",
                [after(given.word, "auto")],
            )


def _took_script(layer: Layer, value: str, is_joined: bool) -> bool:
    missing = any(p.trouble is ParseProblemKind.NO_SCRIPT for p in layer.reading.problems)
    return not is_joined and value.endswith((".py", ".sh")) and missing


def told(setting: PlanSetting, dest: str, rest: str) -> str:
    """The option or the PET_ variable that gives the value, and what is wrong with it."""
    return f"{f'PET_{dest.upper()}' if setting.origin == 'variable' else '--' + dest.replace('_', '-')} {rest}"


@cause(
    "LAUNCH021",
    "nproc-per-node-invalid",
    Severity.ERROR,
    signatures=(r"Unsupported nproc_per_node value: [A-Za-z\d.]+",),
)
def nproc_per_node_invalid(launch: Launch) -> Iterator[Finding]:
    """--nproc-per-node is neither a positive number nor a word that torchrun knows.

    ## Why it matters
    `ValueError: Unsupported nproc_per_node value: cuda` for unknown words (upper case counts as unknown, 2.0 too), and a bare
    `AssertionError` without any text for 0 and negative numbers.

    ## Fix
    Give a positive number, gpu, cpu or auto.

    ## Source
    torch/distributed/run.py: `determine_local_world_size`; WorkerSpec.__post_init__.
    """
    for line, layer, plan in agents(launch):
        setting = plan.settings["nproc_per_node"]
        value = setting.value
        if value is None or value == "" or _is_nproc(value, launch.version):
            continue
        meant = _nproc(value)
        text = f"is {value!r:.40}: expected a positive number, gpu, cpu or auto"
        yield bad(
            launch,
            line,
            layer,
            "nproc_per_node",
            setting,
            told(setting, "nproc_per_node", text),
            f"a number, such as {meant}",
            meant,
        )


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
    `ValueError: The rendezvous backend 'nccl' is not registered. Did you forget to call `register`?` The rendezvous is where
    the agents meet; nccl and gloo are backends of the process group. Names are lower case.

    ## Fix
    Use c10d for several nodes, or leave the option out for one.
    """
    for line, layer, plan in agents(launch):
        asked = plan.asked
        if plan.is_standalone or asked is None or asked in BACKENDS:
            continue
        name = asked.lower()
        meant = name if name in BACKENDS else _nearly(name) or "c10d"
        sure = name in (*CONFUSED, *BACKENDS, "") or meant == _nearly(name)
        message = told(
            plan.settings["rdzv_backend"],
            "rdzv_backend",
            f"is {asked!r:.40}: expected c10d, static, or a plug-in's name",
        )
        found = bad(
            launch, line, layer, "rdzv_backend", plan.settings["rdzv_backend"], message, "c10d or static", meant
        )
        yield found.if_certain(sure)


def _nearly(name: str) -> str | None:
    """The rendezvous backend of which a name is a typo: one character is another, is missing, or too many."""
    return next((each for each in ("c10d", "static") if _slips(name, each) == 1), None)


def _slips(one: str, other: str) -> int:
    """How many characters differ, more than one counted as two."""
    longer, shorter = sorted((one, other), key=len, reverse=True)
    same = next((i for i, (a, b) in enumerate(zip(longer, shorter, strict=False)) if a != b), len(shorter))
    rest = longer[same + 1 :]
    is_slip = rest == (shorter[same + 1 :] if len(longer) == len(shorter) else shorter[same:])
    return 0 if longer == shorter else 1 if is_slip else 2


@cause(
    "LAUNCH043",
    "etcd-backend-not-installed",
    Severity.ERROR,
    signatures=(r"EtcdStubError", r"The 'etcd' module is required but not installed"),
)
def etcd_backend_not_installed(launch: Launch) -> Iterator[Finding]:
    """--rdzv-backend=etcd needs a package and a server that torch does not bring.

    ## Why it matters
    Without python-etcd the launcher ends with `EtcdStubError: The 'etcd' module is required but not installed.`

    ## Fix
    c10d needs neither; or install python-etcd on every node and start the server.
    """
    for line, layer, plan in agents(launch):
        if plan.backend in ("etcd", "etcd-v2"):
            setting = plan.settings["rdzv_backend"]
            text = f"is {plan.backend}: expected c10d, unless python-etcd and an etcd server are there"
            message = told(setting, "rdzv_backend", text)
            # a line does not show whether both are there
            yield bad(launch, line, layer, "rdzv_backend", setting, message, "c10d", "c10d").if_certain(False)


@cause("LAUNCH047", "nnodes-invalid", Severity.ERROR, signatures=(r"nnodes=\S+ is not in",))
def nnodes_invalid(launch: Launch) -> Iterator[Finding]:
    """--nnodes is neither a number nor MIN:MAX.

    ## Why it matters
    A traceback that does not name the option: `invalid literal for int() with base 10: '1-2'`, `AssertionError: min_nodes must
    be > 0 and <= max_nodes`, or `nnodes=1:2:3 is not in "MIN:MAX" format`.

    ## Fix
    Give a number from 1, or MIN:MAX with MIN not above MAX.

    ## Source
    torch/distributed/run.py: `parse_min_max_nnodes`.
    """
    for line, layer, plan in agents(launch):
        setting = plan.settings["nnodes"]
        if setting.value is None or setting.value == "" or parse_nnodes(setting.value) is not None:
            continue
        meant = _nnodes(setting.value)
        text = f"is {setting.value!r:.40}: expected a number from 1, or MIN:MAX"
        yield bad(launch, line, layer, "nnodes", setting, told(setting, "nnodes", text), meant or "a number", meant)


def _nnodes(value: str) -> str | None:
    numbers = [n for n in (int(m) for m in re.findall(r"\d{1,6}", value)) if n > 0]
    if not numbers:
        words = ("one", "two", "three", "four", "five", "six", "seven", "eight")
        return str(words.index(value.lower()) + 1) if value.lower() in words else "1" if value.strip() == "0" else None
    low, high = min(numbers), max(numbers)
    return str(high) if low == high or ("-" not in value and ":" not in value) else f"{low}:{high}"
