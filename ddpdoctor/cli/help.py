"""The overview that `ddpdoctor --help` prints: commands by when they are used, and examples of each command."""

from __future__ import annotations

__all__ = ["EXAMPLES", "GROUPS", "TAKE_A_LAUNCH", "overview"]

TAKE_A_LAUNCH = {"check": "[-- LAUNCH…]", "lint": "[-- LAUNCH…]", "rehearse": "-- LAUNCH…", "run": "-- LAUNCH…"}
"""The commands that take a launch command after `--`, and how their usage shows it."""

GROUPS: dict[str, dict[str, str]] = {
    "Before the job": {
        "check": "Check this machine, or a launch command and all its nodes.",
        "lint": "Check launch commands, scripts and job files; start nothing.",
        "probe": "Start small ranks and test whether they can communicate.",
        "rehearse": "Run the script of a launch command on CPU for a few steps.",
    },
    "During the job": {
        "run": "Check, run the job, and say why it failed.",
        "hang": "Find the rank that a stuck job waits for.",
    },
    "After the job": {
        "triage": "Find the first cause in logs, dumps and error files.",
        "collect": "Save the facts of this node for a bug report, without secrets.",
        "compare": "Show what differs between collected nodes.",
    },
    "Look at one thing": {
        "env": "Variables of launchers, torch, NCCL, Gloo, CUDA and OpenMP.",
        "ports": "The master port: free or in use, by which process.",
        "gpus": "The GPUs that NVML sees, and those that CUDA would see.",
        "topo": "The NVLink and PCIe matrix, as `nvidia-smi topo -m`.",
        "net": "Interfaces, names, addresses; what NCCL and Gloo would use.",
        "host": "Limits, memory, /dev/shm, cgroup, container, NUMA, clock.",
        "versions": "torch, CUDA, NCCL, driver and Python, without importing torch.",
    },
    "Reference": {
        "explain": "The manual page of a rule, or a search: explain nccl.",
        "rules": "List all rules.",
        "help": "The help of one command: help check.",
    },
}
"""The commands by when they are used, with one clause each."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "": (
        "ddpdoctor check -- torchrun --nproc-per-node 8 train.py",
        "ddpdoctor run -- torchrun --nproc-per-node 8 train.py",
        "ddpdoctor triage slurm-4712.out",
    ),
    "check": (
        "ddpdoctor check",
        "ddpdoctor check -- torchrun --nproc-per-node 8 train.py",
        "srun --ntasks-per-node 8 ddpdoctor check",
    ),
    "lint": (
        "ddpdoctor lint train.py job.sbatch",
        "ddpdoctor lint -- torchrun --nproc-per-node 8 train.py",
        "helm template . | ddpdoctor lint -",
    ),
    "probe": (
        "ddpdoctor probe --nproc-per-node 8",
        "ddpdoctor probe --nnodes 2 --node-rank 0 --master-addr node0",
        "torchrun --nproc-per-node 8 -m ddpdoctor.probe",
    ),
    "rehearse": (
        "ddpdoctor rehearse -- torchrun --nproc-per-node 4 train.py",
        "ddpdoctor rehearse --epoch-steps 2 -- python train.py",
        "ddpdoctor rehearse --ranks 4 -- torchrun --nproc-per-node 8 train.py",
    ),
    "run": (
        "ddpdoctor run -- torchrun --nproc-per-node 8 train.py",
        "ddpdoctor run --watch -- torchrun --nproc-per-node 8 train.py",
        "ddpdoctor run --no-check -- torchrun --nproc-per-node 8 train.py",
    ),
    "hang": ("ddpdoctor hang", "ddpdoctor hang 4711", "ddpdoctor hang --watch 10"),
    "triage": (
        "ddpdoctor triage slurm-4712.out",
        "ddpdoctor triage logs/ --job slurm-4712",
        "kubectl logs POD | ddpdoctor triage -",
    ),
    "collect": (
        "ddpdoctor collect -o gpu-07.json",
        "srun --ntasks-per-node 1 sh -c 'ddpdoctor collect -o $(hostname).json'",
        "ddpdoctor collect --hosts-as-aliases -o gpu-07.json",
    ),
    "compare": ("ddpdoctor compare gpu-07.json gpu-08.json", "ddpdoctor compare --format markdown *.json"),
    "env": ("ddpdoctor env", "srun --ntasks 2 ddpdoctor env", "ddpdoctor env --facts gpu-07.json"),
    "ports": ("ddpdoctor ports", "MASTER_ADDR=gpu-07 MASTER_PORT=29500 ddpdoctor ports"),
    "gpus": ("ddpdoctor gpus", "CUDA_VISIBLE_DEVICES=2,3 ddpdoctor gpus", "ddpdoctor gpus --facts gpu-07.json"),
    "topo": ("ddpdoctor topo", "ddpdoctor topo --facts gpu-07.json"),
    "net": ("ddpdoctor net", "NCCL_SOCKET_IFNAME=eth0 ddpdoctor net", "ddpdoctor net --facts gpu-07.json"),
    "host": ("ddpdoctor host", "srun --nodes 2 --ntasks-per-node 1 ddpdoctor host"),
    "versions": ("ddpdoctor versions", "ddpdoctor versions --facts gpu-07.json"),
    "explain": (
        "ddpdoctor explain LAUNCH001",
        "ddpdoctor explain nccl",
        'ddpdoctor explain "address already in use"',
    ),
    "rules": ("ddpdoctor rules", "ddpdoctor rules --select NET", "ddpdoctor rules --format json"),
}
"""Examples to copy, by command; "" is the overview."""

TITLE = "What is wrong with a PyTorch distributed job, where, and what to type instead."

OPTIONS = {
    "-h, --help": "Show this help, or that of a command.",
    "-V, --version": "Show the version.",
    "--install-completion": "Complete commands, options and codes in this shell.",
    "--show-completion": "Print the completion script: bash, zsh or fish.",
}

SETTINGS = (
    "Options can be set in pyproject.toml, [tool.ddpdoctor], and for all users in",
    "/etc/ddpdoctor.toml. Exit codes: 0 fine, 1 findings, 2 wrong use, 3 incomplete,",
    "130 interrupted; `run` ends with the exit code of the job.",
)


def overview() -> str:
    """The help of the whole program, at most 80 columns wide."""
    parts = [
        TITLE,
        "Usage: ddpdoctor COMMAND [OPTIONS]",
        *(_listed(name, commands) for name, commands in GROUPS.items()),
        _listed("Options", OPTIONS),
        "Examples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[""]),
        "\n".join(SETTINGS),
    ]
    return "\n\n".join(parts) + "\n"


def _listed(heading: str, rows: dict[str, str]) -> str:
    width = max(10, *map(len, rows)) + 2
    return "\n".join([f"{heading}:", *(f"  {name:<{width}}{clause}" for name, clause in rows.items())])
