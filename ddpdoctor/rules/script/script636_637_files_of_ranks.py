"""SCRIPT636 and SCRIPT637: files and folders that one rank makes or removes while others use them."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.histories import history_findings
from ddpdoctor.scripts.histories.record import MistakeKind


@cause("SCRIPT636", "file-removed-while-read", Severity.ERROR)
def file_removed_while_read(script: Script) -> Iterator[Finding]:
    """One rank removes a file that the other ranks read, without a barrier in between.

    ## Why it matters
    Rank 0 may remove the file before another rank has opened it: `FileNotFoundError` on some ranks, in some runs.

    ## Fix
    Call `dist.barrier()` before the file is removed.

    ## Example
        # before
        state = torch.load(path)
        if rank == 0:
            os.remove(path)

        # after
        state = torch.load(path)
        dist.barrier()
        if rank == 0:
            os.remove(path)
    """
    yield from history_findings(script, MistakeKind.REMOVED_WHILE_READ)


@cause("SCRIPT637", "folder-used-before-created", Severity.ERROR)
def folder_used_before_created(script: Script) -> Iterator[Finding]:
    """All ranks write into a folder that only one rank creates, without a barrier in between.

    ## Why it matters
    A rank may write before the folder exists: `RuntimeError: Parent directory ... does not exist`, in some runs.

    ## Fix
    Call `os.makedirs(folder, exist_ok=True)` on all ranks, or a barrier after it.

    ## Example
        # before
        if rank == 0:
            os.makedirs(folder)
        torch.save(state, os.path.join(folder, f"{rank}.pt"))

        # after
        os.makedirs(folder, exist_ok=True)
        torch.save(state, os.path.join(folder, f"{rank}.pt"))
    """
    yield from history_findings(script, MistakeKind.FOLDER_MISSING)
