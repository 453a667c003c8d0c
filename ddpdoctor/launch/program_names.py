"""Programs of launch lines by their names."""

from __future__ import annotations

import re

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.launch.words import Word

__all__ = ["MODULES", "MPI", "NAMES", "PYTHON", "SHELLS", "is_program"]

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
}


def is_program(word: Word) -> bool:
    """The word names a launcher, a shell, Python or another program that begins a launch."""
    name = word.text.rpartition("/")[2]
    return bool(
        name in NAMES
        or name in ("accelerate", "srun", "sbatch", *SHELLS)
        or PYTHON.fullmatch(name)
        or MPI.fullmatch(name)
    )
