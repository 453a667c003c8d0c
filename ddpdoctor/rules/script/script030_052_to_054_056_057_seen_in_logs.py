"""SCRIPT030 and SCRIPT052 to SCRIPT057: faults of a script that its logs show, and hardly its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import CausalStage, Finding, Severity, Speaker
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point
from ddpdoctor.rules.script.script_questions import argument, each_rank, has_more, is_test, last_value
from ddpdoctor.scripts.simulation.entry_points import rank_contexts
from ddpdoctor.scripts.syntax.module import Module, modules

if TYPE_CHECKING:
    from ddpdoctor.facts.rehearsal import Rehearsal


@cause(
    "SCRIPT030",
    "collective-mismatch-detected",
    Severity.ERROR,
    stage=CausalStage.NOT_IN_COLLECTIVE,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    signatures=(
        r"Detected mismatch between collectives",
        r"Mismatched collective detected",
        r"\bcollective mismatch (?:error|around rank|in your code)",
        r"op\.preamble\.length <= op\.nbytes",
        r"Forward order differs across ranks",
    ),
)
def collective_mismatch_detected() -> None:
    """The ranks do not call the same collectives.

    ## Why it matters
    `Detected mismatch between collectives on ranks` (TORCH_DISTRIBUTED_DEBUG=DETAIL) shows the two calls; `Is there a
    distributed collective mismatch in your code?` (Gloo) does not. Neither shows the branch that led there.

    ## Fix
    Run once with TORCH_DISTRIBUTED_DEBUG=DETAIL and compare the two fingerprints.

    Then find where the ranks diverge: a branch on the rank, a skipped batch, or tensors of different shapes.

    ## Example
        # before
        torchrun --nproc-per-node=2 train.py
        # Is there a distributed collective mismatch in your code?

        # after
        TORCH_DISTRIBUTED_DEBUG=DETAIL torchrun --nproc-per-node=2 train.py
        # Detected mismatch between collectives on ranks. Rank 0 is running collective: ...
    """


@cause(
    "SCRIPT052",
    "ddp-unused-parameters",
    Severity.ERROR,
    signatures=(
        r"Expected to have finished reduction in the prior iteration",
        r"did not receive grad for rank \d+",
        r"has parameters that were not used in producing the loss",
    ),
)
def ddp_unused_parameters(script: Script) -> Iterator[Finding]:
    """Some parameters of the model got no gradient.

    ## Why it matters
    `Expected to have finished reduction in the prior iteration before starting a new one` is raised in the forward
    pass of the second step. The traceback does not show the layer whose output was not used in the loss.

    ## Fix
    Use every output in the loss, or freeze the parameters before DDP is created.

    TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters. `DistributedDataParallel(..., find_unused_parameters=True)`
    also works, but is slower.

    ## Example
        # before
        ddp = DDP(model)
        logits, extra = ddp(x)
        F.cross_entropy(logits, y).backward()  # extra is not used
        # RuntimeError: Expected to have finished reduction in the prior iteration ...

        # after
        model.extra_head.requires_grad_(False)
        ddp = DDP(model)
        logits, extra = ddp(x)
        F.cross_entropy(logits, y).backward()

    ## Source
    Confirmed in https://github.com/aliyun/conditional-lane-detection/issues/29 and
    https://github.com/ZhengYinan-AIR/Diffusion-Planner/issues/65: find_unused_parameters=True.
    Also in https://github.com/Megvii-BaseDetection/YOLOX/issues/885 (an output that the loss did not use was removed).
    """
    for module in modules(script):
        if is_test(module) or "requires_grad" in module.text or "static_graph" in module.text:
            continue
        for call in module.calls("DDP"):
            if has_more(call) or argument(call, None, "find_unused_parameters") is not None:
                continue
            layer = _unused_layer(module, call)
            if layer is not None:
                yield point(
                    module,
                    call,
                    f"{layer[0]} (line {layer[1]}) is part of the model, but nothing uses it",
                    "parameters that are all used",
                    label="its parameters get no gradient",
                    fix=f"Remove {layer[0]}, or pass `find_unused_parameters=True`.",
                )


_WALKS = re.compile(r"\b(children|modules|named_\w+|getattr|__getattr__|apply|state_dict|ModuleDict|_modules)\b")
_LAYERS = re.compile(
    r"nn\.(Linear|Bilinear|Embedding|Conv|BatchNorm|LayerNorm|GroupNorm|LSTM|GRU|RNN|Transformer|Multihead)"
)


def _unused_layer(module: Module, call: ast.Call) -> tuple[str, int] | None:
    """A layer that the class of the wrapped model creates and no line of the file uses, with its line."""
    given = argument(call, 0, "module")
    made = last_value(module, given) if given is not None else None
    while (
        isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in ("to", "cuda", "cpu")
    ):
        made = last_value(module, made.func.value)
    owner = module.class_of_value(made) if made is not None else None
    if owner is None or [module.names.of(b) for b in owner.bases] != ["nn.Module"]:
        return None
    if _WALKS.search(ast.unparse(owner)) or module.method(owner, "forward") is None:
        return None
    used = {n.attr for n in module.index.parents if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    for (base, name), bindings in module.index.attributes.items():
        own = [b for b in bindings if module.index.class_of(b.at) is owner]
        created = own[0].value if base == "self" and len(own) == 1 else None
        is_layer = isinstance(created, ast.Call) and _LAYERS.match(module.names.of(created.func) or "")
        if is_layer and name not in used and f'"{name}' not in module.text and f"'{name}" not in module.text:
            return f"self.{name}", own[0].line
    return None


@cause(
    "SCRIPT053",
    "ddp-mark-ready-twice",
    Severity.ERROR,
    signatures=(r"Expected to mark a variable ready only once",),
)
def ddp_mark_ready_twice() -> None:
    """The gradient of a parameter was ready twice in one backward pass.

    ## Why it matters
    `Expected to mark a variable ready only once` is caused by re-entrant checkpointing, a layer that is used twice,
    or two forward passes before one backward pass. On one GPU, without DDP, the same script works.

    ## Fix
    Use `checkpoint(..., use_reentrant=False)`, and one forward pass of the wrapped model per backward pass.

    `DistributedDataParallel(..., static_graph=True)` also works.

    ## Example
        # before
        x = torch.utils.checkpoint.checkpoint(self.block, x)
        # RuntimeError: Expected to mark a variable ready only once.

        # after
        x = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
    """


@cause(
    "SCRIPT054",
    "ddp-models-differ",
    Severity.ERROR,
    signatures=(
        r"has \d+ params, while rank \d+ has inconsistent [1-9]",
        r"in this process with (sizes|strides) [^\n]{0,300}appears not to match",
    ),
)
def ddp_models_differ(script: Script) -> Iterator[Finding]:
    """The ranks build different models.

    ## Why it matters
    The model depends on the rank, on its data, or on a different checkpoint. DDP reports `DDP expects same model
    across all ranks, but Rank 1 has 148 params, while rank 0 has inconsistent 150 params`, or `params[3] in this
    process with sizes [10, 4] appears not to match sizes of the same param in process 0`.

    ## Fix
    Build the model from the same configuration on every rank, before any branch on the rank.

    Take the number of classes or tokens from the configuration, not from the data of the rank.

    ## Example
        # before
        model = Net(classes=len(set(own_labels)))
        ddp = DDP(model)
        # params[3] in this process with sizes [10, 4] appears not to match sizes of the same param in process 0

        # after
        model = Net(classes=config.classes)
        ddp = DDP(model)
    """
    for module in modules(script):
        if is_test(module):
            continue
        for call in module.calls("DDP"):
            size = _size_by_rank(module, argument(call, 0, "module"))
            if size is not None:
                yield point(
                    module,
                    call,
                    f"the model is built with {code(module, size, 40)}, which differs between ranks",
                    "the same model on all ranks",
                    label="DDP expects the same model",
                )


def _size_by_rank(module: Module, node: ast.expr | None) -> ast.expr | None:
    """A size in the call that builds a model, such as `nn.Linear(4, rank + 1)`, that has another value on other ranks."""
    made = last_value(module, node) if node is not None else None
    for call in ast.walk(made) if made is not None else ():
        name = module.names.of(call.func) if isinstance(call, ast.Call) else None
        is_layer = name is not None and name.startswith("nn.")
        if not isinstance(call, ast.Call) or not (is_layer or module.class_named(call.func) is not None):
            continue
        for given in (*call.args, *(k.value for k in call.keywords if k.arg not in ("device", "rank", "local_rank"))):
            sizes = each_rank(module, given, rank_contexts(module, module.index.function_of(given)))
            if all(type(s) is int for s in sizes) and len({*map(repr, sizes)}) > 1 and _is_computed(given, is_layer):
                return given
    return None


def _is_computed(node: ast.expr, is_layer: bool) -> bool:
    """Whether a number by rank is a size: any argument of a layer; for other models, not the plain rank, as of a device."""
    return is_layer or isinstance(node, ast.BinOp)


@cause(
    "SCRIPT056",
    "ddp-buffer-changed-inplace",
    Severity.ERROR,
    signatures=(r"variables needed for gradient computation has been modified by an inplace operation",),
)
def ddp_buffer_changed_inplace() -> None:
    """Two forward passes before one backward pass changed the buffers that DDP broadcasts.

    ## Why it matters
    DDP copies the buffers of rank 0 (such as BatchNorm statistics) into the model in place at every forward pass. The
    error is `one of the variables needed for gradient computation has been modified by an inplace operation`,
    although the script has no in-place operation.

    ## Fix
    Run one forward pass per backward pass: concatenate the inputs.

    SyncBatchNorm or `DistributedDataParallel(..., broadcast_buffers=False)` also avoids it. If the script itself
    works in place (`x += y`, `relu_`), check that first.

    ## Example
        # before
        loss = ddp(real).mean() - ddp(fake).mean()
        loss.backward()
        # one of the variables needed for gradient computation has been modified by an inplace operation

        # after
        real_out, fake_out = ddp(torch.cat([real, fake])).chunk(2)
        (real_out.mean() - fake_out.mean()).backward()
    """


@cause(
    "SCRIPT057",
    "ddp-inconsistent-params-zero",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    speaker=Speaker.VICTIM,
    kind="umbrella",
    signatures=(r"inconsistent 0 params",),
)
def ddp_inconsistent_params_zero() -> None:
    """DDP's model check received no data from a rank.

    ## Why it matters
    `Rank 2 has 363 params, while rank 0 has inconsistent 0 params` means that the data of that rank never arrived,
    because the very first collective failed. The model is not the cause.

    ## Fix
    Check the network: the interface that NCCL uses (NCCL_DEBUG=INFO), and peer access between the GPUs.

    `torchrun … -m ddpdoctor.probe` checks the values of an all_reduce.

    ## Example
        # before
        torchrun --nproc-per-node=4 train.py
        # Rank 2 has 363 params, while rank 0 has inconsistent 0 params

        # after
        NCCL_DEBUG=INFO torchrun --nproc-per-node=4 train.py      # which interface: "Bootstrap : Using"
        NCCL_P2P_DISABLE=1 torchrun --nproc-per-node=4 train.py   # works: peer access is broken
    """


@ddp_models_differ.look
def models_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """DDP models with different parameters."""
    from ddpdoctor.facts.rehearsal import DifferenceKind
    from ddpdoctor.rules.rehearsal.difference_findings import difference_findings

    yield from difference_findings(rehearsal, DifferenceKind.MODELS, label="the models differ between ranks")


@ddp_unused_parameters.look
def unused_in_rehearsal(rehearsal: Rehearsal) -> Iterator[Finding]:
    """Parameters of a DDP model that got no gradient."""
    from ddpdoctor.facts.rehearsal import ObservationKind
    from ddpdoctor.rules.rehearsal.observation_findings import observation_findings

    yield from observation_findings(
        rehearsal,
        ObservationKind.UNUSED_PARAMETERS,
        lambda o, who: (
            f"parameters of the DDP model get no gradient: {o.values['names']}"
            if o.values["names"]
            else "parameters of the DDP model get no gradient"
        ),
        label="some of its parameters get no gradient",
        expected="a loss that depends on all parameters",
    )
