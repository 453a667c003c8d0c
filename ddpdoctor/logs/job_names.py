"""What the path of an input says of its job: ids of schedulers, pods, trees of torchrun, and words that name a job."""

from __future__ import annotations

import functools
import re

from ddpdoctor.late_pattern import pattern
from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.logs.line_prefix import who_of_name

__all__ = ["PathEvidence", "path_evidence"]

_SLURM = pattern(r"(?:^|/)slurm-(?P<id>\d+)(?:_(?P<task>\d+))?(?=[.\-_/]|$)")
_BATCH = pattern(r"(?:^|/)(?P<stem>[^/]+)\.[oe](?P<id>\d{2,})(?:[.-](?P<task>\d+))?$")
_LSF = pattern(r"(?:^|/)(?:lsf|LSF|pbs|condor|flux)[-_.]?(?P<id>\d{3,})(?=[.\-_/]|$)")
_POD = pattern(
    r"(?:^|/|_)(?P<job>[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?)-(?:master|worker|workers|chief|launcher|ps|trainer|replica|driver)-\d+"
    r"(?:-\d+)?(?:-[a-z0-9]{5})?(?=[._/]|$)"
)
_TREE = pattern(r"(?P<tree>(?:^|.*/)(?P<folder>[^/]+))/attempt_\d+/\d+/[^/]+$")
_RANDOM_CHARS = 8
"""What tempfile adds behind the run id and `_`."""
_NAMELESS_RUN = "none"
_SUFFIX = pattern(
    r"(?:\.(?:log|txt|out|err|stdout|stderr|gz|xz|bz2|zst|json|jsonl|log\.\d+|\d{1,2})|[-_.](?:std)?(?:out|err)){1,8}$",
    re.I,
)
_ROTATED = pattern(r"(\.(?:log|txt|out|err))[.-][\d-]+(?=$|\.(?:gz|xz|bz2|zst)$)", re.I)
_PART = pattern(
    r"(?<![a-z])(?:std|out|err|errors?|output|stdout|stderr|log|logs|main|master|worker|node|nodes|head|rank|local|global|host"
    r"|pod|gpu|launcher|chief|ps|scheduler|driver|debug|nccl|trace|agent|events?|describe|kernel|dmesg|journal|syslog|monitor"
    r"|console|process|proc|part|replica|task|server|client|machine)(?![a-z])",
    re.I,
)
"""Words for a part of a job: names that differ in them alone are of one job."""
_NUMBERS = pattern(r"\d+")
_ID = pattern(r"(?<![\d.])(?P<id>\d{4,12})(?![\d.]*\d)")
_LONG_NUMBER = pattern(r"\d{4}|\d\d[-_.:]\d\d")
_DATE = pattern(r"(?:19|20)\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?:[-_.T]?\d\d[-_.:h]?\d\d(?:[-_.:m]?\d\d)?)?")


@dataclass(frozen=True, slots=True)
class PathEvidence:
    """What a path says. `ids` are (kind of id, id) that no two jobs share; `tree` is the folder of one torchrun's logs.

    `stem` names what is left of the file's name without suffixes; `words` and `folder_words` are those of the name and its
    folders that may name a job, without numbers and without words for its parts; `numbers` and `folder_numbers` are numbers of
    four and more digits, dates excepted.
    """

    folder: str
    stem: str
    words: str
    folder_words: str
    ids: tuple[tuple[str, str], ...] = ()
    label: str | None = None
    tree: str | None = None
    numbers: tuple[str, ...] = ()
    folder_numbers: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    """The folders that not all inputs share, from the top."""
    is_of_part: bool = False
    """The name itself says of which rank, host or node it is."""


@functools.lru_cache(1 << 12)
def path_evidence(name: str, above: int) -> PathEvidence:
    """What the path says behind its first `above` characters, which all inputs share."""
    path = name.replace("\\", "/")
    own = path[above:] or path
    folder, _, file = path.rpartition("/")
    stem = _SUFFIX.sub("", _ROTATED.sub(r"\1", file)) or file
    ids, label = _ids(own)
    tree = _TREE.match(path)
    if tree is not None:
        run = _run_of(tree["folder"])
        ids, label = ((*ids, ("run", run)) if run != _NAMELESS_RUN else ids), label or tree["folder"]
    is_of_part = _is_of_part(file)
    return PathEvidence(
        folder=folder,
        stem=stem,
        words=_words(stem),
        folder_words=_label(own.rpartition("/")[0]) if tree is None else "",
        ids=ids,
        label=label,
        tree=tree["tree"] if tree is not None else None,
        numbers=_numbers(file) if tree is None and not is_of_part else (),
        folder_numbers=_numbers((tree["tree"] if tree is not None else path)[above:].rpartition("/")[0]),
        folders=tuple(own.rpartition("/")[0].split("/")),
        is_of_part=is_of_part,
    )


def _ids(path: str) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """The ids in a path, and the name that they give the job."""
    slurm = _SLURM.search(path)
    if slurm is not None and slurm["task"] is not None:
        number = f"{slurm['id']}_{slurm['task']}"
        return (("array", number),), f"slurm-{number}"
    if slurm is not None:
        return (("slurm", slurm["id"]),), f"slurm-{slurm['id']}"
    batch = _BATCH.search(path)
    if batch is not None:
        number = batch["id"] + (f".{batch['task']}" if batch["task"] else "")
        return (("batch", number),), f"{batch['stem']}-{number}"
    lsf = _LSF.search(path)
    if lsf is not None:
        return (("batch", lsf["id"]),), lsf[0].lstrip("/")
    pods = list(_POD.finditer(path))
    return ((("pod", pods[-1]["job"]),), pods[-1]["job"]) if pods else ((), None)


def _run_of(folder: str) -> str:
    """The run id in the name of a folder that torchrun made: `sweep1_ab12cd34`."""
    if folder[-_RANDOM_CHARS - 1 : -_RANDOM_CHARS] == "_":
        return folder[: -_RANDOM_CHARS - 1]
    return folder.rpartition("_")[0] or folder


def _is_of_part(name: str) -> bool:
    """Whether a name says of which rank, node or host it is."""
    who, _ = who_of_name(name)
    return (who.rank, who.node_rank, who.host) != (None, None, None)


def _label(folders: str) -> str:
    """What folders say of a job: words, dates, times and long numbers, without those of ranks and hosts."""
    own = [each for each in folders.split("/") if each and not _is_of_part(each)]
    return "/".join(_words(each) or each for each in own if _words(each) or _LONG_NUMBER.search(each))


def _words(text: str) -> str:
    """What is left of a name without numbers, punctuation and words for parts of a job."""
    return "".join(re.findall(r"[a-z]+", _PART.sub(" ", _NUMBERS.sub(" ", text.replace("_", " ")).lower())))


def _numbers(path: str) -> tuple[str, ...]:
    return tuple(found["id"] for found in _ID.finditer(_DATE.sub("-", path)))
