"""LOG570 to LOG575: tensors that do not fit a call, models and data that cannot be loaded."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG570",
    "tensor-shapes-do-not-match",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    signatures=(
        r"stack expects each tensor to be equal size, but got ",
        r"The size of tensor a \(\d+\) must match the size of tensor b \(\d+\)",
        r"mat1 and mat2 shapes cannot be multiplied",
        r"shape '\[[^\]\n]{1,80}\]' is invalid for input of size ",
        r"The expanded size of the tensor \(\d+\) must match the existing size",
        r"Sizes of tensors must match except in dimension ",
        r"Unable to create tensor, you should probably (?:activate|use) [^\n]{0,40}(?:padding|truncation)",
        r"Expected input batch_size \(\d+\) to match target batch_size \(\d+\)",
    ),
)
def tensor_shapes_do_not_match(log: Log) -> Iterator[Finding]:
    """The shapes of two tensors, or of the samples of one batch, do not match.

    ## Why it matters
    `RuntimeError: stack expects each tensor to be equal size, but got [3, 224, 224] at entry 0 and [3, 200, 224] at
    entry 1`: the samples of a batch have different sizes. `The size of tensor a (512) must match …` and `mat1 and mat2
    shapes cannot be multiplied`: the input does not have the size that the layer expects, and the other ranks wait for
    the one that fails.

    ## Fix
    For samples: pad or resize them in the data set or in `collate_fn` (`padding=True, truncation=True` in a tokenizer). For
    layers: print both shapes at the named line, and compare the sequence length and the hidden size with the configuration of
    the model.

    ## Example

        RuntimeError: stack expects each tensor to be equal size, but got [24, 32, 64] at entry 0 and [24, 64, 32] at entry 1

        # before
        loader = DataLoader(dataset, batch_size=8)
        # after
        loader = DataLoader(dataset, batch_size=8, collate_fn=pad_to_longest)

    ## Source
    Confirmed in https://github.com/Suanmd/TR-MISR/issues/3 (images that are not square).
    """
    yield from ending(tensor_shapes_do_not_match, log)


@cause(
    "LOG571",
    "tensor-types-do-not-match",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    signatures=(
        r"expected scalar type \w+ but found \w+",
        r"expected m(?:at)?1 and m(?:at)?2 to have the same dtype, but got",
        r" not implemented for '(?:Half|BFloat16|Float8\w*|Long|Int|Bool)'",
        r"Attempting to unscale FP16 gradients",
        r"result type \w+ can.t be cast to the desired output type",
    ),
)
def tensor_types_do_not_match(log: Log) -> Iterator[Finding]:
    """An operation got tensors of a type that it does not accept.

    ## Why it matters
    `RuntimeError: expected scalar type Half but found Float`: weights and input have different types, because a part of the
    model or a buffer was not converted. `"slow_conv2d_cpu" not implemented for 'Half'`: the operation does not exist in fp16
    on the CPU, which means that the model is not on the GPU.

    ## Fix
    Run the forward pass in `torch.autocast("cuda", dtype=torch.bfloat16)`, or convert the input with `.to(model.dtype)`. For
    `not implemented for 'Half'`, move the model to the GPU first. For `unscale FP16 gradients`, load the weights in fp32: the
    scaler needs fp32 master weights.

    ## Example

        RuntimeError: expected scalar type Half but found Float

        # before
        out = model(batch)
        # after
        with torch.autocast("cuda", dtype=torch.bfloat16): out = model(batch)
    """
    yield from ending(tensor_types_do_not_match, log)


@cause(
    "LOG572",
    "gradient-graph-missing",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    signatures=(
        r"element \d+ of tensors does not require grad and does not have a grad_fn",
        r"Trying to backward through the graph a second time",
        r"No inf checks were recorded for this optimizer",
    ),
)
def gradient_graph_missing(log: Log) -> Iterator[Finding]:
    """The backward pass has no graph to follow.

    ## Why it matters
    `RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn`: the loss does not depend on
    a parameter that is trained, for example because gradient checkpointing removes the graph with LoRA or frozen
    embeddings. `No inf checks were recorded for this optimizer` also means that no parameter has a gradient.

    ## Fix
    Call `model.enable_input_require_grads()` after `gradient_checkpointing_enable()`, or pass
    `gradient_checkpointing_kwargs={"use_reentrant": False}`. Check that the optimizer has parameters with `requires_grad`.
    For a second backward, compute the loss again in each iteration, or detach what is kept between iterations.

    ## Example

        RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn

        # before
        model.gradient_checkpointing_enable()
        # after
        model.gradient_checkpointing_enable(); model.enable_input_require_grads()

    ## Source
    Confirmed in https://github.com/Lightning-AI/pytorch-lightning/issues/18222 (gradients were disabled in the training
    step).
    """
    yield from ending(gradient_graph_missing, log)


@cause(
    "LOG573",
    "model-files-not-found",
    Severity.ERROR,
    stage=CausalStage.IMPORT,
    yields_to=("LOG019",),
    signatures=(
        r"Can't load (?:the )?(?:tokenizer|configuration of|config|model|image processor|feature extractor) (?:for|of)? ?'",
        r"is not a local folder and is not a valid model identifier",
        r"[Ee]rror no file named [\w., ]{1,200} found in directory ",
        r"Unrecognized model in \S{1,300}\. Should have a `model_type` key",
        r"does not appear to have a file named ",
        r"Repo id must (?:be in the form|use alphanumeric)",
        r"RepositoryNotFoundError: ",
    ),
)
def model_files_not_found(log: Log) -> Iterator[Finding]:
    """A model or tokenizer is not in the named folder or under the named hub id.

    ## Why it matters
    `OSError: Can't load tokenizer for 'NAME'` and `NAME is not a local folder and is not a valid model identifier`: the path
    does not exist on this node, so the library takes it for an id of the hub. `no file named pytorch_model.bin … found in
    directory`: the folder holds a checkpoint in another format, or a save that was interrupted.

    ## Fix
    Run `ls -l PATH` on every node: it must contain `config.json`, the weights and the tokenizer. Give an absolute path on a
    shared file system. Save with `save_pretrained`, and merge sharded checkpoints first (`zero_to_fp32.py`,
    `merge_and_unload`).

    ## Example

        OSError: ./out/checkpoint-500 is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'

        # before
        torchrun --nproc-per-node 8 train.py --model out/checkpoint-500
        # after
        torchrun --nproc-per-node 8 train.py --model /shared/out/checkpoint-500
    """
    yield from ending(model_files_not_found, log)


@cause(
    "LOG574",
    "hub-access-refused",
    Severity.ERROR,
    stage=CausalStage.IMPORT,
    signatures=(
        r"Cannot access gated repo for url ",
        r"GatedRepoError: ",
        r"(?:40[13]|429) Client Error: [^\n]{0,60}for url: https?://(?:[\w-]+\.)*(?:huggingface\.co|hf\.co|hf-mirror\.com|modelscope\.cn)",
        r"Invalid (?:username or password|credentials in Authorization header|user token)",
    ),
)
def hub_access_refused(log: Log) -> Iterator[Finding]:
    """The hub rejected the download: no access, no valid token, or too many requests.

    ## Why it matters
    `GatedRepoError: 401 Client Error. Cannot access gated repo`: the owner must grant access to the account of the
    token. `429 Client Error: Too Many Requests`: all ranks of all nodes sent requests at the same time.

    ## Fix
    Accept the license on the page of the model, create a token with read access, and set `HF_TOKEN` on every node. For
    429, download once to a shared folder (`hf download NAME --local-dir DIR`), and start the ranks with
    `HF_HUB_OFFLINE=1`.

    ## Example

        huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url https://huggingface.co/…

        # before
        torchrun --nproc-per-node 8 train.py --model meta-llama/Llama-2-7b-hf
        # after
        HF_TOKEN=hf_… torchrun --nproc-per-node 8 train.py --model meta-llama/Llama-2-7b-hf
    """
    yield from ending(hub_access_refused, log)


@cause(
    "LOG575",
    "data-file-unreadable",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"DatasetGenerationError: ",
        r"ArrowInvalid: (?:JSON parse error|Could not|Parquet|Not an Arrow|CSV parse|Column)",
        r"(?:json\.decoder\.)?JSONDecodeError: (?:Expecting|Extra data|Invalid|Unterminated)",
        r"UnicodeDecodeError: '[\w-]+' codec can't decode byte",
        r"DatasetGenerationCastError",
    ),
)
def data_file_unreadable(log: Log) -> Iterator[Finding]:
    """A data or configuration file is not in the format that the script reads.

    ## Why it matters
    `JSONDecodeError: Extra data: line 64 column 2` names the line of the file; `ArrowInvalid: JSON parse error: Column()
    changed from object to array in row 0` means that a field has different types in two records. An empty or incomplete
    download fails in the same way (`Expecting value: line 1 column 1 (char 0)`).

    ## Fix
    Open the file that the traceback names, at that line: `python -m json.tool FILE`, or `head -c 300 FILE` to see
    whether it is an HTML page or a git-lfs pointer. Give every record the same fields and types, delete the cache of
    `datasets`, and start again.

    ## Example

        json.decoder.JSONDecodeError: Extra data: line 64 column 2 (char 27826)

        # before
        torchrun --nproc-per-node 8 train.py --data train.json
        # after
        python -m json.tool train.json && torchrun --nproc-per-node 8 train.py --data train.json
    """
    yield from ending(data_file_unreadable, log)
