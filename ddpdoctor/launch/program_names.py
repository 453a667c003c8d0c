"""Programs of launch lines, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ddpdoctor.facts.launch.programs import WRAPPERS, LauncherKind
from ddpdoctor.facts.launch.words import Word

__all__ = ["KNOWN", "MODULES", "MPI", "NAMES", "PYTHON", "SHELLS", "is_program", "meant_program", "nearest"]

PYTHON = re.compile(r"(python|pypy)[\d.]*")
MPI = re.compile(r"(mpirun|mpiexec|orterun|prterun|aprun)(\.\w+)?")
SHELLS = ("bash", "sh", "zsh", "dash", "ksh")
MODULES = {
    "torch.distributed.run": LauncherKind.TORCHRUN,
    "torch.distributed.launch": LauncherKind.LEGACY,
    "accelerate.commands.launch": LauncherKind.ACCELERATE,
    "deepspeed.launcher.runner": LauncherKind.DEEPSPEED,
}
NAMES = {
    "torchrun": LauncherKind.TORCHRUN,
    "torchrun.exe": LauncherKind.TORCHRUN,
    "accelerate-launch": LauncherKind.ACCELERATE,
    "deepspeed": LauncherKind.DEEPSPEED,
    "ds": LauncherKind.DEEPSPEED,
    "jsrun": LauncherKind.JSRUN,
    "ray": LauncherKind.RAY,
    "flux": LauncherKind.FLUX,
}
STARTING = ("torchrun", "accelerate", "deepspeed", "python", "python3", "srun", "sbatch", "salloc", "mpirun", "mpiexec")
KNOWN = frozenset((*NAMES, *STARTING, *SHELLS, *WRAPPERS))
"""Every program that a launch line may begin with."""
_MEANT = ("torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "sbatch", "salloc", "python")
"""The programs whose misspelled names are recognized, without `srun`: many sites have a `prun` or an `lrun`."""
_REAL = (
    *(
        "bpython",
        "cpython",
        "ipython",
        "jpython",
        "jython",
        "mpprun",
        "mpython",
        "pypython",
        "pythonw",
        "rpython",
        "spython",
    ),
    *("torchrun-hpc", "torchtune", "xpython"),
)
"""Programs that exist although their names look like misspelled ones."""


def is_program(word: Word) -> bool:
    """The word is the name of a launcher, a shell, Python or another program that begins a launch."""
    name = word.text.rpartition("/")[2]
    return bool(
        name in NAMES
        or name in ("accelerate", "srun", "sbatch", *SHELLS)
        or PYTHON.fullmatch(name)
        or MPI.fullmatch(name)
    )


def meant_program(name: str) -> str | None:
    """The launcher or interpreter that a name misspells; None for any other name, and for a path."""
    stem = name.rstrip("0123456789.")
    if "/" in name or len(stem) < 5 or stem in _REAL or is_program(Word(name)):
        return None
    meant = next((each for each in _MEANT if 0 < _mistakes(stem, each) <= (1 if len(each) < 9 else 2)), None)
    if meant is None or (name != stem and meant != "python"):
        return None  # a program of the site, such as torchrun2
    return meant + name[len(stem) :]


def nearest(name: str, names: Iterable[str], least: int = 3) -> str | None:
    """The name that differs from this one by one mistake, or by two if it is long; None if this one has fewer than
    `least` letters.
    """
    most = 0 if len(name) < least else 1 if len(name) < 8 else 2
    near = [(count, each) for each in names if each[:1] == name[:1] and 0 < (count := _mistakes(name, each)) <= most]
    return min(near)[1] if near else None


def _mistakes(one: str, other: str) -> int:
    """How many letters are missing, too many, wrong, or swapped with the next one."""
    if abs(len(one) - len(other)) > 2:
        return 3
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        above, row, oldest = row, [i], before
        for j, wanted in enumerate(other, 1):
            best = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                best = min(best, oldest[j - 2] + 1)
            row.append(best)
        before = above
    return row[-1]
