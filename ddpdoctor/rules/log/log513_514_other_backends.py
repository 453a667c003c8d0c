"""LOG513, LOG514: errors of Huawei CANN with HCCL and of Intel oneCCL, whose own text contains the reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.findings import CausalStage, Evidence, Finding, Severity
from ddpdoctor.logs.matching import matching_lines
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.signatures import ending, retitled, shortened

__all__: list[str] = []

_CODED = r"\bE[A-Z]\d{4}: [^\n]{0,120}\bReason: "
"""A code of CANN with its reason."""
_PRECISE = (re.compile(r"\bReason: "), re.compile(r"reason=\[(?!driver error:internal)"), re.compile(r"synStatus="))
"""What names a reason, the most precise first."""
_WANTED = re.compile(r"\bset (?P<setting>CCL_\w{3,40}=\w{1,40}) explicitly")


@cause(
    "LOG513",
    "ascend-runtime-error",
    Severity.ERROR,
    stage=CausalStage.NCCL_ERROR,
    kind="umbrella",
    signatures=(
        r"\bGetting socket times out\b",
        r"\[ERROR\] (?:HCCL|RUNTIME|ASCENDCL)\(\d+,",
        r"\btorch_npu/csrc/[^\n]{0,120} error",
        r"\b(?:HCCL|ACL|NPU) error in: |\bHCCL function error: ",
        r"\bcall acl api failed|ACL stream synchronize failed|NPU function error: ",
        r"\bE[A-Z]9999: Inner Error",
        r"execution of the Notify register times out",
        r"synStatus=\d+ \[",
        _CODED,
        r"\b(?:rt|acl|Hccl|hccl)\w{3,60} (?:execute )?fail(?:ed)?\b[^\n]{0,40}, ?reason=\[",
    ),
)
def ascend_runtime_error(log: Log) -> Iterator[Finding]:
    """The Ascend runtime or HCCL reports an error.

    ## Why it matters
    `EI0006 … Getting socket times out`, `EE1002`, `EH9999`: the code and the lines `Reason:` and `Solution:` after it name the
    cause. `EI0006` on all ranks means that one rank has failed or is late; on some ranks, it means that the network between
    them does not work.

    ## Fix
    Read `Reason:` and `Solution:` of the rank that printed its error first; the errors of other ranks are consequences. If ranks
    only start late, raise the limit on all nodes: `export HCCL_CONNECT_TIMEOUT=1800`.

    ## Example

        EI0006: [PID: 1292363] 2025-04-08-18:07:20.444.436 Getting socket times out. Reason: …

        # before: the default of 120 s
        torchrun … train.py
        # after, on every node
        export HCCL_CONNECT_TIMEOUT=1800 HCCL_EXEC_TIMEOUT=1800

    ## Source
    CANN's list of error codes; HCCL_CONNECT_TIMEOUT is 120 s by default.
    """
    lines = matching_lines(log, ascend_runtime_error.rule.signatures)
    decisive = min(lines, key=_generality, default=None)
    for found in ending(ascend_runtime_error, log):
        yield found if decisive is None or decisive is lines[0] else _deciding(log, found, decisive)


def _generality(line: LogLine) -> int:
    """0 for a line with a code or a reason of its own, more for one that only says where the error was noticed."""
    return next((place for place, known in enumerate(_PRECISE) if known.search(line.text)), len(_PRECISE))


def _deciding(log: Log, found: Finding, line: LogLine) -> Finding:
    """The finding, which quotes the line that decides first."""
    evidence = Evidence(log.place(line.source, line.number), shortened(line.text))
    quote = shortened(line.text.strip())
    others = tuple(each for each in found.evidence if each.path != evidence.path)
    title = ascend_runtime_error.rule.title
    return retitled(replace(found, quote=quote, evidence=(evidence, *others)), title)


@cause(
    "LOG514",
    "oneccl-runtime-error",
    Severity.ERROR,
    stage=CausalStage.NCCL_ERROR,
    kind="umbrella",
    signatures=(
        r"\|CCL_ERROR\|",
        r"\boneCCL: \S{1,80}:\d+ \w+: EXCEPTION: ",
        r"^to get local_idx/count from ATL, set CCL_\w{3,40}=\w{1,40} explicitly",
    ),
)
def oneccl_runtime_error(log: Log) -> Iterator[Finding]:
    """Intel's oneCCL reports an error.

    ## Why it matters
    `|CCL_ERROR| atl_ofi_helper.cpp:867 atl_ofi_get_prov_list: fi_getinfo error: ret -61, providers 0`: no network provider of
    libfabric was found, usually because oneCCL's environment was not set. The first `CCL_ERROR` line is the cause;
    the later ones are consequences.

    ## Fix
    Set oneCCL's environment in the shell that starts the ranks, on every node: `source $(python -c "import
    oneccl_bindings_for_pytorch as t; print(t.cwd)")/env/setvars.sh`. Without a fast network: `export FI_PROVIDER=tcp`.

    ## Example

        2024:08:21-10:24:26:( 4456) |CCL_ERROR| atl_ofi.cpp:243 init: can't find suitable provider

        # before: no provider is selected
        mpirun … python train.py
        # after, on every node
        export CCL_ATL_TRANSPORT=ofi FI_PROVIDER=tcp

    ## Source
    Confirmed in https://github.com/huggingface/accelerate/issues/2340: CCL_ZE_IPC_EXCHANGE=sockets.
    """
    lines = matching_lines(log, oneccl_runtime_error.rule.signatures)
    wanted = next(((line, m["setting"]) for line in lines if (m := _WANTED.search(line.text)) is not None), None)
    for found in ending(oneccl_runtime_error, log):
        yield found if wanted is None else _with_setting(log, found, *wanted)


def _with_setting(log: Log, found: Finding, line: LogLine, setting: str) -> Finding:
    """With the setting that the message itself asks for."""
    return replace(
        found,
        quote=shortened(line.text.strip()),
        evidence=(Evidence(log.place(line.source, line.number), shortened(line.text)), *found.evidence),
        why=f"The message asks for {setting}: without MPI's launcher oneCCL does not know which GPUs share a node.",
        fix="Set what the message asks for, in the shell that starts the ranks, on every node",
        fix_command=f"export {setting}",
    )
