"""What the comment lines of a batch script ask of its scheduler: Slurm, PBS, LSF and Flux.

Sources: the manual pages sbatch(1), qsub(1B) of OpenPBS 20, bsub(1) of LSF 10.1 and flux-batch(1).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ddpdoctor.facts.torchrun_options import Version
from ddpdoctor.launch.evaluator.cluster import MOST_NODES, Allocation, components_of
from ddpdoctor.launch.evaluator.values import Origin, Value
from ddpdoctor.launch.sbatch import batch_layers, option_places

__all__ = ["allocation_of_script"]

PBS_NODEFILE = "/var/spool/pbs/aux/4711"
LSF_HOSTFILE = "/var/spool/lsf/4711.hostfile"
_CHUNK = re.compile(r"(?:(\d+):)?((?:\w+=[^:+]+:?)*)")


def allocation_of_script(text: str, file: str, environ: Mapping[str, str], version: Version) -> Allocation:
    """The allocation of a batch script; one host for any other script."""
    layers = batch_layers(text, version)
    if layers:
        allocation = components_of(layers, environ)
        places = {name: Origin(file, *span) for name, span in option_places(text).items()}
        return replace(allocation, places=places)
    for sign, read in (("#PBS", _pbs), ("#BSUB", _lsf), ("#flux:", _flux)):
        rows = list(_rows(text, sign))
        if rows:
            return read([(option, Origin(file, start, start + len(option))) for start, option in rows])
    return Allocation()


def _rows(text: str, sign: str) -> Iterator[tuple[int, str]]:
    """The options of each line of a scheduler before the first command, and where they begin."""
    at = 0
    for row in text.splitlines(keepends=True):
        if row.startswith(sign):
            option = row[len(sign) :].strip()
            yield at + row.find(option, len(sign)), option
        elif row.strip() and not row.lstrip().startswith("#"):
            return
        at += len(row)


def _pbs(rows: list[tuple[str, Origin]]) -> Allocation:
    """`-l select=2:ncpus=32:ngpus=4:mpiprocs=4`, or Torque's `-l nodes=2:ppn=8:gpus=4`."""
    count, slots, gpus, places, array = None, None, None, {}, False
    is_known = True
    for option, origin in rows:
        array |= re.match(r"-[Jt]\s", option) is not None
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
    variables = {
        "PBS_JOBID": Value("4711.pbs"),
        "PBS_NODEFILE": Value(PBS_NODEFILE),
        "PBS_O_WORKDIR": Value("\0"),
        "PBS_ENVIRONMENT": Value("PBS_BATCH"),
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
    variables = {
        "LSB_JOBID": Value("4711"),
        "LSB_DJOB_HOSTFILE": Value(LSF_HOSTFILE),
        "LSB_HOSTS": Value(" ".join(hosts)) if nodes is not None else Value("\0"),
        "LSB_MCPU_HOSTS": Value(" ".join(f"{host} {tile or 1}" for host in hosts)) if nodes else Value("\0"),
    }
    return Allocation(
        hosts=hosts,
        gpus_per_node=gpus,
        nodes_are_known=nodes is not None,
        is_array=re.search(r"-J\s+\S*\[", text) is not None,
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


def _hosts(count: int | None) -> tuple[str, ...]:
    return tuple(f"node-{at}" for at in range(min(count or 1, MOST_NODES)))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"\d{1,6}", text) else None


def _found(pattern: str, text: str) -> int | None:
    match = re.search(pattern, text, re.MULTILINE)
    return _number(match[1]) if match else None
