"""VERSION001: more than one NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.versions import NcclLibrary, Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

SWITCHES = ("LD_PRELOAD", "LD_LIBRARY_PATH")
"""Ways of taking another library that somebody chose; a newer one may be on purpose."""


@cause("VERSION001", "nccl-library-conflict", Severity.ERROR, signatures=(r"undefined symbol: nccl\w+",))
def nccl_library_conflict(versions: Versions) -> Iterator[Finding]:
    """Another NCCL library than the one that torch was built for would be loaded.

    ## Why it matters
    An older library lacks functions that torch calls: `import torch` itself fails with `undefined symbol:
    ncclCommRegister`, usually after an unrelated package was installed or a module loaded, while pip still lists the
    right version as well.

    ## Fix
    Unset LD_PRELOAD or the folder in LD_LIBRARY_PATH, uninstall the other nvidia-nccl package, and reinstall torch's own.
    """
    if versions.torch_cuda is None:
        not_here("no torch with CUDA")
    yield from _two_packages(versions)
    loaded, required = versions.nccl, versions.nccl_required or _own(versions)
    if loaded is None or loaded.version is None or required is None or loaded.version == required:
        return
    is_older = numbers(loaded.version) < numbers(required)
    if loaded.source not in SWITCHES and not is_older:
        return
    yield Finding(
        f"NCCL {loaded.version} would be loaded from {loaded.path} ({loaded.source}): expected {required}, as torch "
        f"{versions.torch} was built for",
        (Evidence("versions.nccl_libraries[0].version", loaded.version, required),),
        fix_command=f"unset {loaded.source}" if loaded.source in SWITCHES else None,
        severity=None if is_older else Severity.NOTE,
    )


def _own(versions: Versions) -> str | None:
    """The version of the library that comes with torch, where no metadata pins one."""
    return next((each.version for each in versions.nccl_libraries if _is_own(each)), None)


def _is_own(library: NcclLibrary) -> bool:
    return library.source in ("RPATH", "RUNPATH", "wheel")


def _two_packages(versions: Versions) -> Iterator[Finding]:
    """nvidia-nccl-cu11, -cu12 and -cu13 all write the same file: the last one installed has won."""
    if len(versions.nccl_packages) < 2:
        return
    own = next((each.version for each in versions.nccl_libraries if _is_own(each)), None)
    is_right = own is not None and own == versions.nccl_required
    names = " and ".join(f"{package.name} {package.version}" for package in versions.nccl_packages)
    yield Finding(
        f"{names} are installed over each other: expected only the one of torch {versions.torch}",
        (Evidence("versions.nccl_packages", names, f"one, for CUDA {versions.torch_cuda}"),),
        fix=f"Uninstall both, then reinstall the one for CUDA {versions.torch_cuda}.",
        severity=Severity.WARNING if is_right else None,
    )
