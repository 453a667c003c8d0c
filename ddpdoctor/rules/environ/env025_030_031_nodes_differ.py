"""ENV025, ENV030, ENV031: settings that only some nodes have, or that give the nodes different networks."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.nodes import Node, Nodes, Split, split
from ddpdoctor.facts.shell_text import MissingVariable
from ddpdoctor.facts.submission import Submission, Task
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import CauseScope, cause
from ddpdoctor.rules.launch.job_file.places import edit, row_of, shell_of, text_of, where
from ddpdoctor.rules.launch.submitted import at_mark
from ddpdoctor.rules.node_findings import differs

if TYPE_CHECKING:
    from ddpdoctor.facts.log import Log

__all__ = ["env_not_propagated", "nccl_env_differs", "nccl_socket_ifname_differs"]

MUST_AGREE = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_BUFFSIZE",
    "NCCL_NTHREADS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_CTAS",
    "NCCL_MIN_CTAS",
    "NCCL_LL_BUFFSIZE",
    "NCCL_LL128_BUFFSIZE",
    "NCCL_P2P_NET_CHUNKSIZE",
    "NCCL_NVLS_ENABLE",
    "NCCL_COLLNET_ENABLE",
    "NCCL_CROSS_NIC",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_IB_DISABLE",
    "NCCL_SOCKET_FAMILY",
)
"""Settings by which NCCL chooses algorithms, buffers, and networks: ranks that choose differently wait for each other."""
NAMES_OF_CARDS = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_TOPO_FILE",
    "NCCL_GRAPH_FILE",
)
"""Interfaces and adapters have different names on different machines: each machine judges its own, and in collected
files a difference is a note."""
PREFIX = "environ."
UNSET = "not set"


def _variables(nodes: Nodes) -> dict[str, Split]:
    """How the nodes differ in each variable that affects the job's processes.

    Raises:
        CannotLook: fewer than two nodes reported their variables.
    """
    if sum(bool(node.traits) for node in nodes.nodes) < 2:
        not_here("fewer than two nodes reported their variables")
    names = sorted({name for node in nodes.nodes for name in node.traits if name.startswith(PREFIX)})
    known = [node for node in nodes.nodes if node.traits]
    splits = {name: split(known, lambda node, name=name: node.traits.get(name, UNSET)) for name in names}  # type: ignore[misc]
    return {name.removeprefix(PREFIX): groups for name, groups in splits.items() if groups is not None}


@cause(
    "ENV025",
    "nccl-socket-ifname-differs",
    Severity.ERROR,
    scope=CauseScope.FACTS_OF_NODES,
    explains=("NET009", "NET010"),
)
def nccl_socket_ifname_differs(nodes: Nodes) -> Iterator[Finding]:
    """NCCL would use interfaces in different subnets on different nodes.

    ## Why it matters
    Every node has a valid interface, but without a router between the subnets no pair of nodes can connect. The job
    hangs at its first collective.

    ## Fix
    Set NCCL_SOCKET_IFNAME on every node to an interface of one common subnet.

    ## Example

        the subnet of NCCL's interface differs between nodes (node0: 10.77.0.0/24; node1: 192.168.5.0/24)

        # before, on node1
        unset NCCL_SOCKET_IFNAME        # NCCL uses eth1, 192.168.5.2
        # after, on node1
        export NCCL_SOCKET_IFNAME=eth0  # 10.77.0.2
    """
    reported = [node for node in nodes.nodes if node.nccl_addresses]
    if len(reported) < 2:
        not_here("fewer than two nodes reported which interface NCCL would use")
    with_network = [node for node in reported if _network(node) is not None]
    subnets = split(with_network, lambda node: str(_network(node)))
    if subnets is None or _all_reach(nodes):
        return
    broken = any(not link.works for link in nodes.links)
    if broken or not nodes.links:
        yield differs(
            subnets,
            "the subnet of NCCL's interface",
            "nccl_addresses",
            severity=None if broken else Severity.NOTE if _is_by_rack(subnets) else Severity.WARNING,
        )


def _is_by_rack(subnets: Split) -> bool:
    """Whether there are several subnets with several nodes each, like racks that a router connects."""
    return len(subnets.groups) > 2 and all(len(nodes) > 1 for _, nodes in subnets.groups)


def _network(node: Node) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_interface(node.nccl_addresses[0]).network
    except ValueError:
        return None


def _all_reach(nodes: Nodes) -> bool:
    """Whether the nodes reach each other at exactly these addresses: a router connects the subnets."""
    return bool(nodes.links) and all(link.works for link in nodes.links)


@cause(
    "ENV030",
    "env-not-propagated",
    Severity.ERROR,
    scope=CauseScope.FACTS_OF_NODES,
    explains=(
        *("ENV015", "ENV016", "ENV017", "ENV020", "LAUNCH026"),
        *("LAUNCH032", "LAUNCH047", "LAUNCH060", "LAUNCH068", "LAUNCH070", "LAUNCH501", "NET005"),
    ),
    repairs=("export-list", "double-quotes"),
)
def env_not_propagated(nodes: Nodes) -> Iterator[Finding]:
    """Variables that affect the job are set on some nodes and not on others.

    ## Why it matters
    An export in the submitting shell stays there: mpirun without -x, ssh, and Ray start ranks without it. Some ranks
    then run with different settings, and the job hangs if the settings must agree.

    ## Fix
    Pass them on: `mpirun -x NAME`, `srun --export=ALL`, .deepspeed_env, Ray's runtime_env, or /etc/nccl.conf on
    every node.

    ## Example

        NCCL_ALGO (set on some nodes only) differs between nodes (node0: Ring; node1: not set)

        # before: node1 does not get it
        export NCCL_ALGO=Ring
        mpirun -H node0:8,node1:8 python train.py
        # after
        mpirun -x NCCL_ALGO -H node0:8,node1:8 python train.py
    """
    for name, groups in _variables(nodes).items():
        values = [value for value, _ in groups.groups]
        severity = _severity(name, values)
        if UNSET not in values or len(values) != 2 or (severity is Severity.NOTE and nodes.is_meeting):
            continue
        yield differs(groups, f"{name} (set on some nodes only)", f"{PREFIX}{name}", severity=severity)


def _severity(name: str, values: list[str]) -> Severity | None:
    """How bad these different values are; None means the severity of the rule."""
    if name in NAMES_OF_CARDS:
        return Severity.NOTE
    return None if _must_agree(name, values) else Severity.WARNING


def _must_agree(name: str, values: list[str]) -> bool:
    """Whether ranks with these values wait for each other: with DETAIL each rank first checks every collective with
    all others.
    """
    return name in MUST_AGREE or (name == "TORCH_DISTRIBUTED_DEBUG" and "DETAIL" in map(str.upper, values))


@cause(
    "ENV031",
    "nccl-env-differs",
    Severity.ERROR,
    scope=CauseScope.FACTS_OF_NODES,
    signatures=(r"[Mm]essage truncated : receiv(ing|ed) \d+ bytes instead of \d+",),
)
def nccl_env_differs(nodes: Nodes) -> Iterator[Finding]:
    """NCCL settings that must agree differ between ranks.

    ## Why it matters
    The ranks choose different algorithms, protocols, or buffer sizes, and hang or fail with `Message truncated :
    received 1024 bytes instead of 256`, which looks like a network fault. Collectives of different sizes, and a bug
    of NCCL 2.19.3 to 2.20.5, print the same line.

    ## Fix
    Compare `env | grep NCCL_` and the NCCL version on all nodes (also /etc/nccl.conf and ~/.nccl.conf), and give
    every rank the same NCCL_ALGO, NCCL_PROTO, NCCL_BUFFSIZE, and NCCL_NTHREADS, or better none of them.

    ## Example

        NCCL WARN Message truncated : received 1024 bytes instead of 256

        # before
        export NCCL_PROTO=LL        # node0
        export NCCL_PROTO=Simple    # node1
        # after, on every node
        unset NCCL_PROTO
    """
    for name, groups in _variables(nodes).items():
        values = [value for value, _ in groups.groups if value != UNSET]
        severity = _severity(name, values)
        if (
            len(values) < 2
            or name in ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS")
            or (severity is Severity.NOTE and nodes.is_meeting)
        ):
            continue
        yield differs(groups, name, f"{PREFIX}{name}", severity=severity)


@env_not_propagated.look
def not_exported(submission: Submission) -> Iterator[Finding]:
    """Text for another shell uses variables that this file sets and that the shell does not get."""
    groups: dict[str, list[MissingVariable]] = {}
    for missing in shell_of(submission).missing:
        groups.setdefault(missing.remote, []).append(missing)
    for remote, variables in groups.items():
        names = ", ".join(variable.name for variable in variables)
        are, first = "are" if len(variables) > 1 else "is", variables[0]
        text = f"{names} {are} empty in the quoted text: "
        text += f"{remote} passes no variables" if remote else "assigned, but not exported"
        fix = "Export the variables where they are assigned."
        if remote:
            fix = "Use double quotes around the text, or export the variables inside it."
        starts = [variable.assigned.start for variable in variables if variable.assigned is not None]
        is_exported = any("export" in text_of(submission, row_of(submission, start)) for start in starts)
        can_export = len(starts) == len(variables) and not remote and not is_exported
        yield Finding(
            text,
            (Evidence("submission.shell.missing", f"${first.name}", "a value"),),
            where=where(submission, first.used.start),
            fix=fix,
            label=f"{are} empty here",
            edits=tuple(edit(submission, start, start, "export ") for start in starts) if can_export else (),
        )


@nccl_env_differs.look
def settings_differ(log: Log) -> Iterator[Finding]:
    """The same in a log, unless it shows different NCCL versions."""
    from ddpdoctor.rules.log.log502_nccl_error_without_reason import nccl_versions
    from ddpdoctor.rules.log.signatures import signed

    if not nccl_versions(log):
        yield from signed(nccl_env_differs, log)


@env_not_propagated.look
def variables_withheld(submission: Submission) -> Iterator[Finding]:
    """A launcher does not pass a variable on that the command which it starts uses."""
    told = set()
    for step in submission.steps:
        for task in step.tasks if step.is_certain else ():
            for name in (*task.missed, *_read_without(task)):
                mark, by = task.withheld[name]
                if (mark.line, name) in told:
                    continue
                told.add((mark.line, name))
                meant = f"-x {name}" if by.startswith("mpirun") else "--export=ALL or unset SLURM_EXPORT_ENV"
                if by.endswith("passes no variables on"):
                    meant = f"{name}=${name} in its command"
                if by.startswith("srun"):
                    meant = "--export=ALL,…"
                text = f"{name} does not reach the processes: {by}"
                label = f"pass {name} on: {meant}" if by.startswith("mpirun") else f"use {meant}"
                yield at_mark(submission, mark, text, seen=by, expected=meant, label=label)


@env_not_propagated.look
def variables_of_an_mpijob(submission: Submission) -> Iterator[Finding]:
    """The launcher of an MPIJob has variables that PyTorch and NCCL read, and mpirun does not pass them to the workers."""
    for step in submission.steps:
        for task in step.tasks if step.is_certain and submission.file.endswith((".yaml", ".yml", ".json")) else ():
            environ = task.line.environ.variables
            names = [name for name in _OF_RANKS if name in task.withheld and name not in environ]
            is_known = task.script is not None and ("MASTER_ADDR" in task.script.sets or not task.script.takes_master)
            if not names or task.layer.launcher is not LauncherKind.PYTHON or is_known:
                continue
            mark, by = task.withheld[names[0]]
            if by != "mpirun without -x":
                continue
            meant = " ".join(f"-x {name}" for name in names)
            verb = "do" if len(names) > 1 else "does"
            text = f"{', '.join(names[:3])}{', …' * (len(names) > 3)} {verb} not reach the workers: {by}"
            label = f"add -x {names[0]}"
            yield at_mark(
                submission,
                mark,
                text,
                seen=by,
                expected=meant,
                label=label,
                severity=Severity.WARNING,
                fix=f"Add `{meant}`.",
            )
            return


_OF_RANKS = (
    *("MASTER_ADDR", "MASTER_PORT", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"),
    *("NCCL_IB_DISABLE", "NCCL_NET"),
)


@env_not_propagated.look
def variables_of_deepspeed(submission: Submission) -> Iterator[Finding]:
    """deepspeed starts on other hosts without variables that PyTorch and Hugging Face read there."""
    for step in submission.steps:
        for task in step.tasks if step.is_certain else ():
            names = [name for name in _OF_HOSTS if task.withheld.get(name, (None, ""))[1] == "deepspeed"]
            if not names or task.layer.launcher is not LauncherKind.DEEPSPEED:
                continue
            verb = "do" if len(names) > 1 else "does"
            text = f"{' and '.join(names[:2])} {verb} not reach the other hosts of deepspeed"
            meant = ", ".join(names) + " in .deepspeed_env"
            fix = (
                f"Write {', '.join(names)} as NAME=VALUE into .deepspeed_env in the home folder or the working folder."
            )
            mark, warning = task.withheld[names[0]][0], Severity.WARNING
            label = "add it to .deepspeed_env"
            yield at_mark(
                submission, mark, text, seen="deepspeed", expected=meant, label=label, severity=warning, fix=fix
            )
            return


_OF_HOSTS = (
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "HF_HOME",
    "HF_HUB_OFFLINE",
    "TRANSFORMERS_OFFLINE",
    "TORCH_HOME",
)


def _read_without(task: Task) -> Iterator[str]:
    """The variables that init_process_group or the script itself needs, in a task that does not have them."""
    script = task.script
    if task.layer.launcher is not LauncherKind.PYTHON or script is None:
        return
    of_torch = ("MASTER_ADDR", "MASTER_PORT") if script.takes_master else ()
    for name in dict.fromkeys((*of_torch, *script.requires)):
        if name in task.withheld and name not in task.line.environ.variables and name not in script.sets:
            yield name
