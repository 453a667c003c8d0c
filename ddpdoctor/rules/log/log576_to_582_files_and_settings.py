"""LOG576 to LOG582: checkpoints that cannot be read, settings that contradict each other, resources that are too few."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG576",
    "checkpoint-file-damaged",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"invalid load key, '",
        r"unexpected EOF, expected \d+ more bytes\. The file might be corrupted",
        r"Error while deserializing header: ",
        r"SafetensorError: [^\n]{0,60}(?:incomplete|Incomplete|invalid|Invalid)",
        r"PytorchStreamReader failed (?:locating file|reading file)",
    ),
)
def checkpoint_file_damaged(log: Log) -> Iterator[Finding]:
    """A checkpoint or weights file is incomplete, or is not what its name says.

    ## Why it matters
    `UnpicklingError: invalid load key, 'v'.` and `SafetensorError: Error while deserializing header: HeaderTooLarge`:
    the file is a git-lfs pointer (it begins with `version`), an HTML page, or an incomplete download or save.

    ## Fix
    Run `ls -l FILE; head -c 100 FILE`. For a pointer: `git lfs install && git lfs pull`. Otherwise download the file
    again, or resume from the checkpoint before it. Save to a temporary name and rename, so that a killed job leaves no
    incomplete file.

    ## Example

        safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge

        # before
        git clone https://huggingface.co/NAME
        # after
        git lfs install && git clone https://huggingface.co/NAME

    ## Source
    Confirmed in https://github.com/microsoft/OmniParser/issues/34 and https://github.com/turboderp/exllama/issues/242
    (git-lfs).
    """
    yield from ending(checkpoint_file_damaged, log)


@cause(
    "LOG577",
    "weights-only-load-refused",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"Weights only load failed",
        r"WeightsUnpickler error: ",
    ),
)
def weights_only_load_refused(log: Log) -> Iterator[Finding]:
    """torch.load rejects a checkpoint that contains more than tensors.

    ## Why it matters
    `_pickle.UnpicklingError: Weights only load failed.`: since torch 2.6, `torch.load` has `weights_only=True` as its
    default, and the checkpoint holds other objects (`numpy`, `argparse.Namespace`, an optimizer of DeepSpeed).

    ## Fix
    If you wrote the file yourself, pass `weights_only=False`, or set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 on every rank when a
    framework calls torch.load. Otherwise allow the named class: `torch.serialization.add_safe_globals([NAME])`.

    ## Example

        _pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options

        # before
        state = torch.load(path, map_location="cpu")
        # after
        state = torch.load(path, map_location="cpu", weights_only=False)

    ## Source
    Confirmed in https://github.com/lincc-frameworks/hyrax/issues/537 and https://github.com/gpoesia/minimo/pull/21.
    """
    yield from ending(weights_only_load_refused, log)


@cause(
    "LOG578",
    "checkpoint-device-missing",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(r"Attempting to deserialize object on (?:a )?CUDA device",),
)
def checkpoint_device_missing(log: Log) -> Iterator[Finding]:
    """The checkpoint was saved from a GPU that this rank does not have.

    ## Why it matters
    `RuntimeError: Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1`: torch.load restores
    each tensor to the GPU that it was saved from. Without `map_location`, all ranks load to the same GPU and fill its memory.

    ## Fix
    Load to the CPU and copy from there: `torch.load(path, map_location="cpu")`, or `map_location=f"cuda:{local_rank}"`.

    ## Example

        RuntimeError: Attempting to deserialize object on CUDA device 1 but torch.cuda.device_count() is 1.

        # before
        state = torch.load(path)
        # after
        state = torch.load(path, map_location="cpu")
    """
    yield from ending(checkpoint_device_missing, log)


@cause(
    "LOG579",
    "framework-settings-conflict",
    Severity.ERROR,
    stage=CausalStage.FAULT,
    signatures=(
        r"Please correct the following DeepSpeed config values that mismatch",
        r"not compatible with `low_cpu_mem_usage=True` or with passing a `device_map`",
        r"can't train a model that has been loaded (?:in 8-bit|with `device_map)",
        r"does not implement __len__, max_steps has to be specified",
        r"You need to have PEFT library installed in your environment",
        r"FlashAttention2? has been toggled on, but it cannot be used",
    ),
)
def framework_settings_conflict(log: Log) -> Iterator[Finding]:
    """Two settings of the training framework contradict each other.

    ## Why it matters
    `ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values`: the same
    setting is given twice with different values. Other messages name an option that excludes another one, or a package that
    an option needs.

    ## Fix
    In DeepSpeed's JSON, set the values that the message lists to `"auto"`. Remove `device_map` and `low_cpu_mem_usage` with
    ZeRO-3. With a streaming data set, pass `--max_steps`. Install the package that the message names on every node.

    ## Example

        ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:

        # before
        "train_micro_batch_size_per_gpu": 4
        # after
        "train_micro_batch_size_per_gpu": "auto"

    ## Source
    The message itself names `auto`: https://github.com/huggingface/transformers/pull/12021.
    """
    yield from ending(framework_settings_conflict, log)


@cause(
    "LOG580",
    "serving-memory-too-small",
    Severity.ERROR,
    stage=CausalStage.FAULT,
    signatures=(
        r"No available memory for the cache blocks",
        r"is larger than the maximum number of tokens that can be stored in KV cache",
        r"Free memory on device [^\n]{0,60}is less than desired GPU memory utilization",
        r"KV cache is needed, which is larger than the available KV cache memory",
        r"Not enough memory\. Please try to increase --mem-fraction-static",
    ),
)
def serving_memory_too_small(log: Log) -> Iterator[Finding]:
    """The inference engine does not get enough GPU memory for its KV cache.

    ## Why it matters
    `ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization`: the weights fill the share
    of the GPU that the engine may use. In a job that trains and generates, the trainer already holds the rest.

    ## Fix
    If the GPU is free otherwise, raise `gpu_memory_utilization` (0.9), lower `max_model_len`, or raise the tensor-parallel
    size. If another process holds the memory (`nvidia-smi`), end it, lower `gpu_memory_utilization`, or offload the trainer.

    ## Example

        ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` …

        # before
        vllm serve NAME --gpu-memory-utilization 0.3
        # after
        vllm serve NAME --gpu-memory-utilization 0.9 --max-model-len 8192

    ## Source
    Advised by the maintainers in https://github.com/vllm-project/vllm/issues/10439.
    """
    yield from ending(serving_memory_too_small, log)


@cause(
    "LOG581",
    "ray-resources-too-few",
    Severity.ERROR,
    stage=CausalStage.FAULT,
    signatures=(
        r"Total available GPUs \d+(?:\.\d+)? is less than total desired GPUs \d+",
        r"required GPUs exceeds the total number of available GPUs in the placement group",
        r"The following resource request cannot be scheduled right now",
        r"Error: No available node types can fulfill resource request",
        r"Cannot provide a placement group of ",
    ),
)
def ray_resources_too_few(log: Log) -> Iterator[Finding]:
    """Ray does not have the GPUs that the job requests.

    ## Why it matters
    `ValueError: Total available GPUs 4 is less than total desired GPUs 8`: a node did not join the Ray cluster, an
    earlier job still holds its GPUs, or `nnodes` and `n_gpus_per_node` request more than exist.

    ## Fix
    Run `ray status` on the head node: it lists nodes, GPUs in total and in use. Start `ray start --address=HEAD:6379` on the
    missing node, end old jobs (`ray job list`), or lower the sizes.

    ## Example

        ValueError: Total available GPUs 4 is less than total desired GPUs 8

        # before
        python -m verl.trainer.main_ppo trainer.nnodes=2
        # after
        ssh node1 ray start --address=10.0.0.4:6379
        python -m verl.trainer.main_ppo trainer.nnodes=2
    """
    yield from ending(ray_resources_too_few, log)


@cause(
    "LOG582",
    "kernel-compilation-failed",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    yields_to=("LOG601",),
    signatures=(
        r"InductorError: ",
        r"OutOfResources: out of resource: shared memory",
        r"RuntimeError: PassManager::run failed",
        r"Failed to find C compiler\. Please specify via CC",
        r"triton\.compiler\.errors\.CompilationError",
    ),
)
def kernel_compilation_failed(log: Log) -> Iterator[Finding]:
    """torch.compile or Triton could not compile a kernel.

    ## Why it matters
    `InductorError: RuntimeError: Failed to find C compiler`, `PassManager::run failed` and `OutOfResources: out of resource:
    shared memory` end the first step. The compiler is missing in the image, Triton does not fit torch or the GPU, or the
    kernel needs more shared memory than this GPU has.

    ## Fix
    Run once without compilation (`TORCHDYNAMO_DISABLE=1`) to see whether the model itself works. Install gcc on every node
    for a missing compiler, and the Triton that torch was released with. For shared memory, choose smaller blocks or
    `num_stages` for this GPU.

    ## Example

        torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment variable.

        # before
        docker run image torchrun train.py
        # after
        docker run image sh -c "apt-get install -y gcc && torchrun train.py"
    """
    yield from ending(kernel_compilation_failed, log)
