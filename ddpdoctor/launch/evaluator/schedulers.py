"""What the comment lines of a batch script ask of its scheduler: Slurm, PBS, LSF, Flux and Grid Engine.

Sources: the manual pages sbatch(1), qsub(1B) of OpenPBS 20, bsub(1) of LSF 10.1, flux-batch(1), and qsub(1) and sge_pe(5) of
Grid Engine; docs.abci.ai ("Job Execution") and the manuals of TSUBAME for node types that are resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster import (
    MOST_NODES,
    SUBMIT_HOST,
    Allocation,
    array_task,
    components_of,
    last_index,
)
from ddpdoctor.launch.evaluator.tools import UNSORTED_HOST
from ddpdoctor.launch.evaluator.values import ARRAY, NODE, Origin, Value
from ddpdoctor.launch.sbatch import batch_layers, option_places

__all__ = ["allocation_of_script"]

PBS_NODEFILE = "/var/spool/pbs/aux/4711"
LSF_HOSTFILE = "/var/spool/lsf/4711.hostfile"
SGE_HOSTFILE = "/var/spool/sge/4711/pe_hostfile"
MOST_GPUS = 16
"""No host of a cluster has more."""
SGE_HOSTLIST = "/var/spool/sge/4711/hostlist"
_CHUNK = re.compile(r"(?:(\d+):)?((?:\w+=[^:+]+:?)*)")


def allocation_of_script(text: str, file: str, environ: Mapping[str, str], version: Version) -> Allocation:
    """The allocation of a batch script; one host for any other script."""
    layers = batch_layers(text, version)
    if layers:
        allocation = components_of(layers, environ)
        places = {name: Origin(file, *span) for name, span in option_places(text).items()}
        return replace(allocation, places=places)
    for sign, read in (("#PBS", _pbs), ("#BSUB", _lsf), ("#flux:", _flux), ("#$", _sge)):
        rows = [(start, option) for start, option in _rows(text, sign) if sign != "#$" or option.startswith("-")]
        if rows:
            found = read([(option, Origin(file, start, start + len(option))) for start, option in rows])
            return _with_batch_node(found) if sign == "#BSUB" and _STARTS_JSRUN.search(text) else found
    return Allocation()


_STARTS_JSRUN = re.compile(r"(?m)^[^#\n]*\bjsrun\b")


def _with_batch_node(found: Allocation) -> Allocation:
    """Where jsrun starts the ranks, the script runs on a batch node, the first row of the file with the hosts.

    Source: OLCF, "Summit User Guide" (Job Launcher); LLNL, "Using LC's Sierra Systems". LSB_HOSTS differs between sites.
    """
    unknown = dict.fromkeys(("LSB_HOSTS", "LSB_MCPU_HOSTS"), Value("\0"))
    if not found.nodes_are_known:
        return replace(found, variables={**found.variables, **unknown}, texts={})
    rows = "".join(f"{host}\n" * 2 for host in found.hosts)  # as many as it has cores; two show that it is repeated
    texts = {LSF_HOSTFILE: f"{UNSORTED_HOST}\n{rows}"}
    return replace(found, variables={**found.variables, **unknown}, texts=texts, batch_host=UNSORTED_HOST)


def _rows(text: str, sign: str) -> Iterator[tuple[int, str]]:
    """The options of each line of a scheduler before the first command, and where they begin; Grid Engine reads all lines."""
    at = 0
    for row in text.splitlines(keepends=True):
        if row.startswith(sign):
            option = row[len(sign) :].strip()
            yield at + row.find(option, len(sign)), option
        elif sign != "#$" and row.strip() and not row.lstrip().startswith("#"):
            return
        at += len(row)


def _pbs(rows: list[tuple[str, Origin]]) -> Allocation:
    """`-l select=2:ncpus=32:ngpus=4:mpiprocs=4`, or Torque's `-l nodes=2:ppn=8:gpus=4`."""
    count, slots, gpus, places, array = None, None, None, {}, False
    last: int | None = None
    is_known = True
    for option, origin in rows:
        indices = re.match(r"-[Jt]\s+(\S+)", option)
        array |= indices is not None
        last = last_index(indices[1]) if indices else last
        match = re.search(r"-l\s+(?:\S+,)?(select|nodes)=(\S+)", option)
        if match is None:
            continue
        places["-l"] = origin
        chunks = [_CHUNK.fullmatch(chunk) for chunk in match[2].partition(",")[0].split("+")]
        if len(chunks) != 1 or chunks[0] is None:
            is_known = False
            continue
        settings = dict(pair.partition("=")[::2] for pair in chunks[0][2].split(":") if pair)
        count = int(chunks[0][1] or 1) if chunks[0][1] or settings else None
        gpus = _number(settings.get("ngpus", settings.get("gpus")))
        slots = _number(settings.get("mpiprocs", settings.get("ppn")))
    count = count if is_known else None
    hosts = _hosts(count)
    lines = "".join(f"{host}\n" * (slots or 1) for host in hosts)
    varies = frozenset((ARRAY,)) if array else frozenset()
    variables = {
        "PBS_JOBID": Value("4711[1].pbs" if array else "4711.pbs", varies=varies),
        "PBS_NODEFILE": Value(PBS_NODEFILE),
        "PBS_O_WORKDIR": Value("\0"),
        "PBS_O_HOST": Value(SUBMIT_HOST),
        "PBS_ENVIRONMENT": Value("PBS_BATCH"),
        **(dict.fromkeys(("PBS_ARRAY_INDEX", "PBS_ARRAYID"), array_task(last)) if array else {}),
    }
    return Allocation(
        hosts=hosts,
        tasks_per_node=slots,
        gpus_per_node=gpus if is_known else None,
        is_array=array,
        nodes_are_known=count is not None,
        scheduler="PBS",
        places=places,
        variables=variables,
        texts={PBS_NODEFILE: lines} if count is not None else {},
    )


def _lsf(rows: list[tuple[str, Origin]]) -> Allocation:
    """`-nnodes 2`; `-n 16 -R "span[ptile=8]"`; `-gpu "num=4"` per host."""
    text = "\n".join(option for option, _ in rows)
    nodes = _found(r"(?:^|\s)-nnodes\s+(\d+)", text)
    slots, tile = _found(r"(?:^|\s)-n\s+(\d+)", text), _found(r"span\[ptile=(\d+)\]", text)
    if nodes is None and re.search(r"span\[hosts=1\]", text):
        nodes = 1
    if nodes is None and slots is not None and tile:
        nodes = -(-slots // tile)
    gpus = _found(r"(?:^|\s)-gpu\s+\S*?num=(\d+)", text)
    gpus = None if re.search(r"num=\d+/task", text) else gpus
    hosts = _hosts(nodes)
    is_array = re.search(r"-J\s+\S*\[", text) is not None
    variables = {
        "LSB_JOBID": Value("4711"),
        **({"LSB_JOBINDEX": array_task(None)} if is_array else {}),
        "LSB_DJOB_HOSTFILE": Value(LSF_HOSTFILE),
        "LS_SUBCWD": Value("\0"),
        "LSB_SUB_HOST": Value(SUBMIT_HOST),
        "LSB_HOSTS": Value(" ".join(hosts)) if nodes is not None else Value("\0"),
        "LSB_MCPU_HOSTS": Value(" ".join(f"{host} {tile or 1}" for host in hosts)) if nodes else Value("\0"),
    }
    return Allocation(
        hosts=hosts,
        gpus_per_node=gpus,
        nodes_are_known=nodes is not None,
        is_array=is_array,
        scheduler="LSF",
        places=next(({"-gpu": origin} for option, origin in rows if "-gpu" in option), {}),
        variables=variables,
        texts={LSF_HOSTFILE: "".join(f"{host}\n" for host in hosts)} if nodes is not None else {},
    )


def _flux(rows: list[tuple[str, Origin]]) -> Allocation:
    """`-N 2`, `-n 8`: the options of `flux batch`; its GPUs belong to slots."""
    text = " ".join(option for option, _ in rows)
    nodes = _found(r"(?:^|\s)(?:-N\s*|--nodes[= ])(\d+)", text)
    return Allocation(
        hosts=_hosts(nodes),
        nodes_are_known=nodes is not None,
        scheduler="Flux",
        takes_whole_nodes=re.search(r"(?:^|\s)(?:-x|--exclusive)\b", text) is not None,
        variables={"FLUX_JOB_ID": Value("f4711")},
    )


_ON_ONE_HOST = re.compile(
    r"(?:.*[_.-])?(?:smp|shm|shared\w*|thread\w*|omp|openmp|serial|onenode|single\w*)(?:[_.-].*)?"
)
"""Names of parallel environments whose slots are all on one host (`allocation_rule $pe_slots`)."""
_PER_HOST = re.compile(r"(?:.*\D)?(\d{1,3})_?(?:tasks?_per_node|per_node|way|ppn)")
"""Names of parallel environments that say how many slots a host has."""
_NODE_TYPES = {
    "rt_F": 4,
    "rt_HF": 8,
    "rt_AF": 8,
    "f_node": 4,
    "h_node": 2,
    "q_node": 1,
    "node_f": 4,
    "node_h": 2,
    "node_q": 1,
}
"""Node types that sites give as resources, and the GPUs of one: ABCI's and TSUBAME's."""


def _sge(rows: list[tuple[str, Origin]]) -> Allocation:
    """`-pe NAME SLOTS`, `-l gpu=2`, `-l rt_F=2`, `-t 1-10`. How many hosts a parallel environment uses is the site's choice,
    and unknown unless its name says it.
    """
    text = "\n".join(option for option, _ in rows)
    places = {option.split()[0]: origin for option, origin in rows}
    environment = re.search(r"(?m)(?:^|\s)-pe\s+(\S+)\s+(?:\d+-)?(\d{1,6})", text)
    slots = int(environment[2]) if environment else None
    named = re.search(r"[\s,](rt_[A-Z]+|[fhq]_node|node_[fhq])=(\d{1,4})(?![\w.])", text)
    gpus = _found(r"[\s,](?:n?gpus?|GPU|cuda)=(\d{1,3})(?![\w.])", text)
    per_host = _PER_HOST.fullmatch(environment[1]) if environment else None
    nodes: int | None = 1
    if named:
        nodes, gpus = int(named[2]), _NODE_TYPES.get(named[1])
    elif environment and slots and not _ON_ONE_HOST.fullmatch(environment[1]):
        nodes = -(-slots // int(per_host[1])) if per_host else None
    is_per_host = nodes == 1 and (slots or 1) * (gpus or 1) > MOST_GPUS  # no host has as many as that would be per slot
    if environment and not named and not is_per_host and (nodes != 1 or slots != 1):
        gpus = None  # of each slot or of each host, as the site decides
    hosts = _hosts(2 if nodes is None else nodes)  # two stand for any number
    on_host = (slots or 1) // len(hosts) or 1
    indices = re.search(r"(?m)(?:^|\s)-t\s+(\d\S*)", text)
    is_array = indices is not None
    variables = {
        "JOB_ID": Value("4711"),
        "SGE_TASK_ID": array_task(last_index(indices[1])) if indices else Value("undefined"),
        "NSLOTS": Value(str(slots or 1)),
        "NHOSTS": Value(str(len(hosts))),
        "PE": Value(environment[1] if environment else "\0"),
        "PE_HOSTFILE": Value(SGE_HOSTFILE if environment or named else "\0"),
        "SGE_JOB_HOSTLIST": Value(SGE_HOSTLIST),
        "SGE_O_WORKDIR": Value("\0"),
        "SGE_O_HOST": Value(SUBMIT_HOST),
        "HOSTNAME": Value(hosts[0], varies=frozenset((NODE,))),
    }
    listed = "".join(f"{host} {on_host} all.q@{host} UNDEFINED\n" for host in hosts)
    return Allocation(
        hosts=hosts,
        tasks_per_node=on_host if environment and nodes is not None and slots else None,
        gpus_per_node=gpus,
        nodes_are_known=nodes is not None,
        is_array=is_array and re.search(r"(?m)(?:^|\s)-tc\s+1\b", text) is None,
        scheduler="Grid Engine",
        places=places,
        variables=variables,
        texts={SGE_HOSTFILE: listed, SGE_HOSTLIST: "".join(f"{host}\n" for host in hosts)},
    )


def _hosts(count: int | None) -> tuple[str, ...]:
    return tuple(f"node-{at}" for at in range(min(count or 1, MOST_NODES)))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,6}", text) else None


def _found(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text, re.MULTILINE)
    return _number(match[1]) if match else None
