"""LOG515 to LOG517: checkpoints and parallel sizes that do not fit the number of ranks or the model."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.log500_uncaught_exception import python_failures
from ddpdoctor.rules.log.python_failures import PythonFailure
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG515",
    "checkpoint-world-size-differs",
    Severity.ERROR,
    stage=CausalStage.FAULT,
    signatures=(
        r"used a DP world size of \d+ but the current world size is \d+",
        r"Loading a checkpoint for MP=\d+ but world size is ",
        r"[Cc]heckpoint (?:was )?saved with (?:a )?world[_ ]size",
        r"does not support loading (?:a )?checkpoint with (?:a )?different (?:world|dp|tensor)",
    ),
)
def checkpoint_world_size_differs(log: Log) -> Iterator[Finding]:
    """The checkpoint was saved with a different number of ranks.

    ## Why it matters
    `ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 but the current world size is 16`: each rank
    saved its part of the optimizer state, and DeepSpeed does not redistribute these parts.

    ## Fix
    Start as many ranks as saved it, or convert the checkpoint: to a universal one (`python ds_to_universal.py`, then
    `--universal-checkpoint`), or to weights alone (`python zero_to_fp32.py DIR OUT`) without the optimizer's state.

    ## Example

        ZeRORuntimeException: The checkpoint being loaded used a DP world size of 8 but the current world size is 16.

        # before
        torchrun --nnodes 2 --nproc-per-node 8 train.py --resume
        # after: as many ranks as when it was saved
        torchrun --nnodes 1 --nproc-per-node 8 train.py --resume
    """
    yield from ending(checkpoint_world_size_differs, log)


@cause(
    "LOG516",
    "parallel-sizes-do-not-fit",
    Severity.ERROR,
    stage=CausalStage.FAULT,
    signatures=(
        r"world[_ ]size ?\(\d+\) is (?:not (?:equal to|divisible by)|(?:less|smaller|greater|larger) than) ",
        r"_para(?:llel)?_size (?:must be|should be|is not) (?:equal|divisible)",
        r"\ba multiple of (?:the )?(?:tensor|pipeline|context|expert|sequence|model)[_ -](?:model[_ -])?parallel",
        r"divisible by (?:the )?(?:tensor|pipeline|context|expert|sequence|model)[_ -](?:model[_ -])?parallel",
        r"(?:number of GPUs|world[_ ]size|mpiSize) ?(?:should be|must be|==) [^\n]{0,40}\b(?:tp|pp|tensor|pipeline)",
        r"tensor[_ ]parallel[_ ]size[^\n]{0,60}(?:cannot be (?:larger|greater) than|exceeds) ",
        r"num(?:ber of)?[_ ](?:attention|key[_ ]value|query)[_ ](?:heads|groups)[^\n]{0,60}divisible by ",
        r"divisible by (?:the )?world[_ ]size\b",
        r"AssertionError: \d+ is not divisible by \d+",
        r"Mesh should not be bigger than default world size|mesh dimensions? [^\n]{0,60}world size",
        r"\b[Aa]ttention head count \d+ is not divisible by ",
        r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size",
    ),
)
def parallel_sizes_do_not_fit(log: Log) -> Iterator[Finding]:
    """The parallel sizes do not fit the number of ranks or the model.

    ## Why it matters
    `RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (1) x pipeline_model_parallel_size (1)`: every rank
    rejects the setting when it creates its process groups.

    ## Fix
    Make tensor x pipeline x context x data sizes equal to nodes x processes per node, and the tensor size a divisor of the
    number of attention heads and of the sequence length (with sequence parallelism).

    ## Example

        RuntimeError: world_size (8) is not equal to tensor_model_parallel_size (1) x pipeline_model_parallel_size (1)

        # before: the engine is configured for one GPU
        torchrun --nproc-per-node 8 run.py
        # after
        torchrun --nproc-per-node 8 run.py --tensor-parallel-size 8
    """
    yield from ending(parallel_sizes_do_not_fit, log)


@cause(
    "LOG517",
    "checkpoint-keys-differ",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    yields_to=("SCRIPT062",),
    signatures=(
        r"Error\(s\) in loading state_dict for ",
        r"size mismatch for \S{1,200}: copying a param with shape ",
        r"Missing key\(s\) in state_dict: ",
        r"checkpoint contains only the model",
        r"Missing key in checkpoint state_dict: ",
        r"loaded state dict (?:contains a parameter group that doesn't match|has a different number of parameter groups)",
    ),
)
def checkpoint_keys_differ(log: Log) -> Iterator[Finding]:
    """The checkpoint does not fit the model: its keys or shapes differ.

    ## Why it matters
    `RuntimeError: Error(s) in loading state_dict for Net: Missing key(s) in state_dict: …` or `size mismatch for …`:
    the model was built with different settings than the saved one, or the keys have a prefix (`module.`, `_orig_mod.`,
    `model.`).

    ## Fix
    Compare the first missing key with the first unexpected one. If only a prefix differs, remove it before load_state_dict;
    if shapes differ, build the model with the settings of the checkpoint (number of classes, vocabulary size).

    ## Example

        RuntimeError: Error(s) in loading state_dict for Net:
            Missing key(s) in state_dict: "fc.weight". Unexpected key(s) in state_dict: "_orig_mod.fc.weight".

        # before
        model.load_state_dict(state)
        # after
        model.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in state.items()})

    ## Source
    Confirmed in https://github.com/gjy3035/C-3-Framework/issues/58 (another file of the same run) and
    https://github.com/KaiyangZhou/deep-person-reid/issues/4 (the file holds the weights themselves).
    """
    yield from ending(checkpoint_keys_differ, log)
    yield from python_failures(log, PythonFailure.ENTRY_MISSING)
