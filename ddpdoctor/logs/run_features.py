"""What distinguishes one run from another: settings, versions, transports, hosts, and the kinds of lines that it printed."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.line_prefix import split_prefix, without_control_codes

__all__ = ["FeatureKind", "KnownValue", "LineKind", "RunFeatures"]

MOST_LINE_KINDS = 20_000
MOST_VALUES = 5_000
LONGEST_LINE = 600


class FeatureKind(str, Enum):
    """The kinds of differences between runs, in the order in which they are shown."""

    SETTING = "setting"
    VERSION = "version"
    TRANSPORT = "transport"
    HOST = "host"
    LINE = "line"


_ENVIRONMENT = pattern(r"(?<![\w.$-])(?P<name>[A-Z][A-Z0-9]*_[A-Z0-9_]{2,60})=(?P<value>[^\s,;'\")\]}]{1,200})")
_OF_NCCL = pattern(
    r"\b(?P<name>NCCL_[A-Z0-9_]{2,60}) set (?:by environment )?to (?P<value>[^\s.]\S{0,200}?)\.?(?:\s|$)"
)
_OPTION = pattern(r"(?<!\S)(?P<name>--[a-zA-Z][\w-]{1,60})[= ](?P<value>[^\s-]\S{0,200})")
_DOTTED = pattern(r"^\s{0,8}(?P<name>[a-z_][\w.]{2,60}) \.{3,} (?P<value>\S(?:.{0,99}\S)?)\s*$")
_LAUNCH = pattern(r"\b(?:torchrun|deepspeed|accelerate|srun|mpirun|python[\d.]*)\b")
_VERSION = pattern(
    r"\b(?P<name>NCCL|RCCL|CUDA|cuDNN|torch|PyTorch|Python|transformers|accelerate|deepspeed|DeepSpeed|lightning|[Dd]river|flash[-_]attn"
    r"|vllm|triton|apex|megatron[\w-]{0,20})(?: [Vv]ersion|_version| info: version)?[ :=]{1,3}v?(?P<value>\d+\.\d[\w.+-]*)"
)
_DRIVER = pattern(r"\bcudaDriverVersion (?P<value>\d{4,6})\b")
_TRANSPORT = pattern(r"\bvia (?P<value>(?:NET|P2P|SHM|NVLS|COLLNET|C2C)/[A-Za-z]+|direct shared memory)")
_NETWORK = pattern(r"\bUsing network (?P<value>\S+)|NET/(?P<plugin>IB|Socket|OFI) : (?:Using|Initializing)")
_VOLATILE = pattern(
    r"RANK|PID|JOB_?ID|STEP_?ID|PROCID|LOCALID|NODEID|TASK|TIME|DATE|NODELIST|NODENAME|HOSTNAME|RDZV_ID|RUN_ID|UUID|_DIR$|_PATH$|LOG"
    r"|TMP|PWD|HOME|--(?:run|rdzv|job)[-_]id|output|log|seed$"
)
"""Names of values that differ between any two runs."""
_MASKED = pattern(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|\d+")


@dataclass(slots=True)
class KnownValue:
    """One value of a setting, with the place where it was first read and the hosts that have it."""

    text: str
    source: str
    number: int
    hosts: set[str] = field(default_factory=set)


@dataclass(slots=True)
class LineKind:
    """Lines that differ only in numbers: the first of them, how many there were, and the hosts and ranks that printed them."""

    text: str
    source: str
    number: int
    count: int = 0
    hosts: set[str] = field(default_factory=set)
    ranks: set[int] = field(default_factory=set)


class RunFeatures:
    """The features of one run, gathered line by line with bounded memory."""

    def __init__(self) -> None:
        self.values: dict[tuple[FeatureKind, str], dict[str, KnownValue]] = {}
        self.lines: dict[str, LineKind] = {}
        self.hosts: dict[str, tuple[str, int]] = {}
        """Each host, with the place where it is first named."""
        self.ranks: set[int] = set()
        self.lengths: dict[str, int] = {}
        """The number of lines of each source."""

    def take(self, source: str, number: int, raw: str) -> None:
        """One line of a source, as it was read."""
        own = split_prefix(without_control_codes(raw[:LONGEST_LINE]))
        host, rank, text = own.who.host, own.who.rank, own.text
        self.lengths[source] = max(number, self.lengths.get(source, 0))
        if host is not None:
            self.hosts.setdefault(host, (source, number))
        if rank is not None:
            self.ranks.add(rank)
        self._take_values(text, source, number, host)
        masked = _MASKED.sub("#", text.strip())
        if not masked or text[:1] in (" ", "\t"):
            return
        known = self.lines.get(masked)
        if known is None:
            if len(self.lines) >= MOST_LINE_KINDS:
                return
            known = self.lines[masked] = LineKind(text.strip(), source, number)
        known.count += 1
        if host is not None:
            known.hosts.add(host)
        if rank is not None:
            known.ranks.add(rank)

    def _take_values(self, text: str, source: str, number: int, host: str | None) -> None:
        for expression in (_ENVIRONMENT, _OF_NCCL, _DOTTED):
            for found in expression.finditer(text):
                self._value(FeatureKind.SETTING, found["name"], found["value"], source, number, host)
        if "--" in text and _LAUNCH.search(text):
            for found in _OPTION.finditer(text):
                self._value(FeatureKind.SETTING, found["name"], found["value"], source, number, host)
        for found in _VERSION.finditer(text):
            self._value(FeatureKind.VERSION, found["name"].lower(), found["value"], source, number, host)
        for found in _DRIVER.finditer(text):
            self._value(FeatureKind.VERSION, "cudaDriverVersion", found["value"], source, number, host)
        for found in _TRANSPORT.finditer(text):
            self._value(FeatureKind.TRANSPORT, "channels", found["value"], source, number, host)
        for found in _NETWORK.finditer(text):
            self._value(FeatureKind.TRANSPORT, "network", found["value"] or found["plugin"], source, number, host)

    def _value(self, kind: FeatureKind, name: str, value: str, source: str, number: int, host: str | None) -> None:
        if kind is FeatureKind.SETTING and _VOLATILE.search(name):
            return
        known = self.values.setdefault((kind, name), {})
        if value not in known and sum(map(len, self.values.values())) < MOST_VALUES:
            known[value] = KnownValue(value, source, number)
        if value in known and host is not None:
            known[value].hosts.add(host)
