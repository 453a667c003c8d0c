"""HOST004: the limit of open files."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Host, world_ranks
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.probe import Kind, Probe
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.observation_findings import observed, only_probed

LEAST = 20
"""Two Gloo ranks under torchrun fail with 24 open files and run with 28 (measured with torch 2.13)."""
COMFORTABLE = 4096
"""What DataLoader workers of several ranks may use."""


@cause(
    "HOST004",
    "open-files-limit-low",
    Severity.ERROR,
    signatures=(
        "received 0 items of ancdata",
        "Too many open files",
        "rv < 0: too many open files",
        r"unable to open shared memory object <[^>\n]{1,200}> in read-write mode",
    ),
)
def open_files_limit_low(
    host: Host | None = None,
    environ: Environ | None = None,
    gpu: Gpu | None = None,
    probe: Probe | None = None,
    job: Job | None = None,
) -> Iterator[Finding]:
    """The limit of open files is too low for this job.

    ## Why it matters
    Each rank keeps sockets to its peers, the store's host two or more per rank, and each batch of a DataLoader worker
    is a file. At the limit torch fails with `received 0 items of ancdata` or `Too many open files`; if the store's
    host reaches it, only its clients print an error, `Connection reset by peer`, again and again.

    ## Fix
    Raise the limit where the job is started: `ulimit -n 65536` in the script, LimitNOFILE for a daemon, or `docker
    run --ulimit nofile=65536:65536`.

    ## Example

        RuntimeError: received 0 items of ancdata

        # before, in the batch script
        torchrun --nproc-per-node 8 train.py
        # after
        ulimit -n 65536
        torchrun --nproc-per-node 8 train.py

    ## Source
    Confirmed in https://github.com/pytorch/pytorch/issues/973 (a higher RLIMIT_NOFILE).
    """
    if probe is not None:
        yield from observed(probe.seen(Kind.OUT_OF_FILES), expected="a few for each rank of the job")
    if only_probed(probe, host, environ):
        return
    assert host is not None
    assert environ is not None
    limit = host.need(host.limits.open_files, "limits")
    world = world_ranks(environ, gpu, job)
    need = 64 + 32 * world
    if limit.is_below(LEAST + 4 * world):
        severity = Severity.ERROR
    elif limit.is_below(need):
        severity = Severity.WARNING
    elif gpu is not None and len(gpu.devices) > 1 and limit.is_below(COMFORTABLE):
        severity, need = Severity.NOTE, COMFORTABLE
    else:
        return
    wanted = 65_536 if limit.hard < 0 else min(65_536, limit.hard)
    can_raise = wanted >= need
    by_root = "root raises it with LimitNOFILE, limits.conf or docker run --ulimit nofile=65536:65536."
    if not can_raise:
        fix = f"The hard limit is {limit.hard}: {by_root}"
    elif wanted < 65_536:
        fix = f"Run `ulimit -n {wanted}` where the job is started. That is the hard limit; {by_root}"
    else:
        fix = ""
    yield Finding(
        f"the open files limit is {limit.soft}; {world} rank{'s need' if world > 1 else ' needs'} {need} or more",
        (Evidence("host.limits.open_files.soft", str(limit.soft), f"at least {need}"),),
        fix=fix,
        fix_command=f"ulimit -n {wanted}" if can_raise else None,
        severity=severity,
    )
