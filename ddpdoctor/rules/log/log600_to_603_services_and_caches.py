"""LOG600 to LOG603: trackers, caches and networks beside the job: what they refuse ends a rank all the same."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity, Speaker
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG600",
    "experiment-tracker-refused",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"\bapi_key not configured \(no-tty\)",
        r"\bwandb\.(?:sdk\.[\w.]{1,60}|errors(?:\.errors)?)\."
        r"(?:UsageError|CommError|AuthenticationError|WandbServiceNotOwnedError)\b",
        r"\bwandb: ERROR (?:API key|Error while calling W&B API|It appears that you do not have permission)",
        r"\bMlflowException: (?:API request to|Could not authenticate|Registered model)",
        r"\bNeptune(?:Missing|Invalid)ApiTokenException|NeptuneInvalidApiTokenException|NeptuneConnectionLostException",
        r"\bComet API key not set|Comet\.ml requires an API key|\bSwanLab\b[^\n]{0,40}API key",
    ),
)
def experiment_tracker_refused(log: Log) -> Iterator[Finding]:
    """The experiment tracker refused the login or the run, and the rank ended.

    ## Why it matters
    `wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])`: only rank 0 logs, so only rank 0 ends;
    the others wait for it in the next collective. A batch job has no terminal in which to ask for the key.

    ## Fix
    Set `WANDB_API_KEY` on every node (or run `wandb login` once in the shared home), or start without it: `WANDB_MODE=offline`,
    `WANDB_MODE=disabled`, `--report_to none`. For an error of the server, check `entity` and `project`.

    ## Example

        wandb: ERROR api_key not configured (no-tty). call wandb.login(key=[your_api_key])

        # before
        torchrun --nproc-per-node 8 train.py
        # after
        WANDB_MODE=offline torchrun --nproc-per-node 8 train.py
    """
    yield from ending(experiment_tracker_refused, log)


@cause(
    "LOG601",
    "kernel-cache-race",
    Severity.ERROR,
    stage=CausalStage.RANK_ERROR,
    signatures=(
        r"No such file or directory: '[^'\n]{0,200}(?:triton|torchinductor_|torch_extensions|inductor)[^'\n]{0,400}'",
        r"Stale file handle: '[^'\n]{0,200}(?:triton|torchinductor_|torch_extensions)[^'\n]{0,400}'",
    ),
)
def kernel_cache_race(log: Log) -> Iterator[Finding]:
    """A compiled kernel disappeared from the cache that the ranks share.

    ## Why it matters
    `FileNotFoundError: [Errno 2] No such file or directory: '/home/u/.triton/cache/…/kernel.hsaco'`: the ranks of all nodes
    compile into one folder on a network file system; one rank renames or deletes a file that another one is about to read.

    ## Fix
    Give each node or rank a folder of its own on a local disk: `TRITON_CACHE_DIR=/tmp/triton-$RANK`,
    `TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$RANK`, `TORCH_EXTENSIONS_DIR=/tmp/torch-extensions`. Delete the old cache once.

    ## Example

        InductorError: FileNotFoundError: [Errno 2] No such file or directory: '/home/u/triton_cache/red_fused_0.hsaco'

        # before
        torchrun … train.py
        # after, on every node
        export TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_CACHE_DIR=/tmp/inductor
    """
    yield from ending(kernel_cache_race, log)


@cause(
    "LOG602",
    "libfabric-request-failed",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    speaker=Speaker.LINK_END,
    explains=("LOG005", "LOG502"),
    yields_to=("LOG521",),
    signatures=(r"NET/OFI Request \S{1,40} completed with error\. RC: \d+",),
)
def libfabric_request_failed() -> None:
    """A transfer over libfabric failed: the other node or the fabric does not respond.

    ## Why it matters
    `NET/OFI Request 0x7f14 completed with error. RC: 113. Error: 2 (UNDELIVERABLE)`: the network plugin of NCCL (Slingshot, EFA,
    Omni-Path) could not deliver. The peer has ended, its adapter or the switch failed, or the nodes may not reach each other.

    ## Fix
    Read first whether another rank ended before this time. If none did, test the fabric between these nodes (`fi_pingpong -p
    PROVIDER HOST`, `nccl-tests`), exclude the node that fails, and on Slingshot check that all steps of the job share one VNI.

    ## Example

        [rank3]: NET/OFI Request 0x7f14cc5b60c0 completed with error. RC: 113. Error: 2 (UNDELIVERABLE). Completed length: 0

        # before
        srun --nodes 16 torchrun … train.py
        # after, without the node that does not respond
        srun --nodes 16 --exclude nid001234 torchrun … train.py
    """


@cause(
    "LOG603",
    "gloo-mesh-incomplete",
    Severity.ERROR,
    stage=CausalStage.REACHABILITY,
    signatures=(r"\[Gloo\] Rank \d+ is NOT connected to: \[",),
)
def gloo_mesh_incomplete(log: Log) -> Iterator[Finding]:
    """A rank could not connect to all others over Gloo.

    ## Why it matters
    `[Gloo] Rank 8 is NOT connected to: [1]`: the other ranks connected to all peers and wait; the server or the trainer later
    ends with a timeout that does not name the rank.

    ## Fix
    Run the job on the node of that rank with `GLOO_SOCKET_IFNAME` set to the interface that all nodes share, and test the
    connection to the named peers (`ddpdoctor check -- LAUNCH` on every node).

    ## Example

        [Gloo] Rank 8 is NOT connected to: [1]

        # before
        torchrun --nnodes 2 … serve.py
        # after, on every node
        GLOO_SOCKET_IFNAME=eth0 torchrun --nnodes 2 … serve.py
    """
    yield from ending(gloo_mesh_incomplete, log)
