"""Settings of a shell or batch file that the programs in it refuse: options, `#SBATCH` lines, and names that nobody sets."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping

from ddpdoctor.facts.launch.words import UNKNOWN, Mark
from ddpdoctor.facts.refused import Refused, RefusedKind
from ddpdoctor.launch.command_options import OptionFault, faults_of_batch_row, faults_of_command
from ddpdoctor.launch.evaluator.imagined_run import ImaginedRun
from ddpdoctor.launch.evaluator.values import Origin
from ddpdoctor.launch.sbatch import batch_rows

__all__ = ["refused_in_shell"]

MOST_COMMANDS = 2_000
_PLACEHOLDER = re.compile(r"#\w+#|@\w+@|%%|[<{\[]\w|\{\{|\.\.\.")


def refused_in_shell(text: str, file: str, run: ImaginedRun, environ: Mapping[str, str]) -> tuple[Refused, ...]:
    """What is refused in a shell file.

    Args:
        environ: the variables that are set before it starts.
    """
    mark = _marks(text)
    found = [*_batch_rows(text, mark), *_commands(file, run, mark)]
    if not any(_sets_names([value.text for value in each.words]) for each in run.invoked):
        found += misspelt_names(text, mark, environ)
        found += _unread_names(text, mark, environ)
    found += _chained_jobs(text, mark)
    return tuple(found)


_ENVIRONMENTS = re.compile(
    r"(?:^|/)(?:activate|conda|mamba|conda\.sh|mamba\.sh|modules\.sh|bash|lmod|bash\.sh|init\.sh)$"
)


def _sets_names(words: list[str]) -> bool:
    """Whether a command executes another file that may set the variables of the job."""
    is_source = len(words) > 1 and words[0] in ("source", ".")
    return is_source and _ENVIRONMENTS.search(words[1].split()[0] if words[1].split() else "") is None


def _batch_rows(text: str, mark: Callable[[int], Mark]) -> Iterator[Refused]:
    for start, row in batch_rows(text):
        if _PLACEHOLDER.search(row):
            continue
        words = row.split()
        for fault in faults_of_batch_row(words) if words else ():
            yield _refused("sbatch", fault, mark(start))


def _commands(file: str, run: ImaginedRun, mark: Callable[[int], Mark]) -> Iterator[Refused]:
    for command in run.invoked[:MOST_COMMANDS]:
        words = [value.text for value in command.words]
        if not words or UNKNOWN in words[0]:
            continue
        for fault in faults_of_command(words):
            origins = command.words[min(fault.index, len(words) - 1)].origins
            at: Origin = origins[0] if origins and origins[0].file == file else command.origin
            yield _refused(words[0].rpartition("/")[2], fault, mark(at.start))


def _refused(owner: str, fault: OptionFault, at: Mark) -> Refused:
    kind = RefusedKind.UNKNOWN if fault.is_unknown else RefusedKind.VALUE
    name = fault.seen.partition("=")[0]
    return Refused(kind, owner, name, fault.expected, at, fault.seen, says=fault.says)


def _marks(text: str) -> Callable[[int], Mark]:
    def mark(at: int) -> Mark:
        row = text.count("\n", 0, at)
        return Mark(row + 1, at - (text.rfind("\n", 0, at) + 1) + 1)

    return mark


_USED = re.compile(r"(?<![\\$])\$(?:\{(?:#|!)?([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*)(?::?[-=?+])")
_SET = re.compile(
    r"(?:^|[\s;&|(`])(?:export\s+|declare\s+(?:-\w+\s+)*|local\s+|readonly\s+|typeset\s+(?:-\w+\s+)*|env\s+)?([A-Za-z_]\w*)\+?=",
    re.MULTILINE,
)
_NAMED = re.compile(
    r"\b(?:for|select)\s+([A-Za-z_]\w*)\b|\b(?:read|mapfile|readarray|getopts\s+\S+)((?:[ \t]+(?:-\w+|\w+))+)"
)
_EXPORTED = re.compile(r"(?m)^[ \t]*export[ \t]+([A-Za-z_]\w*)=")
_STANDARD = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "NODE_RANK",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
)
_OF_OTHERS = re.compile(
    r"(?:SLURM|SBATCH|SRUN|PMI|PMIX|OMPI|PBS|LSB|LSF|SGE|CONDA|NCCL|TORCH|CUDA|PET|SKYPILOT|KUBERNETES|FLUX|JSM|VC|RAY|HF|SM|"
    r"BASH|COBALT|PALS|MV2|MPI|I_MPI|UCX|FI|XDG|SSH|LC|PIP|WANDB)_\w+|[a-z]\w?"
)
_LAUNCH = re.compile(
    r"\b(?:torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|torch\.distributed|ssh|python3?|docker|singularity|apptainer)\b"
)
LEAST = 4
"""Letters of a name that can be compared."""


def misspelt_names(text: str, mark: Callable[[int], Mark], environ: Mapping[str, str]) -> Iterator[Refused]:
    """Variables that the text reads and nobody sets, beside one that it sets and that is nearly the same; and exported ones
    that no program reads, beside the name that programs read.
    """
    code = re.sub(r"(?m)(^|[ \t])#.*$", lambda m: " " * len(m[0]), text)
    assigned = {name: found.start(1) for found in _SET.finditer(code) if (name := found[1])}
    named = {word for found in _NAMED.finditer(code) for word in (found[1] or found[2] or "").split()}
    uses: dict[str, int] = {}
    for found in _USED.finditer(code):
        uses.setdefault(found[1] or found[2], found.start())
    defaults = {found[1] for found in _DEFAULT.finditer(code)}
    words = set(re.findall(r"[A-Za-z_]\w*", re.sub(_SET, " ", code)))
    for name, at in uses.items():
        if name in assigned or name in named or name in environ or name in defaults or len(name) < LEAST:
            continue
        if _OF_OTHERS.fullmatch(name) or not _is_launched(code, at):
            continue
        others = [other for other in assigned if _is_typo(name, other)]
        unread = [other for other in others if other not in uses and other not in words]
        meant = difflib.get_close_matches(name, unread or others, n=1, cutoff=0.5)
        if meant:
            says = f"${name:.30} is not set here; {meant[0]:.30} is"
            yield Refused(RefusedKind.UNKNOWN, "the file", name, meant[0], mark(at), f"${name}", says=says)
    for found in _EXPORTED.finditer(code):
        name = found[1]
        meant = [other for other in _STANDARD if _is_typo(name, other)]
        if meant and name not in uses and name not in defaults and meant[0] not in assigned and name not in _STANDARD:
            says = f"no program reads {name:.30}; it is {meant[0]}"
            yield Refused(RefusedKind.UNKNOWN, "the environment", name, meant[0], mark(found.start(1)), name, says=says)


def _is_launched(code: str, at: int) -> bool:
    """Whether the statement at an index starts a program, or is an assignment from which one is made."""
    start = code.rfind("\n", 0, at) + 1
    while start > 1 and code[start - 2 : start] == "\\\n":
        start = code.rfind("\n", 0, start - 1) + 1
    return (
        _LAUNCH.search(code[start : at + 1]) is not None
        or re.search(r"(?<![\w-])--\w[\w-]{0,80}[= ][\"']?$", code[start:at]) is not None
    )


def _is_typo(name: str, other: str) -> bool:
    """One letter lost, doubled, changed or swapped; names that differ in a number or a plural are two names."""
    if name == other or name.lower() == other.lower() or re.sub(r"\d", "", name) == re.sub(r"\d", "", other):
        return False
    if len(name) < LEAST + 1 or abs(len(name) - len(other)) > 1 or name.rstrip("sS") == other.rstrip("sS"):
        return False
    if len(name) == len(other):
        different = [at for at in range(len(name)) if name[at] != other[at]]
        if len(different) == 1:
            return (
                len(name) > LEAST + 2
                and different[0] > 0
                and name[different[0]].isalpha()
                and other[different[0]].isalpha()
            )
        is_pair = len(different) == 2 and different[1] == different[0] + 1
        return is_pair and name[different[0]] == other[different[1]] and name[different[1]] == other[different[0]]
    short, long = sorted((name, other), key=len)
    return len(short) > LEAST + 1 and any(long[:at] + long[at + 1 :] == short for at in range(1, len(long)))


_READ_BY_PROGRAMS = re.compile(
    r"(?:NCCL|GLOO|TORCH|TORCHELASTIC|CUDA|OMP|MKL|PET|HF|UCX|FI|OMPI_MCA)_\w+|MASTER_ADDR|MASTER_PORT|WORLD_SIZE|RANK|LOCAL_RANK"
)
_ALONE = re.compile(r"(?m)^[ \t]*([A-Z]\w+)=(?:[^\s;&|#\"'`$()]*|\"[^\"]*\"|'[^']*')[ \t]*(?:#.*)?$")


def _unread_names(text: str, mark: Callable[[int], Mark], environ: Mapping[str, str]) -> Iterator[Refused]:
    """Variables that programs read, set on a line of their own, without export and without another use in the file."""
    code = re.sub(r"(?m)(^|[ \t])#.*$", lambda m: " " * len(m[0]), text)
    if re.search(r"\bset\s+-\w*a|\ballexport\b|^\s*\w*<<", code, re.MULTILINE) or _LAUNCH.search(code) is None:
        return
    for found in _ALONE.finditer(code):
        name, before = found[1], code[: found.start()].rstrip(" \t\n")
        is_continued = code[: found.start()].endswith("\\\n")
        uses = re.findall(rf"\b{name}\b", code)
        if not _READ_BY_PROGRAMS.fullmatch(name) or name in environ or len(uses) != 1 or is_continued:
            continue
        if before.endswith(("<<EOF", "\\")) or "<<" in code[: found.start()] or not _LAUNCH.search(code, found.end()):
            continue
        says = f"{name:.40} is not exported: no program gets it"
        yield Refused(RefusedKind.UNREAD, "the shell", name, f"export {name}", mark(found.start(1)), name, says=says)


_SUBMITTED = re.compile(
    r"(?m)^[ \t]*(?:export[ \t]+)?(\w+)=[\"']?(?:\$\(|`)[ \t]*(sbatch\b[^)`|\n]*)(?:\)|`)[\"']?[ \t]*$"
)


def _chained_jobs(text: str, mark: Callable[[int], Mark]) -> Iterator[Refused]:
    """What sbatch prints is a sentence; as an id it serves only with `--parsable`, or with the number cut out."""
    for found in _SUBMITTED.finditer(text):
        name, command = found[1], found[2]
        used = re.search(rf"after(?:ok|any|notok|corr)?:\$\{{?{name}\b(?!\S*##)", text[found.end() :])
        if "--parsable" not in command and used is not None and not re.search(rf"(?m)^\s*{name}=", text[found.end() :]):
            says = f"${name:.30} is the sentence that sbatch prints, not a job id"
            yield Refused(
                RefusedKind.VALUE,
                "sbatch",
                "--dependency",
                "sbatch --parsable",
                mark(found.start(2)),
                command[:40],
                says=says,
            )
