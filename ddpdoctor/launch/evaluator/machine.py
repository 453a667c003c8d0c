"""The imagined machine under a process: its name, its files as far as they are known, and what its programs print."""

from __future__ import annotations

import datetime
import posixpath
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import field

from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.tools import TOOLS, host_names
from ddpdoctor.launch.evaluator.values import NODE, NOT_KNOWN, RANDOM, TIME, Origin, Value, joined, text_value
from ddpdoctor.launch.lookup import NO_FILES, FileLookup
from ddpdoctor.light_dataclass import dataclass

__all__ = ["ImaginedMachine"]

LONGEST_INPUT = 1 << 20
MOST_FILES = 64
_OF_WORDS = frozenset(("basename", "dirname", "expr", "seq", "printf", "echo", "python", "python3", "bc", "realpath"))
"""Programs whose words are no files that they read."""
QUIET = frozenset(
    (
        *("mkdir", "rm", "cp", "mv", "ln", "touch", "chmod", "chown", "sleep"),
        *("sync", "module", "ml", "conda", "mamba", "micromamba", "spack", "git", "wget"),
        *("curl", "tar", "unzip", "pip", "pip3", "apt", "apt-get", "yum", "dnf"),
        *("rsync", "scp", "scancel", "sbcast", "make", "cmake", "kill", "pkill", "sysctl"),
        *("clear"),
    )
)
"""Programs that prepare something and print nothing that a script uses; they are assumed to succeed."""


@dataclass(frozen=True)
class ImaginedMachine:
    """One machine of an imagined cluster, seen by one process.

    `host` is its name, `address` an address of its own that no other machine has, `gpus` how many GPUs it has (None: unknown).
    `identity` tells processes apart, so that each draws other random numbers. `nodelist` are the hosts of the job.
    """

    host: str
    address: str
    gpus: int | None = None
    cpus: int | None = None
    identity: str = ""
    nodelist: tuple[str, ...] = ()
    is_fixed: bool = False
    """The host is the only one there is: its name differs from no other."""
    files: FileLookup = NO_FILES
    step: Callable[[Sequence[Value]], tuple[Value, int | None] | None] | None = field(default=None, compare=False)
    """What a program prints that `srun` or `ssh` runs on another host; None where that is not known."""
    written: dict[str, str | None] = field(default_factory=dict, compare=False)
    """What the job has written to files; shared by all processes of the job."""
    written_at: dict[str, tuple[Origin, ...]] = field(default_factory=dict, compare=False)
    """Where that is written in the job file, for files that one command writes."""
    dice: random.Random = field(default_factory=random.Random, compare=False)

    def __post_init__(self) -> None:
        self.dice.seed(f"{self.host} {self.identity}")

    @property
    def varies(self) -> frozenset[str]:
        """Of what a value depends that this machine gives."""
        return frozenset() if self.is_fixed else frozenset((NODE,))

    def random(self) -> Value:
        """The next `$RANDOM`."""
        return Value(str(self.dice.randrange(32_768)), varies=frozenset((RANDOM,)))

    def read_file(self, path: str, folder: str | None) -> str | None:
        """The text of a file that is there; None where it cannot be read."""
        full = _full(path, folder)
        if full is not None and full in self.written:
            return self.written[full]
        return None if full is None else self.files.text(full)

    def write_file(self, path: str, folder: str | None, content: Value, *, adds: bool) -> None:
        """Keep what a command writes to a file; None where that is not known."""
        full = _full(path, folder)
        if full is None or len(self.written) >= MOST_FILES or posixpath.basename(full) in (UNKNOWN, ""):
            return
        before = self.written.get(full, "") if adds else ""
        self.written_at[full] = () if before else content.origins
        knows_some = content.is_known or content.text.replace(UNKNOWN, "").strip() != ""
        is_known = knows_some and before is not None and len(content.text) <= LONGEST_INPUT
        self.written[full] = (before or "") + content.text if is_known else None

    def exists(self, path: str, folder: str | None, test: str) -> bool | None:
        """What is on the cluster's machines is not known; what is next to the job file is."""
        full = _full(path, folder)
        if full is None:
            return None
        if test == "-d":
            return True if self.files.is_folder(full) else None
        return True if test in ("-e", "-f", "-r", "-s") and self.files.text(full) is not None else None

    def output(self, argv: Sequence[Value], stdin: Value | None, folder: str | None) -> tuple[Value, int | None] | None:
        """What a program prints and its exit status; None for a program that is not known: it is started."""
        name = argv[0].text.rpartition("/")[2]
        if name in ("srun", "ssh", "mpirun", "mpiexec") and self.step is not None:
            return self.step(argv)
        if name == "cat" and len(argv) == 1 and stdin is not None:
            return stdin, 0  # also where a piece of it is unknown
        own = _OWN.get(name)
        if own is not None:
            return own(self, argv[1:])
        if name in QUIET:
            return Value(), 0
        tool = TOOLS.get(name)
        if tool is None:
            return None
        found = self._of_tool(tool, argv[1:], stdin, folder, reads=name not in _OF_WORDS)
        if found is None and name.startswith("python"):
            return None
        return (text_value(UNKNOWN, *argv[1:], *([] if stdin is None else [stdin])), None) if found is None else found

    def _of_tool(
        self,
        tool: Callable[[Sequence[str], str], tuple[str, int] | None],
        words: Sequence[Value],
        stdin: Value | None,
        folder: str | None,
        *,
        reads: bool,
    ) -> tuple[Value, int] | None:
        texts = [word.text for word in words]
        source = Value() if stdin is None else stdin
        if reads and stdin is None and texts and not texts[-1].startswith("-"):
            content = self.read_file(texts[-1], folder) if words[-1].is_known else None
            if content is not None:
                source, texts = Value(content), texts[:-1]
        if not all(word.is_known for word in words) or len(source.text) > LONGEST_INPUT or not source.is_known:
            return None
        printed = tool(texts, source.text)
        return None if printed is None or printed[0] is None else (text_value(printed[0], source, *words), printed[1])

    def own(self, text: str, *varies: str) -> Value:
        """A value that belongs to this machine."""
        return Value(text + "\n", varies=self.varies | set(varies))


def _full(path: str, folder: str | None) -> str | None:
    if posixpath.isabs(path):
        return path
    return None if folder is None else posixpath.normpath(posixpath.join(folder, path))


Answer = tuple[Value, int | None] | None


def _hostname(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    options = {word.text for word in words}
    if options & {"-i", "-I", "--ip-address", "--all-ip-addresses"}:
        value = machine.own(machine.address)
        return (value.with_text(f"{machine.address} \n") if "-I" in options else value), 0
    if options <= {"-s", "-f", "--short", "--fqdn", "--long", "-A"}:
        return machine.own(machine.host), 0
    return Value(UNKNOWN), None


def _scontrol(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    texts = [word.text for word in words]
    if len(texts) >= 2 and texts[0] == "show" and texts[1] in ("hostname", "hostnames"):
        source = joined(words[2:])
        names = (
            host_names(source.text)
            if source.is_known and source.text
            else list(machine.nodelist)
            if not words[2:]
            else None
        )
        if names is None:
            return text_value(UNKNOWN, source), None
        return text_value("".join(name + "\n" for name in names), source), 0
    return NOT_KNOWN, None


def _nvidia_smi(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    texts = [word.text for word in words]
    if machine.gpus is None:
        return NOT_KNOWN, None
    if texts in (["-L"], ["--list-gpus"]):
        return Value("".join(f"GPU {at}: simulated (UUID: GPU-{at})\n" for at in range(machine.gpus))), 0
    if any(text.startswith(("--query-gpu=name", "--query-gpu=index", "--query-gpu=uuid")) for text in texts):
        rows = "".join(f"{at}\n" for at in range(machine.gpus))
        return Value(rows if any("noheader" in text for text in texts) else f"index\n{rows}"), 0
    return NOT_KNOWN, None


def _shuf(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    texts = " ".join(word.text for word in words)
    bounds = re.search(r"(?:-i|--input-range=?)\s*(\d{1,9})-(\d{1,9})", texts)
    if bounds is None or not re.search(r"-n\s*1\b|--head-count=1\b", texts) or int(bounds[1]) > int(bounds[2]):
        return Value(UNKNOWN, varies=frozenset((RANDOM,))), None
    number = machine.dice.randint(int(bounds[1]), int(bounds[2]))
    return Value(f"{number}\n", varies=frozenset((RANDOM,))), 0


_NOW = datetime.datetime(2027, 1, 15, 8, 0, 0)
"""The time on every imagined machine."""


def _date(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    if len(words) == 1 and words[0].text in ("+%s", "+%N", "+%s%N"):
        return Value(f"{1_800_000_000 + machine.dice.randrange(3)}\n", varies=frozenset((TIME,))), 0
    if len(words) == 1 and re.fullmatch(r"\+(?:[\w.:/ -]|%[-_0^#]?[YmdHMSyjbBaAFTDe])*", words[0].text):
        return Value(_NOW.strftime(words[0].text[1:]) + "\n", varies=frozenset((TIME,))), 0
    return Value(UNKNOWN, varies=frozenset((TIME,))), 0


def _of_chance(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    return Value(f"{machine.dice.getrandbits(64):016x}\n", varies=frozenset((RANDOM,))), 0


def _nproc(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    return (NOT_KNOWN, None) if machine.cpus is None else (Value(f"{machine.cpus}\n"), 0)


def _getent(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    texts = [word.text for word in words]
    if len(texts) == 2 and texts[0] in ("hosts", "ahosts", "ahostsv4") and texts[1] == machine.host:
        return machine.own(f"{machine.address} {machine.host}"), 0
    return text_value(UNKNOWN, *words), None


def _of_node(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    """What a program says of this machine, and nothing here can know."""
    return Value(UNKNOWN, varies=machine.varies), None


def _same_path(machine: ImaginedMachine, words: Sequence[Value]) -> Answer:
    paths = [word for word in words if not word.text.startswith("-")]
    if len(paths) == 1 and posixpath.isabs(paths[0].text) and paths[0].is_known:
        return paths[0].with_text(posixpath.normpath(paths[0].text) + "\n"), 0
    return text_value(UNKNOWN, *paths), 0


_OWN: dict[str, Callable[[ImaginedMachine, Sequence[Value]], Answer]] = {
    "hostname": _hostname,
    "uname": _of_node,
    "scontrol": _scontrol,
    "nvidia-smi": _nvidia_smi,
    "rocm-smi": _of_node,
    "shuf": _shuf,
    "date": _date,
    "uuidgen": _of_chance,
    "mktemp": _of_chance,
    "openssl": _of_chance,
    "nproc": _nproc,
    "getent": _getent,
    "ip": _of_node,
    "ifconfig": _of_node,
    "nslookup": _of_node,
    "dig": _of_node,
    "host": _of_node,
    "ibstat": _of_node,
    "lspci": _of_node,
    "realpath": _same_path,
    "readlink": _same_path,
    "tee": lambda machine, words: (NOT_KNOWN, 0),
}
"""Programs whose output depends on the machine, by name."""
