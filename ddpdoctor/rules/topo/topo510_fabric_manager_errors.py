"""TOPO510: errors in the log of the fabric manager."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.topo import Topo
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("TOPO510", "fabric-manager-errors", Severity.WARNING)
def fabric_manager_errors(topo: Topo) -> Iterator[Finding]:
    """The log of the fabric manager has errors since its last start.

    ## Why it matters
    The fabric manager configures the NVSwitches. After an error, some or all GPUs of the node have no NVLink: CUDA programs end
    with `system not yet initialized`, or NCCL runs over PCIe.

    ## Fix
    Restart the service with `systemctl restart nvidia-fabricmanager` and read its log. If the same error is printed again,
    reboot the node, and send the log to the vendor.

    ## Example

        [Jan 05 2026 10:11:12] [ERROR] [tid 4242] failed to find any NVSwitch devices

        systemctl restart nvidia-fabricmanager && tail /var/log/fabricmanager.log
    """
    log = topo.fabric_log
    if log is None:
        not_here("no log of the fabric manager")
    if log.errors:
        more = f" ({len(log.errors) - 1} more errors)" if len(log.errors) > 1 else ""
        yield Finding(
            f"the fabric manager reports: {log.errors[0]}{more}",
            (Evidence("topo.fabric_log.errors", log.errors[0], "no error"),),
            fix_command="systemctl restart nvidia-fabricmanager",
        )
