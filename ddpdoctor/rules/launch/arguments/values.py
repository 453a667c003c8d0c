"""LAUNCH020, 021, 042 to 047, 065 to 067, 069: the grammars of torchrun's option values."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator

from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.launch import UNKNOWN, Launch, Layer, Line, Plan, Setting, Trouble, parse_nnodes, plain, quote
from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import rule
from ddpdoctor.rules.launch.pointing import after, agents, point, remove, replace, revalue, shown, spelled

PRIVATE_BACKENDS = ("npu", "hpu", "mlu", "musa", "privateuseone", "gcu", "maia", "sdaa", "tpu", "neuron")
"""Names of accelerators that plug into torch; torchrun (2.1 and newer) takes such a name where it is registered."""
BACKENDS = ("static", "c10d", "etcd", "etcd-v2")
CONFUSED = ("nccl", "gloo", "mpi", "ucc", "tcp", "env", "torch", "ncll", "cuda", "cpu", "file")
INTEGER_KEYS = (
    "join_timeout",
    "last_call_timeout",
    "close_timeout",
    "heartbeat_timeout",
    "keep_alive_interval",
    "keep_alive_max_attempt",
    "read_timeout",
)
CONF_KEYS = {"c10d": (*INTEGER_KEYS, "is_host", "store_type"), "static": ("timeout", "rank")}
TRUTHS = ("1", "true", "t", "yes", "y", "0", "false", "f", "no", "n")
CHANGED = re.compile(r"(?<!\$)(\${2,3}(?!\$|local_rank|\{local_rank)|\$local_rank\b|\$\{local_rank\})")
"""What torchrun changes: two or three dollars (four are an escaped pair), and the local rank's name."""
REDIRECTS = re.compile(r"[0123]|(\d:[0123],)*\d:[0123]")


def _bad(
    launch: Launch,
    line: Line,
    layer: Layer,
    dest: str,
    setting: Setting,
    message: str,
    expected: str,
    value: str | None,
) -> Finding:
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


@rule(
    "LAUNCH020",
    "nproc-per-node-empty",
    Severity.ERROR,
    signatures=(
        r"Unsupported nproc_per_node value: ($|-)",
        r"argument --nproc[-_]per[-_]node\S*: (invalid int value: ''|expected one argument)",
        r"invalid literal for int\(\) with base 10: '(--|GPUS)",
    ),
)
def nproc_empty(launch: Launch) -> Iterator[Finding]:
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
        if layer is None or plan is None or layer.slips:
            continue
        setting = plan.settings["nproc_per_node"]
        missing = next(
            (p for p in layer.reading.problems if p.trouble is Trouble.EXPECTED_VALUE and "nproc" in p.option), None
        )
        given = layer.given("nproc_per_node")
        if missing is not None:
            yield point(
                launch,
                line,
                missing.word,
                f"{shown(missing.word)} has no value: expected a number, gpu or auto",
                "a number, gpu or auto",
                [replace(missing.word, f"{missing.word.text}=auto")],
            )
        elif setting.value == "":
            yield _bad(
                launch, line, layer, "nproc_per_node", setting,
                _told(setting, "nproc_per_node", "is empty: expected a number, gpu or auto"), "a number, gpu or auto", "auto",
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
    missing = any(p.trouble is Trouble.NO_SCRIPT for p in layer.reading.problems)
    return not is_joined and value.endswith((".py", ".sh")) and missing


def _told(setting: Setting, dest: str, rest: str) -> str:
    return f"{f'PET_{dest.upper()}' if setting.origin == 'variable' else '--' + dest.replace('_', '-')} {rest}"


@rule(
    "LAUNCH021",
    "nproc-per-node-invalid",
    Severity.ERROR,
    signatures=(r"Unsupported nproc_per_node value: [A-Za-z\d.]+",),
)
def nproc_invalid(launch: Launch) -> Iterator[Finding]:
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
        yield _bad(
            launch,
            line,
            layer,
            "nproc_per_node",
            setting,
            _told(setting, "nproc_per_node", text),
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


@rule(
    "LAUNCH042",
    "rdzv-backend-unknown",
    Severity.ERROR,
    signatures=(r"The rendezvous backend '[^']*' is not registered",),
)
def backend_unknown(launch: Launch) -> Iterator[Finding]:
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
        sure = asked.lower() in (*CONFUSED, *BACKENDS, "")
        meant = asked.lower() if asked.lower() in BACKENDS else "c10d"
        message = _told(
            plan.settings["rdzv_backend"],
            "rdzv_backend",
            f"is {asked!r:.40}: expected c10d, static, or a plug-in's name",
        )
        found = _bad(
            launch, line, layer, "rdzv_backend", plan.settings["rdzv_backend"], message, "c10d or static", meant
        )
        yield found if sure else _softer(found)


def _softer(finding: Finding) -> Finding:
    return Finding(
        finding.message, finding.evidence, finding.fix, finding.fix_command, finding.where, severity=Severity.WARNING
    )


@rule(
    "LAUNCH043",
    "etcd-backend-not-installed",
    Severity.ERROR,
    signatures=(r"EtcdStubError", r"The 'etcd' module is required but not installed"),
)
def etcd(launch: Launch) -> Iterator[Finding]:
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
            yield _softer(
                _bad(launch, line, layer, "rdzv_backend", setting, _told(setting, "rdzv_backend", text), "c10d", "c10d")
            )


def _conf(plan: Plan) -> Iterator[tuple[str, str | None]]:
    text = plan.settings["rdzv_conf"].value
    for item in (text or "").strip().split(","):
        name, sign, value = item.partition("=")
        if name.strip() or sign:
            yield name.strip(), value.strip() if sign and value.strip() else None


@rule("LAUNCH044", "rdzv-conf-key-ignored", Severity.WARNING)
def conf_ignored(launch: Launch) -> Iterator[Finding]:
    """--rdzv-conf has a key that this rendezvous backend never reads.

    ## Why it matters
    Unknown keys are dropped without a word, and each backend has its own: `timeout=5` does nothing under c10d, `join_timeout=5`
    nothing under static. The time that was set is not in force.

    ## Fix
    c10d reads join_timeout, last_call_timeout, close_timeout, read_timeout, is_host and a few more; static reads timeout.
    """
    for line, layer, plan in agents(launch):
        keys = CONF_KEYS.get(plan.backend or "")
        if keys is None:
            continue
        for name, _ in _conf(plan):
            if name and name not in keys:
                meant = _conf_key(name, plan.backend or "")
                wanted = plan.settings["rdzv_conf"]
                fixed = (wanted.value or "").replace(name, meant) if meant else None
                text = (
                    f"has {name}, which the {plan.backend} backend does not read: expected {meant or ', '.join(keys)}"
                )
                message = _told(wanted, "rdzv_conf", text)
                yield _bad(launch, line, layer, "rdzv_conf", wanted, message, meant or ", ".join(keys), fixed)


def _conf_key(name: str, backend: str) -> str | None:
    if backend == "static":
        return "timeout" if "timeout" in name else None
    if name == "timeout":
        return "join_timeout"
    bare = name.replace("_", "").replace("-", "").lower()
    return next((k for k in CONF_KEYS["c10d"] if k.replace("_", "") == bare), None)


@rule(
    "LAUNCH045",
    "rdzv-conf-value-invalid",
    Severity.ERROR,
    signatures=(r"does not represent a valid (boolean|integer) value", r"must have a value specified"),
)
def conf_invalid(launch: Launch) -> Iterator[Finding]:
    """--rdzv-conf has an item without a value, or a value that cannot be read.

    ## Why it matters
    `The rendezvous configuration option 'timeout' must have a value specified.`, `… does not represent a valid boolean value.`
    or `… valid integer value.`

    ## Fix
    Write key=value pairs with commas between them: whole seconds for times, true or false for is_host.
    """
    for line, layer, plan in agents(launch):
        if plan.backend not in ("static", "c10d"):
            continue
        for name, value in _conf(plan):
            wrong = _conf_fault(name, value, plan.backend)
            if wrong:
                setting = plan.settings["rdzv_conf"]
                yield _bad(
                    launch, line, layer, "rdzv_conf", setting, _told(setting, "rdzv_conf", wrong), "key=value", None
                )


def _conf_fault(name: str, value: str | None, backend: str) -> str | None:
    if value is None:
        return f"gives {name!r:.30} no value: expected {name or 'key'}=…"
    if backend == "c10d" and name == "is_host" and value.lower() not in TRUTHS:
        return f"has is_host={value:.30}: expected true or false"
    numbers = INTEGER_KEYS if backend == "c10d" else ("timeout",)
    if name in numbers and not re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return f"has {name}={value:.30}: expected whole seconds"
    return None


@rule("LAUNCH047", "nnodes-invalid", Severity.ERROR, signatures=(r"nnodes=\S+ is not in",))
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
        yield _bad(launch, line, layer, "nnodes", setting, _told(setting, "nnodes", text), meant or "a number", meant)


def _nnodes(value: str) -> str | None:
    numbers = [n for n in (int(m) for m in re.findall(r"\d{1,6}", value)) if n > 0]
    if not numbers:
        words = ("one", "two", "three", "four", "five", "six", "seven", "eight")
        return str(words.index(value.lower()) + 1) if value.lower() in words else "1" if value.strip() == "0" else None
    low, high = min(numbers), max(numbers)
    return str(high) if low == high or ("-" not in value and ":" not in value) else f"{low}:{high}"


@rule("LAUNCH065", "numa-binding-without-gpu", Severity.ERROR)
def numa(launch: Launch, gpu: Gpu) -> Iterator[Finding]:
    """--numa-binding is given on a node where torch sees no GPU.

    ## Why it matters
    torchrun asks CUDA which CPUs are near each GPU and ends with `AssertionError: Torch not compiled with CUDA enabled`.

    ## Fix
    Drop --numa-binding.
    """
    for line, layer, _ in agents(launch):
        given = layer.given("numa_binding")
        if given is not None and not gpu.devices:
            own = () if given.is_joined else (given.value_word,)
            text = f"{shown(given.word)} needs GPUs, this node has none: expected no such option"
            yield point(launch, line, given.word, text, "no such option", remove(line, given.word, *own))


@rule(
    "LAUNCH066",
    "log-option-invalid",
    Severity.ERROR,
    signatures=(r"does not match: <\^\[0123\]", r"local_ranks_filter must be a comma-separated list"),
)
def log_option(launch: Launch) -> Iterator[Finding]:
    """--tee, --redirects or --local-ranks-filter has a value that torchrun cannot read.

    ## Why it matters
    `ValueError: 5 does not match: <^[0123]$> or <^(\\d:[0123],)*(\\d:[0123])$>`, or `--local_ranks_filter must be a
    comma-separated list of integers`, from a traceback that does not name the option.

    ## Fix
    --tee and --redirects take 0 (none), 1 (stdout), 2 (stderr), 3 (both), or pairs such as 0:1,1:3 for single local ranks.
    """
    for line, layer, plan in agents(launch):
        for dest in ("redirects", "tee"):
            setting = plan.settings[dest]
            if setting.value is not None and not REDIRECTS.fullmatch(setting.value):
                text = _told(setting, dest, f"is {setting.value!r:.30}: expected 0 to 3, or pairs such as 0:1,1:3")
                yield _bad(launch, line, layer, dest, setting, text, "0 to 3", "3")
        ranks = plan.settings.get("local_ranks_filter")
        if ranks is not None and ranks.value and not re.fullmatch(r"\s*[+-]?\d+\s*(,\s*[+-]?\d+\s*)*", ranks.value):
            text = _told(
                ranks, "local_ranks_filter", f"is {ranks.value!r:.30}: expected numbers with commas, such as 0,1"
            )
            yield _bad(launch, line, layer, "local_ranks_filter", ranks, text, "0,1", "0")


@rule("LAUNCH067", "worker-output-redirected", Severity.WARNING)
def redirected(launch: Launch) -> Iterator[Finding]:
    """The workers' output goes to files in a temporary folder only.

    ## Why it matters
    --redirects takes the output from the console; without --log-dir the files are somewhere below /tmp/torchelastic_*, on each
    node its own. The console stays empty, also when a worker dies.

    ## Fix
    Add --log-dir, or use --tee, which keeps the console.
    """
    for line, layer, plan in agents(launch):
        given = layer.given("redirects")
        value = plan.settings["redirects"].value
        if given is None or value is None or not REDIRECTS.fullmatch(value) or not re.search(r"[123](,|$)", value):
            continue
        if plan.given("log_dir") or plan.given("tee"):
            continue
        option = f"{spelled(layer, 'log_dir', launch.version)}=logs"
        text = f"{shown(given.word)} sends the workers' output to a temporary folder only: expected --log-dir or --tee"
        yield point(launch, line, given.word, text, "--log-dir or --tee", [after(given.value_word, option)])


@rule("LAUNCH069", "dollar-in-script-args", Severity.WARNING)
def dollar(launch: Launch) -> Iterator[Finding]:
    """torchrun changes a $ in the script's arguments.

    ## Why it matters
    Every argument is a string.Template: `$local_rank` and `${local_rank}` become the local rank, `$$` becomes `$`. A password or
    a pattern arrives changed and nothing says so.

    ## Fix
    Write $$ for every $, or pass the value in a file.

    ## Source
    torch/distributed/elastic/utils/api.py: `macros.substitute`.
    """
    for line, layer, _ in agents(launch):
        for word in layer.reading.arguments:
            text = word.text
            hit = CHANGED.search(text)
            if UNKNOWN in text or hit is None:
                continue
            arrives = string.Template(text).safe_substitute(local_rank="0")
            yield point(
                launch,
                line,
                word,
                f"{plain(text):.60} reaches the script as {arrives:.60}: expected $$ for each $",
                text.replace("$", "$$"),
                [replace(word, text.replace("$", "$$"))],
                severity=None if hit[0].startswith("$$") else Severity.NOTE,
            )
