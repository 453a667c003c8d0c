"""`ip addr`, `ulimit -a`, `env` and `python -m torch.utils.collect_env`: the host, its network, variables and versions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddpdoctor.late_pattern import pattern
from ddpdoctor.tool_output.driver_branches import cuda_of_driver
from ddpdoctor.tool_output.record import Card, Line, Record, Said, integer
from ddpdoctor.tool_output.smi_values import count

__all__ = ["read_collect_env", "read_environment", "read_ip_addr", "read_limits"]

UNLIMITED = -1
_INTERFACE = pattern(r"\d+: ([\w.:-]+)(?:@[\w.-]+)?: <([A-Z0-9_,-]*)>(.*)$")
_INET = pattern(r"\s+(inet6?) ([0-9a-fA-F.:]+)(?:/(\d{1,3}))?")
_LINK = pattern(r"\s+link/(\w+)")
_LIMIT = pattern(r"([a-z][a-z -]*[a-z-])\s+\((?:([a-z0-9-]+), )?-(\w)\)\s+(\S+)")
_LIMITS = {
    "n": ("open_files", 1),
    "l": ("locked_memory", 1024),
    "u": ("processes", 1),
    "s": ("stack", 1024),
    "v": ("address_space", 1024),
}
"""The letters of bash's `ulimit -a` with the field and the unit in bytes."""
_VARIABLE = pattern(r"(?:export |declare -x )?([A-Za-z_]\w*)=(.*)$")
_PAIR = pattern(r"([A-Z][^:]{2,60}): (.*)$")
_GPU = pattern(r"GPU (\d{1,3}): (.{1,80}?)\s*$")
_PACKAGE = pattern(r"\[(?:pip3?|conda)\] (nvidia-nccl-cu\d+|torch)(?:==|\s+)(\S+)")
_KINDS = (
    ("docker", "docker"),
    ("br-", "bridge"),
    ("virbr", "bridge"),
    ("cni", "bridge"),
    ("veth", "veth"),
    ("cali", "veth"),
    ("tun", "tunnel"),
    ("tap", "tunnel"),
    ("flannel", "tunnel"),
    ("vxlan", "tunnel"),
    ("bond", "bond"),
    ("wl", "wireless"),
    ("ib", "infiniband"),
)


def read_ip_addr(lines: Sequence[Line]) -> Record:
    """The record of `ip addr` or `ip link`."""
    record, fields = Record("ip addr"), None
    for number, line in lines:
        begins, address, link = _INTERFACE.match(line), _INET.match(line), _LINK.match(line)
        if begins is not None:
            fields = record.interfaces.setdefault(begins[1], {})
            flags = begins[2].split(",")
            fields.setdefault("name", Said(begins[1], number))
            fields["is_up"] = Said("UP" in flags, number)
            fields["is_running"] = Said("LOWER_UP" in flags, number)
            fields["kind"] = Said(_kind(begins[1], "LOOPBACK" in flags), number)
            mtu = re.search(r"\bmtu (\d{1,6})", begins[3])
            if mtu is not None:
                fields["mtu"] = Said(int(mtu[1]), number)
        elif fields is not None and address is not None:
            family = "ipv6" if address[1] == "inet6" else "ipv4"
            before = fields.get("addresses", Said([], number))
            own = {
                "ip": address[2],
                "prefix_length": int(address[3] or (128 if family == "ipv6" else 32)),
                "family": family,
            }
            fields["addresses"] = Said([*before.value, own], before.line)
        elif fields is not None and link is not None and link[1] == "infiniband":
            fields["kind"] = Said("infiniband", number)
    record.about = f"{len(record.interfaces)} interface{'' if len(record.interfaces) == 1 else 's'}"
    return record


def _kind(name: str, is_loopback: bool) -> str:
    if is_loopback:
        return "loopback"
    return next((kind for prefix, kind in _KINDS if name.startswith(prefix)), "vlan" if "." in name else "physical")


def read_limits(lines: Sequence[Line]) -> Record:
    """The record of `ulimit -a`, which shows the soft limits only."""
    record = Record("ulimit -a")
    for number, line in lines:
        found = _LIMIT.match(line.strip())
        if found is None or found[3] not in _LIMITS:
            continue
        field, unit = _LIMITS[found[3]]
        value = UNLIMITED if found[4] == "unlimited" else integer(found[4])
        if value is not None:
            soft = value if value == UNLIMITED else value * unit
            record.say(f"host.limits.{field}", {"soft": soft, "hard": soft}, number)
    record.about = f"{len(record.values)} limit{'' if len(record.values) == 1 else 's'}"
    return record


def read_environment(lines: Sequence[Line]) -> Record:
    """The record of `env`, `export -p` or `declare -x`."""
    record = Record("env")
    for number, line in lines:
        found = _VARIABLE.match(line)
        if found is not None:
            value = found[2]
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
            record.variables[found[1]] = Said(value[1:-1] if is_quoted else value, number)
    record.host = next(
        (record.variables[n].value for n in ("SLURMD_NODENAME", "HOSTNAME") if n in record.variables), None
    )
    record.about = f"{len(record.variables)} variable{'' if len(record.variables) == 1 else 's'}"
    return record


def read_collect_env(lines: Sequence[Line]) -> Record:
    """The record of torch's collect_env."""
    record = Record("collect_env")
    for number, line in lines:
        gpu, pair, package = _GPU.match(line), _PAIR.match(line), _PACKAGE.match(line)
        if gpu is not None:
            record.cards.append(Card(number, index=int(gpu[1]), device={"name": Said(gpu[2], number)}))
        elif package is not None:
            record.say("versions.nccl_required" if "nccl" in package[1] else "versions.torch", package[2], number)
        elif pair is not None:
            _collected(record, pair[1].lower(), pair[2].strip(), number)
    record.about = f"versions and {len(record.cards)} GPU{'' if len(record.cards) == 1 else 's'}"
    return record


def _collected(record: Record, name: str, text: str, number: int) -> None:
    if text in ("N/A", "Could not collect", "None", ""):
        return
    if name == "pytorch version":
        record.say("versions.torch", text, number)
    elif name == "cuda used to build pytorch":
        record.say("versions.torch_cuda", text, number)
    elif name == "rocm used to build pytorch":
        record.say("versions.torch_hip", text, number)
    elif name == "python version":
        record.say("versions.python", text.split()[0], number)
    elif name == "nvidia driver version":
        record.say("gpu.driver_version", text, number)
        record.say("gpu.driver_cuda", cuda_of_driver(text), number)
    elif name.startswith("gpu models and configuration"):
        gpu = _GPU.match(text)
        if gpu is not None:
            record.cards.append(Card(number, index=int(gpu[1]), device={"name": Said(gpu[2], number)}))
    elif name == "cpu(s)":
        record.say("host.cpus_online", count(text), number)
