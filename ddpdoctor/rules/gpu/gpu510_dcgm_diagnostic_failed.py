"""GPU510: DCGM's own tests failed."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import shorten
from ddpdoctor.facts.gpu import Diagnostic, Gpu
from ddpdoctor.findings import Evidence, Finding, Severity, Where
from ddpdoctor.rules import cause

FAILED = "fail"
WARNED = "warn"
LONGEST = 80


@cause("GPU510", "dcgm-diagnostic-failed", Severity.ERROR)
def dcgm_diagnostic_failed(gpu: Gpu) -> Iterator[Finding]:
    """A test of NVIDIA's DCGM failed or gave a warning on a GPU of this node.

    ## Why it matters
    `dcgmi diag` tests memory, PCIe, NVLink, power and the driver, and prints `Fail` in the row of a test. A job on a
    GPU that failed a test may crash, hang, or run slowly.

    ## Fix
    Take the node out of service, reset the GPU with `nvidia-smi --gpu-reset -i GPU`, and run `dcgmi diag -r 3` again.
    If a test still fails, send the vendor the output of `dcgmi diag -r 3 -j` and of nvidia-bug-report.sh.

    ## Example

        | PCIe                      | Fail - GPU: 3                                  |

        # the test again, after a reset of GPU 3
        dcgmi diag -r 3 -i 3

    ## Source
    NVIDIA's DCGM documentation, "DCGM Diagnostics". A warning and a skipped test do not fail a run there either.
    """
    for index, result in enumerate(gpu.diagnostics):
        if result.status not in (FAILED, WARNED):
            continue
        is_failed = result.status == FAILED
        said = f": {shorten(result.text, LONGEST)}" if result.text else ""
        yield Finding(
            f"DCGM test `{result.test}` {'failed' if is_failed else 'gave a warning'}{_on(result)}{said}",
            (Evidence(f"gpu.diagnostics[{index}]", f"{result.test}: {result.status}{said}"[:400], "pass"),),
            fix_command=f"dcgmi diag -r 3{_only(result)}",
            where=Where(gpu=result.gpus[0] if len(result.gpus) == 1 else None),
            severity=None if is_failed else Severity.WARNING,
        )


def _on(result: Diagnostic) -> str:
    return f" on GPU {', '.join(map(str, result.gpus))}" if result.gpus else ""


def _only(result: Diagnostic) -> str:
    return f" -i {','.join(map(str, result.gpus))}" if result.gpus else ""
