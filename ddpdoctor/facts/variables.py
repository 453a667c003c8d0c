"""The variables that matter to a distributed job: which names, what each one means, and which values are secrets."""

from __future__ import annotations

import re

from ddpdoctor.facts.setting_names import nearest
from ddpdoctor.facts.settings_table import TABLE
from ddpdoctor.late_pattern import pattern

__all__ = ["NOT_GATHERED", "PET_OPTIONS", "is_read", "is_relevant", "is_secret", "meaning"]

MEANINGS = {
    "RANK": "rank of this process in the job",
    "LOCAL_RANK": "rank of this process on its node; usually the index of its GPU",
    "WORLD_SIZE": "number of ranks of the job",
    "LOCAL_WORLD_SIZE": "number of ranks on this node",
    "GROUP_RANK": "node rank, as torchrun counts nodes",
    "GROUP_WORLD_SIZE": "number of nodes",
    "ROLE_RANK": "rank among the workers of the same role",
    "ROLE_WORLD_SIZE": "number of workers of the same role",
    "ROLE_NAME": "role given to torchrun",
    "NODE_RANK": "node rank; torchrun does not read it",
    "NNODES": "number of nodes; torchrun does not read it",
    "NPROC_PER_NODE": "processes per node; torchrun does not read it",
    "MASTER_ADDR": "host of rank 0, where the store listens",
    "MASTER_PORT": "port of the store on the host of rank 0",
    "LOCAL_SIZE": "number of ranks on this node",
    "CROSS_RANK": "node rank",
    "CROSS_SIZE": "number of nodes",
    "TORCHELASTIC_RUN_ID": "id of the rendezvous that torchrun's agents joined",
    "TORCHELASTIC_USE_AGENT_STORE": "True: the agent already hosts the store, every rank is its client",
    "TORCHELASTIC_RESTART_COUNT": "how often the workers were restarted",
    "TORCHELASTIC_MAX_RESTARTS": "how often the workers may be restarted",
    "TORCHELASTIC_ERROR_FILE": "file that the worker writes its exception to",
    "TORCHELASTIC_SIGNALS_TO_HANDLE": "signals that the agent forwards",
    "GPU_DEVICE_ORDINAL": "GPUs for OpenCL on AMD",
    "ROCR_VISIBLE_DEVICES": "GPUs that ROCm may use",
    "HIP_VISIBLE_DEVICES": "GPUs that HIP may use",
    "OMP_NUM_THREADS": "OpenMP threads per process; torchrun sets 1 when it starts several workers",
    "OMP_PROC_BIND": "whether OpenMP threads are bound to cores",
    "OMP_PLACES": "where OpenMP threads may run",
    "MKL_NUM_THREADS": "MKL threads per process",
    "USE_LIBUV": "0: the older TCPStore server",
    "LOGLEVEL": "log level of torchrun",
    "PYTHON_EXEC": "interpreter that torchrun starts workers with",
    "TMPDIR": "folder for temporary files and sockets",
    "TEMP": "folder for temporary files and sockets where TMPDIR is not set",
    "TMP": "folder for temporary files and sockets where TMPDIR and TEMP are not set",
    "PL_TORCH_DISTRIBUTED_BACKEND": "backend of the process group that Lightning creates",
    "DISTRIBUTED_BACKEND": "backend that scripts pass to init_process_group; torch does not read it",
    "LD_LIBRARY_PATH": "folders searched first for libraries, including NCCL",
    "LD_PRELOAD": "libraries loaded into every process",
    "SLURM_JOB_ID": "id of the allocation",
    "SLURM_STEP_ID": "id of the srun step; absent in a batch script",
    "SLURM_PROCID": "rank of this task; 0 in a batch script",
    "SLURM_LOCALID": "rank of this task on its node",
    "SLURM_NODEID": "node rank within the step",
    "SLURM_NTASKS": "number of tasks",
    "SLURM_STEP_NUM_TASKS": "number of tasks of this step",
    "SLURM_NNODES": "number of nodes",
    "SLURM_STEP_NUM_NODES": "number of nodes of this step",
    "SLURM_JOB_NUM_NODES": "number of nodes of the allocation",
    "SLURM_JOB_NODELIST": "nodes of the allocation; the first one usually becomes MASTER_ADDR",
    "SLURM_STEP_NODELIST": "nodes of this step",
    "SLURM_TASKS_PER_NODE": "tasks per node, as in 2(x2),1",
    "SLURM_STEP_TASKS_PER_NODE": "tasks of this step per node, as in 2(x2),1",
    "SLURM_NTASKS_PER_NODE": "requested tasks per node",
    "SLURM_GPUS_ON_NODE": "GPUs of the job on this node",
    "SLURM_STEP_GPUS": "GPUs of this step, numbered as Slurm does",
    "SLURM_JOB_GPUS": "GPUs of the allocation on this node",
    "SLURM_CPUS_PER_TASK": "CPUs per task",
    "SLURM_CPUS_ON_NODE": "CPUs of the job on this node",
    "SLURM_JOB_CPUS_PER_NODE": "CPUs per node, as in 8(x2)",
    "SLURM_GTIDS": "ranks of the tasks on this node",
    "SLURM_NODELIST": "nodes of the allocation (older name)",
    "SLURM_NPROCS": "number of tasks (older name)",
    "SLURM_JOBID": "id of the allocation (older name)",
    "SLURM_STEPID": "id of the srun step (older name)",
    "SLURM_JOB_NAME": "name of the job",
    "SLURM_JOB_PARTITION": "partition that the job runs in",
    "SLURM_SUBMIT_HOST": "host that the job was submitted from",
    "SLURM_SUBMIT_DIR": "folder that the job was submitted from",
    "SLURM_TASK_PID": "process id of this task",
    "SLURM_MPI_TYPE": "how srun supports MPI: none, pmi2, pmix",
    "SLURM_GPUS_PER_NODE": "requested GPUs per node",
    "SLURM_GPUS_PER_TASK": "requested GPUs per task; each task sees only its own",
    "SLURM_LAUNCH_NODE_IPADDR": "host that ran srun; not always a node of the job",
    "SLURMD_NODENAME": "Slurm's name of this node",
    "OMPI_COMM_WORLD_RANK": "rank of this process",
    "OMPI_COMM_WORLD_SIZE": "number of ranks",
    "OMPI_COMM_WORLD_LOCAL_RANK": "rank of this process on its node",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "number of ranks on this node",
    "OMPI_COMM_WORLD_NODE_RANK": "rank within the node, not the index of the node",
    "OMPI_MCA_orte_num_nodes": "number of nodes",
    "PMI_RANK": "rank of this process",
    "PMI_SIZE": "number of ranks",
    "PMIX_RANK": "rank of this process",
    "MPI_LOCALRANKID": "rank of this process on its node",
    "MPI_LOCALNRANKS": "number of ranks on this node",
    "MV2_COMM_WORLD_RANK": "rank of this process",
    "MV2_COMM_WORLD_SIZE": "number of ranks",
    "MV2_COMM_WORLD_LOCAL_RANK": "rank of this process on its node",
    "MV2_COMM_WORLD_LOCAL_SIZE": "number of ranks on this node",
    "JSM_NAMESPACE_RANK": "rank of this process",
    "JSM_NAMESPACE_SIZE": "number of ranks",
    "JSM_NAMESPACE_LOCAL_RANK": "rank of this process on its node",
    "JSM_NAMESPACE_LOCAL_SIZE": "number of ranks on this node",
    "LSB_JOBID": "id of the LSF job",
    "LSB_DJOB_RANKFILE": "file with the host of every rank",
    "PBS_JOBID": "id of the PBS job",
    "PBS_NODEFILE": "file with the hosts of the job",
    "KUBERNETES_SERVICE_HOST": "set in Kubernetes pods",
    "SM_HOSTS": "hosts of the training job",
    "SM_CURRENT_HOST": "SageMaker's name of this host",
    "SM_NUM_GPUS": "GPUs on this host",
    "ACCELERATE_MIXED_PRECISION": "precision set with accelerate launch",
    "RAY_ADDRESS": "address of the Ray cluster",
    "RAY_JOB_ID": "id of the Ray job",
    "PORT": "port of some service; not the master port",
}
"""Names and meanings. These names are collected, and those of settings_table.py."""

PET_OPTIONS = {
    "PET_NNODES": "--nnodes",
    "PET_NPROC_PER_NODE": "--nproc-per-node",
    "PET_NODE_RANK": "--node-rank",
    "PET_MASTER_ADDR": "--master-addr",
    "PET_MASTER_PORT": "--master-port",
    "PET_LOCAL_ADDR": "--local-addr",
    "PET_RDZV_BACKEND": "--rdzv-backend",
    "PET_RDZV_ENDPOINT": "--rdzv-endpoint",
    "PET_RDZV_ID": "--rdzv-id",
    "PET_RDZV_CONF": "--rdzv-conf",
    "PET_STANDALONE": "--standalone",
    "PET_MAX_RESTARTS": "--max-restarts",
    "PET_ROLE": "--role",
    "PET_START_METHOD": "--start-method",
    "PET_MODULE": "--module",
    "PET_NO_PYTHON": "--no-python",
    "PET_RUN_PATH": "--run-path",
    "PET_VIRTUAL_LOCAL_RANK": "--virtual-local-rank",
    "PET_MONITOR_INTERVAL": "--monitor-interval",
    "PET_EVENT_LOG_HANDLER": "--event-log-handler",
    "PET_LOG_DIR": "--log-dir",
    "PET_REDIRECTS": "--redirects",
    "PET_TEE": "--tee",
    "PET_LOG_LINE_PREFIX_TEMPLATE": "--log-line-prefix-template",
    "PET_LOCAL_RANKS_FILTER": "--local-ranks-filter",
    "PET_DUPLICATE_STDOUT_FILTERS": "--duplicate-stdout-filters",
    "PET_DUPLICATE_STDERR_FILTERS": "--duplicate-stderr-filters",
    "PET_SIGNALS_TO_HANDLE": "--signals-to-handle",
    "PET_SHUTDOWN_TIMEOUT": "--shutdown-timeout",
}
"""The variables that torchrun (2.15) reads as defaults of its options: `PET_` and the option's name (argparse_util.py)."""

FAMILIES = {
    "NCCL_": "a setting of NCCL",
    "TORCHELASTIC_": "a setting of torchrun's agent",
    "TORCH_NCCL_": "a setting of torch's NCCL backend",
    "TORCH_": "a setting of torch",
    "PYTORCH_": "a setting of torch",
    "GLOO_": "a setting of Gloo",
    "CUDA_": "a setting of CUDA",
    "NVIDIA_": "a setting of the container runtime",
    "OMP_": "a setting of OpenMP",
    "KMP_": "a setting of Intel's OpenMP",
    "GOMP_": "a setting of GNU's OpenMP",
    "MKL_": "a setting of MKL",
    "PET_": "a PET_* name that torchrun does not read",
    "SLURM_": "more about the job, from Slurm",
    "SLURMD_": "more about the node, from Slurm",
    "OMPI_COMM_WORLD_": "from Open MPI",
    "OMPI_MCA_": "a setting of Open MPI",
    "PMI_": "from the MPI launcher",
    "PMIX_": "from the MPI launcher",
    "MPI_LOCAL": "from the MPI launcher",
    "I_MPI_": "a setting of Intel MPI",
    "MV2_": "a setting of MVAPICH2",
    "HYDI_": "from the MPI launcher",
    "JSM_": "from jsrun",
    "LSB_": "from LSF",
    "ACCELERATE_": "a setting of accelerate",
    "FSDP_": "a setting of accelerate's FSDP",
    "DEEPSPEED_": "a setting of deepspeed",
    "RAY_TRAIN_": "a setting of Ray Train",
    "UCX_": "a setting of UCX",
    "FI_": "a setting of libfabric",
    "OFI_NCCL_": "a setting of NCCL's libfabric plugin",
}
"""Prefixes of names that are collected, the longer ones first."""

NOT_GATHERED = "<not gathered: no rule reads it>"
"""In place of the value of a variable that belongs to a family but that no rule reads."""
_READ_AS_WELL = frozenset(
    {
        "ACCELERATE_TORCH_DEVICE",
        "LSB_DJOB_HOSTFILE",
        "LSB_HOSTS",
        "LSB_JOBINDEX",
        "LSB_MCPU_HOSTS",
        "OMPI_MCA_orte_default_hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames",
        "OMPI_MCA_orte_set_default_slots",
        "OMPI_MCA_plm_rsh_args",
        "PET_N",
        "PET_N_PROC_PER_NODE",
        "PMIX_NAMESPACE",
        "PMI_FD",
        "SLURM_ARRAY_JOB_ID",
        "SLURM_ARRAY_TASK_ID",
        "SLURM_EXPORT_ENV",
        "SLURM_GPU_BIND",
        "SLURM_JOB_LICENSES",
        "SLURM_KILL_BAD_EXIT",
        "TORCHELASTIC_LOG_DIR",
    }
)
"""Names that rules read besides those of the tables."""
_READ_FAMILIES = (
    "PET_",
    "SLURM_HET_",
    "NCCL_",
    "TORCH",
    "PYTORCH_",
    "GLOO_",
    "CUDA_",
    "OFI_NCCL_",
    "UCX_",
    "FI_",
    "OMP_",
    "MKL_",
    "KMP_",
)
"""Families in which the value of an unknown name is judged, or compared between nodes."""

_NEARLY_NCCL = pattern(r"N[CL]{2,4}_|NCCL", re.IGNORECASE)
_NEVER = frozenset({"OMPI_ARGV", "OMPI_COMMAND", "OMPI_MCA_orte_precondition_transports"})
"""A program's own arguments, which may contain anything, and Open MPI's session key."""

_SECRET_PART = pattern(
    r"TOKEN(?!I[SZ])|SECRET|PASSW|PASSPHRASE|CREDENTIAL|API_?KEY|PRIVATE|LICEN[CS]E(?!S)|BEARER|WEBHOOK", re.IGNORECASE
)
_SECRET_WORD = pattern(
    r"(?:^|_)(KEYS?|AUTH|PASS|PWD|PW|JWT|COOKIE|MUNGE|CREDS?|PAT|PSK|T?OTP|DSN|SAS|\w+PASS|\w+PW|(?:ACCESS|AUTH|USER|SSH|SECRET)KEY)(?:_|$)",
    re.IGNORECASE,
)
_FOLDERS = frozenset({"PWD", "OLDPWD", "SLURM_JOB_LICENSES"})
"""No passwords: the shell's folders, and the licenses that a job of Slurm uses."""


def is_relevant(name: str) -> bool:
    """Whether this variable matters to a distributed job: others are not collected."""
    if name in _NEVER:
        return False
    if name in MEANINGS or name in PET_OPTIONS or name in TABLE or name.startswith(tuple(FAMILIES)):
        return True
    return bool(_NEARLY_NCCL.match(name) or nearest(name))


def is_read(name: str) -> bool:
    """Whether a rule reads the value of this variable; of others of a family only the name is judged."""
    if name in MEANINGS or name in PET_OPTIONS or name in TABLE or name in _READ_AS_WELL:
        return True
    return name.startswith(_READ_FAMILIES) or not name.startswith(tuple(FAMILIES))


def meaning(name: str) -> str:
    """What a variable means, as a short phrase."""
    if name in PET_OPTIONS:
        return f"default of torchrun's {PET_OPTIONS[name]}"
    if name in MEANINGS:
        return MEANINGS[name]
    if name in TABLE and TABLE[name].meaning:
        return TABLE[name].meaning
    return next((text for start, text in FAMILIES.items() if name.startswith(start)), "not read by NCCL or torch")


def is_secret(name: str) -> bool:
    """Whether a variable with this name is likely to hold a password, a token or a key."""
    return name not in _FOLDERS and bool(_SECRET_PART.search(name) or _SECRET_WORD.search(name))
