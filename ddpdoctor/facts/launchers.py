"""The launchers as data: how to recognize each one, and which variables hold the rank, world size and node.

The order is from the inside to the outside: a torchrun worker inside an srun task has the variables of both, and only the
inner one started this process. Sources: torch's local_elastic_agent.py, srun(1) "OUTPUT ENVIRONMENT VARIABLES",
Open MPI's and MPICH's mpirun, Kubeflow's training-operator and Trainer, deepspeed's launch.py, Lightning's environments.
"""

from __future__ import annotations

from ddpdoctor.light_dataclass import dataclass

__all__ = ["BY_HAND", "LAUNCHERS", "PSEUDO_STEPS", "SRUN", "TORCHRUN", "LauncherMarks"]

Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LauncherMarks:
    """One launcher. `rank` to `nnodes` are names of variables; the first one that is set counts; () means that it has none.

    `markers` must all be set (`A|B` is either, `RAY_*` any with that prefix) and none of `unless`. `owns` are prefixes
    of names that only this launcher uses; `sets` are names that others use as well. `counts_pods`: its RANK is the index of
    a pod and its WORLD_SIZE the number of pods, which are also ranks only where each pod runs one process.
    """

    name: str
    title: str
    markers: Names
    unless: Names = ()
    rank: Names = ()
    world_size: Names = ()
    local_rank: Names = ()
    local_world_size: Names = ()
    node_rank: Names = ()
    nnodes: Names = ()
    owns: Names = ()
    sets: Names = ()
    counts_pods: bool = False


PLAIN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

PSEUDO_STEPS = ("4294967290", "4294967291", "4294967292", "4294967293", "batch", "extern", "interactive", "pending")
"""Values of SLURM_STEP_ID that are not srun tasks: the interactive shell of salloc, the batch script, the extern step."""

TORCHRUN = LauncherMarks(
    name="torchrun",
    title="torchrun",
    markers=("TORCHELASTIC_RUN_ID",),
    rank=("RANK",),
    world_size=("WORLD_SIZE",),
    local_rank=("LOCAL_RANK",),
    local_world_size=("LOCAL_WORLD_SIZE",),
    node_rank=("GROUP_RANK",),
    nnodes=("GROUP_WORLD_SIZE",),
    owns=("TORCHELASTIC_", "ROLE_", "GROUP_"),
    sets=PLAIN,
)

SRUN = LauncherMarks(
    name="srun",
    title="Slurm (srun)",
    markers=("SLURM_STEP_ID|SLURM_STEPID", "SLURM_PROCID"),
    rank=("SLURM_PROCID",),
    world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
    local_rank=("SLURM_LOCALID",),
    local_world_size=("SLURM_STEP_TASKS_PER_NODE",),  # a layout such as 2(x2),1, read by Environ
    node_rank=("SLURM_NODEID",),
    nnodes=("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    owns=("SLURM_", "SLURMD_"),
)

BY_HAND = LauncherMarks(
    name="by-hand",
    title="by hand",
    markers=("RANK", "WORLD_SIZE"),
    rank=("RANK",),
    world_size=("WORLD_SIZE",),
    local_rank=("LOCAL_RANK",),
    local_world_size=("LOCAL_WORLD_SIZE",),
    node_rank=("GROUP_RANK", "NODE_RANK"),
    nnodes=("GROUP_WORLD_SIZE", "NNODES"),
)

LAUNCHERS = (
    TORCHRUN,
    LauncherMarks(
        name="deepspeed",
        title="deepspeed",
        markers=("CROSS_RANK", "CROSS_SIZE", "LOCAL_SIZE"),
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_SIZE",),
        node_rank=("CROSS_RANK",),
        nnodes=("CROSS_SIZE",),
        owns=("CROSS_", "LOCAL_SIZE", "DEEPSPEED_", "DS_"),
        sets=(*PLAIN, "CUDA_VISIBLE_DEVICES"),
    ),
    LauncherMarks(
        name="ray-train",
        title="Ray Train",
        markers=("RAY_*", "RANK", "NODE_RANK"),
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
        node_rank=("NODE_RANK",),
        owns=("RAY_",),
        sets=(*PLAIN, "NODE_RANK", "CUDA_VISIBLE_DEVICES", "ACCELERATE_TORCH_DEVICE"),
    ),
    LauncherMarks(
        name="openmpi",
        title="Open MPI (mpirun)",
        markers=("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        rank=("OMPI_COMM_WORLD_RANK",),
        world_size=("OMPI_COMM_WORLD_SIZE",),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK",),
        local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE",),
        nnodes=("OMPI_MCA_orte_num_nodes",),  # OMPI_COMM_WORLD_NODE_RANK is a rank within the node, not the node's
        owns=("OMPI_", "PMIX_"),
    ),
    LauncherMarks(
        name="mpich",
        title="MPICH or Intel MPI (mpiexec)",
        markers=("PMI_RANK", "MPI_LOCALRANKID"),
        rank=("PMI_RANK",),
        world_size=("PMI_SIZE",),
        local_rank=("MPI_LOCALRANKID",),
        local_world_size=("MPI_LOCALNRANKS",),
        owns=("PMI_", "MPI_LOCAL", "HYDI_", "I_MPI_", "MPIR_"),
    ),
    LauncherMarks(
        name="mvapich2",
        title="MVAPICH2 (mpirun_rsh)",
        markers=("MV2_COMM_WORLD_RANK",),
        rank=("MV2_COMM_WORLD_RANK",),
        world_size=("MV2_COMM_WORLD_SIZE",),
        local_rank=("MV2_COMM_WORLD_LOCAL_RANK",),
        local_world_size=("MV2_COMM_WORLD_LOCAL_SIZE",),
        owns=("MV2_",),
    ),
    LauncherMarks(
        name="jsrun",
        title="LSF (jsrun)",
        markers=("JSM_NAMESPACE_RANK",),
        rank=("JSM_NAMESPACE_RANK",),
        world_size=("JSM_NAMESPACE_SIZE",),
        local_rank=("JSM_NAMESPACE_LOCAL_RANK",),
        local_world_size=("JSM_NAMESPACE_LOCAL_SIZE",),
        owns=("JSM_", "LSB_"),
    ),
    SRUN,
    LauncherMarks(
        name="accelerate",
        title="accelerate launch",
        markers=("ACCELERATE_MIXED_PRECISION",),
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
        owns=("ACCELERATE_", "FSDP_"),
        sets=PLAIN,
    ),
    LauncherMarks(
        name="lightning",
        title="Lightning",
        markers=("NODE_RANK", "LOCAL_RANK", "WORLD_SIZE"),
        unless=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        node_rank=("NODE_RANK",),
        sets=(*PLAIN, "NODE_RANK"),
    ),
    LauncherMarks(
        name="pytorchjob",
        title="Kubeflow PyTorchJob",
        markers=("KUBERNETES_SERVICE_HOST", "RANK", "WORLD_SIZE", "MASTER_ADDR"),
        unless=("LOCAL_RANK",),
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_world_size=("PET_NPROC_PER_NODE", "NPROC_PER_NODE"),
        node_rank=("RANK",),
        nnodes=("PET_NNODES", "WORLD_SIZE"),
        owns=("PET_", "NPROC_PER_NODE", "KUBERNETES_"),
        sets=PLAIN,
        counts_pods=True,
    ),
    LauncherMarks(
        name="kubeflow-trainer",
        title="Kubeflow Trainer",
        markers=("KUBERNETES_SERVICE_HOST", "PET_NNODES"),
        unless=("RANK",),
        local_world_size=("PET_NPROC_PER_NODE",),
        node_rank=("PET_NODE_RANK",),
        nnodes=("PET_NNODES",),
        owns=("PET_", "KUBERNETES_"),
    ),
    LauncherMarks(
        name="sagemaker",
        title="SageMaker",
        markers=("SM_HOSTS", "SM_CURRENT_HOST"),
        unless=("RANK",),
        local_world_size=("SM_NUM_GPUS",),
        owns=("SM_",),
    ),
    BY_HAND,
)
"""Innermost first. The last row applies when RANK and WORLD_SIZE are set and no launcher matches."""
