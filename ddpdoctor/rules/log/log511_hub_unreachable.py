"""LOG511: a model or data set that could not be downloaded."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause(
    "LOG511",
    "hub-unreachable",
    Severity.ERROR,
    stage=CausalStage.IMPORT,
    signatures=(
        r"(?:couldn't|[Cc]ould not) connect to ['\" ]{0,3}https?:? ?//\S{1,200}['\"]? ?(?:[Tt]o load|$)",
        r"(?:LocalEntryNotFoundError|OfflineModeIsEnabled|LocalTokenNotFoundError)\b",
        r"ConnectionError: Couldn't reach ",
        r"\w(?:Error|Timeout): [^\n]{0,80}host='(?:huggingface\.co|cdn-lfs[\w.-]*|hf-mirror\.com|(?:www\.)?modelscope\.cn)'",
        r"Cannot reach https?://(?:huggingface|hf-mirror|modelscope)",
    ),
)
def hub_unreachable(log: Log) -> Iterator[Finding]:
    """A model or data set could not be downloaded.

    ## Why it matters
    `OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files`: compute
    nodes often have no internet access, and a cache in `$HOME` of the login node may not exist there.

    ## Fix
    Download it once on a machine with internet access to a folder that all nodes share, and start the job offline: `hf
    download NAME --local-dir DIR` (`huggingface-cli` before huggingface_hub 0.34), then HF_HUB_OFFLINE=1 and DIR as
    the model's path. If there is a proxy, set HTTPS_PROXY on every node. For a model that requires a login, set
    HF_TOKEN to a token with read access.

    ## Example

        OSError: We couldn't connect to 'https://huggingface.co' to load this file, couldn't find it in the cached files …

        # before
        torchrun --nproc-per-node 8 train.py --model_name_or_path bert-base-uncased
        # after
        HF_HUB_OFFLINE=1 torchrun --nproc-per-node 8 train.py --model_name_or_path /shared/models/bert-base-uncased

    ## Source
    Confirmed in https://github.com/Stability-AI/generative-models/issues/215 (HF_ENDPOINT, or a token with read access
    for a model that requires one) and https://github.com/harry0703/MoneyPrinterTurbo/issues/232 (a mirror or a proxy).
    """
    yield from ending(hub_unreachable, log)
