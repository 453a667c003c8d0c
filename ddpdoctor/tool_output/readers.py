"""The reader of each kind of part. To add a tool, add its first line to `parts`, a reader, and an entry here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddpdoctor.tool_output.dcgmi import read_diag, read_diag_json, read_health, read_nvlink
from ddpdoctor.tool_output.infiniband import read_ibstat, read_ibstatus, read_ibv_devinfo
from ddpdoctor.tool_output.inspector import read_inspector
from ddpdoctor.tool_output.lspci import read_lspci
from ddpdoctor.tool_output.nccl_tests import read_nccl_tests
from ddpdoctor.tool_output.nccl_xml import read_nccl_graph, read_nccl_topology
from ddpdoctor.tool_output.other_tools import read_fabric_manager, read_ibdiagnet, refused
from ddpdoctor.tool_output.parts import ToolPart, parts_of
from ddpdoctor.tool_output.record import Line, Record
from ddpdoctor.tool_output.schedulers import read_kubectl_node, read_scontrol_job, read_scontrol_nodes
from ddpdoctor.tool_output.smi_csv import read_csv
from ddpdoctor.tool_output.smi_links import read_list, read_topology
from ddpdoctor.tool_output.smi_query import read_query, read_query_xml
from ddpdoctor.tool_output.smi_table import read_failure, read_table
from ddpdoctor.tool_output.system_tools import read_collect_env, read_environment, read_ip_addr, read_limits

__all__ = ["records_of"]

_NOT_NVIDIA = "ddpdoctor judges NVIDIA GPUs only"


def _rocm(lines: Sequence[Line]) -> Record:
    return refused("rocm-smi", _NOT_NVIDIA, lines)


def _npu(lines: Sequence[Line]) -> Record:
    return refused("npu-smi", _NOT_NVIDIA, lines)


def _profiler(lines: Sequence[Line]) -> Record:
    return refused("torch profiler", "a trace of one rank, which is not judged", lines)


READERS: dict[str, Callable[[Sequence[Line]], Record | list[Record]]] = {
    "smi_table": read_table,
    "smi_query": read_query,
    "smi_xml": read_query_xml,
    "smi_topo": read_topology,
    "smi_list": read_list,
    "smi_csv": read_csv,
    "smi_failure": read_failure,
    "ibstat": read_ibstat,
    "ibstatus": read_ibstatus,
    "ibv_devinfo": read_ibv_devinfo,
    "dcgmi_diag": read_diag,
    "dcgmi_json": read_diag_json,
    "dcgmi_health": read_health,
    "dcgmi_nvlink": read_nvlink,
    "lspci": read_lspci,
    "nccl_tests": read_nccl_tests,
    "nccl_topo": read_nccl_topology,
    "nccl_graph": read_nccl_graph,
    "collect_env": read_collect_env,
    "ip_addr": read_ip_addr,
    "ulimit": read_limits,
    "env": read_environment,
    "scontrol_node": read_scontrol_nodes,
    "scontrol_job": read_scontrol_job,
    "kubectl_node": read_kubectl_node,
    "fabric_manager": read_fabric_manager,
    "ibdiagnet": read_ibdiagnet,
    "inspector": read_inspector,
    "profiler": _profiler,
    "rocm_smi": _rocm,
    "npu_smi": _npu,
}


def records_of(text: str) -> tuple[Record, ...]:
    """The records of a text, one per part that says something; () if no known tool printed it."""
    return tuple(record for part in parts_of(text) for record in _records(part))


def _records(part: ToolPart) -> list[Record]:
    read = READERS[part.kind](part.lines)
    records = read if isinstance(read, list) else [read]
    for record in records:
        record.host = record.host or part.host
        if record.is_empty and record.refusal is None:
            record.refusal = "no value in it was read"
    return records
