"""Which tools printed a text, and which lines each of them printed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.tool_output.record import Line

__all__ = ["LITERALS", "ToolPart", "may_be_tool_output", "parts_of"]

_ADDRESS = r"(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_MPI = r"(?:[ \t]*\[\d+,\d+\]<std\w+>:)?"
"""What mpirun --tag-output writes before a line."""
_ANCHORS = {
    "smi_table": r"[ \t]*\| NVIDIA-SMI \d",
    "smi_query": r"[ \t]*=+NVSMI LOG=+",
    "smi_xml": r"[ \t]*<nvidia_smi_log>",
    "smi_topo": r"(?:\x1b\[4m)?[ \t]*(?:\x1b\[4m)?GPU\d+[ \t]+(?:GPU\d+|NIC\d+|mlx\d_\d+|CPU Affinity)",
    "smi_list": r"[ \t]*GPU \d+: .{1,80} \(UUID: ",
    "smi_csv": r"(?:timestamp|index|name|gpu_name|uuid|gpu_uuid|pci\.bus_id|gpu_bus_id|driver_version|count|serial)"
    r"(?:,| \[)[^\n]*[a-z]",
    "smi_failure": r"(?:NVIDIA-SMI has failed|Failed to initialize NVML: |No devices were found"
    r"|Unable to determine the device handle for )",
    "ibstat": r"[ \t]*CA '\w+'",
    "ibstatus": r"[ \t]*Infiniband device '\w+' port \d+ status",
    "ibv_devinfo": r"[ \t]*hca_id:[ \t]",
    "dcgmi_diag": r"[ \t]*\| Diagnostic +\| Result",
    "dcgmi_json": r'[ \t{\'"(]*"DCGM (?:GPU )?Diagnostic"',
    "dcgmi_health": r"[ \t]*(?:\| )?Health Monitor Report",
    "lspci": _ADDRESS + r" [A-Z3][^\n]{2,80}: ",
    "nccl_tests": _MPI
    + r"(?:#? ?(?:nThread \d+ nGpus \d|Collective test starting: )|# ?Using devices|#?[ \t]+out-of-place[ \t]+in-place)",
    "nccl_topo": r"[ \t]*<system\b[^\n]{0,200}>",
    "nccl_graph": r"[ \t]*<graphs version=",
    "collect_env": r"PyTorch version: ",
    "ip_addr": r"\d+: [\w.@:-]+: <[A-Z0-9_,-]*>",
    "ulimit": r"(?:core file size|data seg size|max locked memory|open files|max user processes)[ \t]+\([^)\n]*\)[ \t]+\S+",
    "scontrol_node": r"NodeName=\S+ ",
    "scontrol_job": r"JobId=\d+ ",
    "kubectl_node": r"Name:[ \t]+\S+[ \t]*\nRoles:|[ \t]*(?:[Aa]llocatable|[Cc]apacity):[ \t]*$",
    "dcgmi_nvlink": r"[ \t]*\|  ?NvLink Link Status",
    "fabric_manager": r"\[\w{3} \d\d \d{4} \d\d:\d\d:\d\d\] \[[A-Z]+[ \t]*\] \[tid \d+\]",
    "rocm_smi": r"=+ ROCm System Management Interface =+|[ \t]*\{?\"card0\": \{|GPU  NODE  |WARNING: AMD GPU device\(s\)",
    "npu_smi": r"[ \t]*\| npu-smi ",
    "ibdiagnet": r"Load Plugins from:\n[^\n]*ibdiagnet|-I- Stage +Warnings +Errors|Summary\n-I- ",
    "inspector": r'[ \t]*\{"header":[^\n]{0,1000}"(?:coll_perf|p2p_perf)": ?\{|[ \t]*\{\n\s{0,8}"header": ?\{\n\s{0,16}"id":'
    r'|[ \t]*\{"id": ?"[^"\n]{1,40}", ?"rank": ?\d+, ?"n_ranks": ?\d',
    "profiler": r'[ \t{]*"(?:schemaVersion": ?\d+,[^\n]{0,400}"traceEvents|traceEvents)": ?\[',
    "host_name": r"(?:[\w.-]+ \| (?:CHANGED|SUCCESS|FAILED)[^\n]*>>|-{8,}\n[A-Za-z][\w.-]*\n-{8,}$"
    r"|(?:uname: )?Linux [\w.-]+ \d+\.\d+\.\d+\S* #"
    r"|\[?[\w.-]+@[\w.-]+[:  ][^\n]{0,60}[#$] )",
}
_ANCHOR = pattern("|".join(f"(?P<{name}>{words})" for name, words in _ANCHORS.items()), re.M)
_REPEATED = frozenset(
    {
        "smi_list",
        "kubectl_node",
        "smi_failure",
        "ibstat",
        "ibstatus",
        "ibv_devinfo",
        "lspci",
        "ip_addr",
        "ulimit",
        "scontrol_node",
    }
    | {"inspector", "fabric_manager", "nccl_tests", "rocm_smi"}
)
"""Kinds whose first line is printed once per item: the parts that follow one another are one part."""
LITERALS = (
    b"NVIDIA-SMI",
    b"NVSMI LOG",
    b"nvidia_smi_log",
    b"GPU0",
    b"(UUID: ",
    b"Failed to initialize NVML",
    b"No devices were found",
    b"the device handle for",
    b"uuid",
    b"index, ",
    b"pci.bus_id",
    b"timestamp, ",
    b"name, ",
    b"CA '",
    b"Infiniband device",
    b"hca_id:",
    b"Diagnostic",
    b"Health Monitor",
    b"controller",
    b"bridge",
    b"out-of-place",
    b"<system",
    b"<graphs version",
    b"PyTorch version: ",
    b"> mtu ",
    b"locked memory",
    b"NodeName=",
    b"JobId=",
    b"Roles:",
    b"llocatable:",
    b"NvLink Link Status",
    b"[tid ",
    b"ROCm System",
    b'"card0"',
    b"npu-smi",
    b"ibdiagnet",
    b"-I- Stage",
    b'"coll_perf"',
    b'"p2p_perf"',
    b'"traceEvents"',
    b"PATH=",
    b"HOME=",
)
"""Every recognized output contains one of these."""
IN_LOGS = (
    b"| NVIDIA-SMI ",
    b"NVSMI LOG",
    b"<nvidia_smi_log>",
    b"(UUID: GPU-",
    b"\tGPU0\t",
    b"GPU0    GPU1",
    b"CA '",
    b"hca_id:",
    b"Infiniband device '",
    b"| Diagnostic ",
    b"out-of-place",
    b"Health Monitor Report",
    b"NodeName=",
    b"locked memory ",
    b"] [tid ",
)
"""What the output of a tool inside the log of a job contains: words that ordinary logs do not."""
_PREFIXED = pattern(r"([A-Za-z][\w.-]{0,62}): ?(.*)")
LEAST_PREFIXED = 5
PREFIXED_SHARE = 0.9
_VARIABLE = pattern(r"(?:export |declare -x )?([A-Za-z_]\w*)=")
_OF_ENVIRONMENT = pattern(r"(?:PATH|HOME|PWD|LD_LIBRARY_PATH|NCCL_\w+|SLURM_\w+|CUDA_\w+|MASTER_ADDR|RANK)$")
LEAST_VARIABLES = 3
VARIABLE_SHARE = 0.8


@dataclass(frozen=True)
class ToolPart:
    """Lines that one tool printed. `host` is the machine that the text around them names, None if it names none."""

    kind: str
    lines: tuple[Line, ...]
    host: str | None = None


def may_be_tool_output(data: bytes, *, in_log: bool = False) -> bool:
    """Whether bytes can contain the output of a tool: a quick test before the text is searched line by line.

    Args:
        data: the bytes of a file.
        in_log: whether the file is the log of a job, which is searched only for what it is likely to contain.
    """
    return any(literal in data for literal in (IN_LOGS if in_log else LITERALS))


def parts_of(text: str) -> tuple[ToolPart, ...]:
    """The parts of a text that known tools printed, in order; () if there are none.

    Lines that carry a host's name in front (`pdsh`, `clush`, `kubectl logs --prefix`) are read host by host.
    """
    lines = list(enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), 1))
    by_host = _prefixed(lines)
    if by_host is not None:
        parts = [part for host, own in by_host.items() for part in _parts(own, host)]
        if parts:
            return tuple(parts)
    return tuple(_parts(lines, None)) or _variables(lines)


def _prefixed(lines: Sequence[Line]) -> dict[str, list[Line]] | None:
    """The lines by the host that begins them; None unless nearly all lines begin with one of a few names."""
    matched = [(number, found) for number, line in lines if line.strip() and (found := _PREFIXED.match(line))]
    names = Counter(found[1] for _, found in matched)
    hosts = {name for name, count in names.items() if count >= LEAST_PREFIXED}
    written = sum(bool(line.strip()) for _, line in lines)
    if not hosts or sum(names[host] for host in hosts) < PREFIXED_SHARE * written:
        return None
    by_host: dict[str, list[Line]] = {}
    for number, found in matched:
        if found[1] in hosts:
            by_host.setdefault(found[1], []).append((number, found[2]))
    return by_host


def _parts(lines: Sequence[Line], host: str | None) -> Iterator[ToolPart]:
    starts = list(_starts(lines))
    at, begun = 0, ""
    for kind, index, words in [*starts, ("", len(lines), "")]:
        if begun and kind == begun and kind in _REPEATED:
            continue
        if begun and begun != "host_name":
            yield ToolPart(begun, tuple(lines[at:index]), host)
        if kind == "host_name":
            host = _name_in(words) or host
        at, begun = index, kind


def _starts(lines: Sequence[Line]) -> Iterator[tuple[str, int, str]]:
    """The kind, the index of the first line, and the words of each beginning of a part."""
    text = "\n".join(line for _, line in lines)
    start = 0
    for index, (_, line) in enumerate(lines):
        matched = _ANCHOR.match(text, start) if line else None
        if matched is not None:
            yield matched.lastgroup or "", index, matched[0]
        start += len(line) + 1


def _name_in(words: str) -> str | None:
    """The host in `gpu-07 | CHANGED | rc=0 >>`, in a banner of dshbak, in the output of uname, or in a shell prompt."""
    matched = re.match(r"([\w.-]+) \| |-+\n([\w.-]+)\n|(?:uname: )?Linux ([\w.-]+) |\[?[\w.-]+@([\w.-]+)", words)
    return next((name for name in matched.groups() if name), None) if matched is not None else None


def _variables(lines: Sequence[Line]) -> tuple[ToolPart, ...]:
    """A text that is the output of `env`: nearly every line sets a variable, and one is of a shell or a job."""
    written = [line for _, line in lines if line.strip()]
    names = [matched[1] for line in written if (matched := _VARIABLE.match(line))]
    is_environment = len(names) >= max(LEAST_VARIABLES, VARIABLE_SHARE * len(written))
    return (ToolPart("env", tuple(lines)),) if is_environment and any(map(_OF_ENVIRONMENT.match, names)) else ()
