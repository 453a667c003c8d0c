"""LOG565 to LOG569: tensors on several devices, errors of CUDA's libraries, storage, empty data sets, MPI that does not start."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG565",
    "tensors-on-different-devices",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    yields_to=("SCRIPT058",),
    signatures=(
        r"Expected all tensors to be on the same device, but ",
        r"but found at least two devices, \w+(?::\d+)? and \w+",
        r"Input type \([\w.]+\) and weight type \([\w.]+\) should be the same",
    ),
)
def tensors_on_different_devices(log: Log) -> Iterator[Finding]:
    """An operation got tensors that are on different devices.

    ## Why it matters
    `RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cuda:1!`: a model
    was spread over several GPUs (`device_map="auto"`) in a job with one process per GPU. With `cpu` among the two, a batch,
    an index or a buffer was never moved.

    ## Fix
    With two GPUs: load the model with `device_map={"": int(os.environ["LOCAL_RANK"])}`, or make one GPU visible
    (`CUDA_VISIBLE_DEVICES=0`). With `cpu`: move the named argument with `.to(x.device)`, and register constants as buffers.

    ## Example

        RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!

        # before
        embeddings = self.table[ids]
        # after
        embeddings = self.table[ids.to(self.table.device)]

    ## Source
    Confirmed in https://github.com/visual-openllm/visual-openllm/issues/20 (device_map), https://github.com/magic-research/bubogpt/issues/11
    (one visible GPU) and https://github.com/haoosz/ConceptExpress/issues/5 (`.to(latents.device)`).
    """
    yield from ending(tensors_on_different_devices, log)


@cause(
    "LOG566",
    "cuda-library-error",
    Severity.ERROR,
    kind="umbrella",
    stage=CausalStage.DEATH,
    candidates=("LOG012", "LOG011", "VERSION008"),
    signatures=(
        r"\bcuDNN error: |\bCUDNN_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR|NOT_SUPPORTED|MAPPING_ERROR)",
        r"\bCUBLAS_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR|INVALID_VALUE|NOT_SUPPORTED)",
        r"\bCUSOLVER_STATUS_(?:NOT_INITIALIZED|EXECUTION_FAILED|INTERNAL_ERROR)",
        r"Unable to find a valid cuDNN algorithm",
        r"\bRuntimeError: miopenStatus[A-Z]\w+",
        r"\b(?:HIPBLAS|ROCBLAS|HIPSOLVER)_STATUS_(?:NOT|INVALID|INTERNAL|ALLOC|MEMORY|EXECUTION|UNKNOWN|ARCH)",
        r"(?:FIND|GET) was unable to find an engine to execute this computation",
        r"cuDNN version incompatibility: PyTorch was compiled",
        r"CUDA error: (?:invalid configuration argument|mapping of buffer object failed|too many resources requested)",
        r"CUDA error: (?:unknown error|operation not permitted)",
        r"CUDA driver error: (?:invalid argument|unknown error)",
        r"cuda runtime error \(\d+\) ?: (?:unknown|initialization) error",
    ),
)
def cuda_library_error() -> None:
    """cuDNN, cuBLAS or cuSOLVER returned an error.

    ## Why it matters
    `cuDNN error: CUDNN_STATUS_NOT_INITIALIZED` and `CUBLAS_STATUS_EXECUTION_FAILED` name a library, not the reason. In
    most reports the GPU's memory was full; otherwise an index was out of range in an earlier kernel, or the wheel does
    not fit the GPU or the driver.

    ## Fix
    Run `nvidia-smi` on that node while the job runs: if the memory is nearly full, halve the batch size. If it is not, run that
    rank with CUDA_LAUNCH_BLOCKING=1, which shows the first kernel that failed, and compare `python -m torch.utils.collect_env`
    with a node on which the job works.

    ## Example

        RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED

        # before
        loader = DataLoader(dataset, batch_size=64)
        # after
        loader = DataLoader(dataset, batch_size=32)

    ## Source
    https://github.com/seanie12/Info-HCVAE/issues/7, https://github.com/yukkyo/PyTorch-FilterResponseNormalizationLayer/issues/4
    """


@cause(
    "LOG567",
    "storage-io-error",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    signatures=(
        r"OSError: \[Errno 5\] Input/output error",
        r"OSError: \[Errno 121\] Remote I/O error",
        r"OSError: \[Errno 107\] Transport endpoint is not connected",
        r"\[Errno 30\] Read-only file system",
    ),
)
def storage_io_error(log: Log) -> Iterator[Finding]:
    """A file system returned an I/O error, was disconnected, or is read-only.

    ## Why it matters
    `OSError: [Errno 5] Input/output error: '/app/run'`: the disk, the FUSE mount or the network file system of the node failed.
    The rank that reads or writes there ends, and the others wait for it.

    ## Fix
    On the rank's node, run `df -h PATH; mount | grep PATH; sudo dmesg -T | tail -50`. Remount it, or leave the node
    out of the job; for `Read-only file system`, write to another folder.

    ## Example

        OSError: [Errno 5] Input/output error: '/app/naifu555'

        # before
        srun train.sh
        # after: without the node whose mount failed
        srun --exclude=gpu-07 train.sh
    """
    yield from ending(storage_io_error, log)


@cause(
    "LOG568",
    "dataset-empty",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    signatures=(
        r"num_samples should be a positive integer value, but got num_samples=0",
        r"Total length of `(?:Combined|Data)Loader` across ranks is zero",
        r"ValueError: (?:Instruction|Dataset)[^\n]{0,60} (?:is empty|corresponds to no data)",
    ),
)
def dataset_empty(log: Log) -> Iterator[Finding]:
    """The data set of a rank has no samples.

    ## Why it matters
    `ValueError: num_samples should be a positive integer value, but got num_samples=0`: the path matches no file, a filter
    removed everything, or the set has fewer samples than ranks times batch size with drop_last=True. Later, a division by the
    length fails.

    ## Fix
    Print `len(dataset)` on every rank before the DataLoader is created, and list the folder that it reads on that node.

    ## Example

        ValueError: num_samples should be a positive integer value, but got num_samples=0

        # before
        dataset = ImageFolder("data")
        # after
        dataset = ImageFolder("/shared/data")
        assert len(dataset) >= world_size * batch_size
    """
    yield from ending(dataset_empty, log)


@cause(
    "LOG569",
    "mpi-init-failed",
    Severity.ERROR,
    stage=CausalStage.FAULT,
    signatures=(
        r"\*\*\* An error occurred in MPI_Init",
        r"It looks like MPI_INIT failed for some reason",
        r"PMI2?_Init failed to initialize",
        r"OPAL ERROR: Unreachable in file ext[\w.]{1,40}",
    ),
)
def mpi_init_failed(log: Log) -> Iterator[Finding]:
    """MPI could not be initialized.

    ## Why it matters
    `*** An error occurred in MPI_Init_thread … MPI_ERRORS_ARE_FATAL`: a library in the process starts MPI (mpi4py, DeepSpeed's
    MPI discovery, Transformer Engine's userbuffers), but torchrun started it, or srun offers another PMI than this MPI expects.

    ## Fix
    Start the job with mpirun, or with `srun --mpi=pmix` (`srun --mpi=list` shows what is available). Under torchrun,
    turn off the part that needs MPI: in Megatron, add `--tp-comm-bootstrap-backend nccl` to `--tp-comm-overlap`.

    ## Example

        *** An error occurred in MPI_Init_thread

        # before
        srun python train.py
        # after
        srun --mpi=pmix python train.py
    """
    yield from ending(mpi_init_failed, log)
