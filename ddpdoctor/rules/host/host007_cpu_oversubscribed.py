"""HOST007: more threads than CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.host import Host, local_ranks
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import rule

if TYPE_CHECKING:
    from ddpdoctor.facts.gpu import Gpu


@rule("HOST007", "cpu-oversubscribed", Severity.WARNING)
def check(host: Host, environ: Environ, gpu: Gpu | None = None) -> Iterator[Finding]:
    """The ranks of this node and their OpenMP threads outnumber the CPUs that they may use.

    ## Why it matters
    Threads wait for each other's cores: some ranks become slow, the others wait for them in every collective, and in
    the end one times out. Nothing is printed.

    ## Fix
    Ask for more CPUs (--cpus-per-task), or set OMP_NUM_THREADS to the CPUs of a rank divided by 1 + num_workers.
    """
    ranks, threads = local_ranks(environ, gpu) or 1, environ.integer("OMP_NUM_THREADS") or 1
    cpus = host.need(host.cpus_allowed, "cpus_allowed")
    if environ.local_rank is not None and cpus < (host.cpus_online or cpus):
        ranks = 1  # this is one rank, bound to CPUs of its own
    if threads < 1 or ranks * threads <= cpus:
        return
    yield Finding(
        f"{ranks} rank{'s' * (ranks > 1)} with {threads} OpenMP thread{'s' * (threads > 1)} each on {cpus} "
        f"CPU{'s' * (cpus > 1)}: expected at least {ranks * threads} CPUs"
        + (f", or at most {cpus // ranks} thread{'s' * (cpus // ranks > 1)} a rank" if cpus >= ranks else ""),
        (
            Evidence("host.cpus_allowed", str(cpus), f"at least {ranks * threads}"),
            Evidence("environ.variables.OMP_NUM_THREADS", environ.get("OMP_NUM_THREADS") or "not set"),
        ),
        fix_command=f"export OMP_NUM_THREADS={cpus // ranks}" if threads > 1 and cpus >= ranks else None,
    )
