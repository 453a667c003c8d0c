"""What an option that a launcher does not know was meant to be."""

from __future__ import annotations

import difflib

from ddpdoctor.facts.launch.programs import LauncherKind
from ddpdoctor.facts.torchrun_options import Option

__all__ = ["meant_by"]

SAME = (
    ("nproc_per_node", "num_processes", "num_gpus"),
    ("nnodes", "num_machines", "num_nodes"),
    ("node_rank", "machine_rank", "node_rank"),
    ("master_addr", "main_process_ip", "master_addr"),
    ("master_port", "main_process_port", "master_port"),
    ("module", "module", "module"),
    ("no_python", "no_python", "no_python"),
)
"""The same thing in torchrun, accelerate and deepspeed."""
MEANT = {
    "nproc": 0, "num_proc": 0, "n_proc": 0, "nprocs": 0, "gpus": 0, "ngpus": 0, "n_gpus": 0, "num_gpu": 0, "gpu": 0,
    "nproc_per_gpu": 0, "procs_per_node": 0, "processes_per_node": 0, "gpus_per_node": 0, "devices": 0, "world_size": 0,
    "num_processes": 0, "num_gpus": 0, "nproc_per_node": 0, "ntasks_per_node": 0, "num_procs": 0, "np": 0,
    "nodes": 1, "num_node": 1, "n_nodes": 1, "node": 1, "num_nodes": 1, "num_machines": 1, "nnodes": 1,
    "rank": 2, "machine_rank": 2, "node_rank": 2, "noderank": 2,
    "main_process_ip": 3, "master_address": 3, "master": 3, "master_host": 3, "host": 3, "master_addr": 3, "master_ip": 3,
    "main_process_port": 4, "port": 4, "master_port": 4,
}  # fmt: skip
"""Names that people write, and the row of SAME that they mean."""
SHORT = {"-n": 0, "-N": 1, "-p": 4}
"""Short options of srun, mpirun and ssh, and the row that they mean."""


def meant_by(flag: str, launcher: LauncherKind, options: tuple[Option, ...]) -> str | None:
    """The option of this launcher that a name means: the equivalent of another launcher's, another spelling, or a typo."""
    flags = [f for option in options for f in option.flags if f.startswith("--")]
    name = flag.lstrip("-").replace("-", "_").lower()
    style = "-" if "-" in flag[2:] and "_" not in flag[2:] else "_"
    row = SHORT.get(flag, MEANT.get(name))
    if row is not None:
        column = {LauncherKind.ACCELERATE: 1, LauncherKind.DEEPSPEED: 2}.get(launcher, 0)
        return _styled(SAME[row][column], style, flags)
    for option in options:
        if name == option.dest:
            return _styled(option.dest, style, flags)
    close = difflib.get_close_matches(flag.lower(), flags, n=1, cutoff=0.8)
    return close[0] if close else None


def _styled(dest: str, style: str, flags: list[str]) -> str:
    wanted = "--" + dest.replace("_", style)
    return wanted if wanted in flags else f"--{dest}"
