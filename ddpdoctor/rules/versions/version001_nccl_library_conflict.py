"""VERSION001: more than one NCCL library."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.versions import NcclLibrary, Versions, numbers
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause

SWITCHES = ("LD_PRELOAD", "LD_LIBRARY_PATH")
"""Variables with which a user selects another library; a newer one may be intended."""


@cause("VERSION001", "nccl-library-conflict", Severity.ERROR, signatures=(r"undefined symbol: nccl\w+",))
def nccl_library_conflict(versions: Versions) -> Iterator[Finding]:
    """torch would load a different NCCL library than the one that it was built for.

    ## Why it matters
    An older library lacks functions that torch calls: `import torch` itself fails with `undefined symbol:
    ncclCommRegister`. This usually starts after an unrelated package was installed or a module was loaded, while
    pip still lists the right version as well.

    ## Fix
    Unset LD_PRELOAD or remove the folder from LD_LIBRARY_PATH, uninstall the other nvidia-nccl package, and
    reinstall torch's own.

    ## Example

        ImportError: …/libtorch_cuda.so: undefined symbol: ncclCommRegister

        # before
        export LD_LIBRARY_PATH=/opt/nccl-2.16/lib
        python -c "import torch"
        # after
        unset LD_LIBRARY_PATH
        python -c "import torch"
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
        f"torch {versions.torch} needs NCCL {required}, but NCCL {loaded.version} would be loaded from {loaded.path}"
        f" ({loaded.source})",
        (Evidence("versions.nccl_libraries[0].version", loaded.version, required),),
        fix_command=f"unset {loaded.source}" if loaded.source in SWITCHES else None,
        severity=None if is_older else Severity.NOTE,
    )


def _own(versions: Versions) -> str | None:
    """The version of the library that torch brings, if no metadata pins one."""
    return next((library.version for library in versions.nccl_libraries if _is_own(library)), None)


def _is_own(library: NcclLibrary) -> bool:
    return library.source in ("RPATH", "RUNPATH", "wheel")


def _two_packages(versions: Versions) -> Iterator[Finding]:
    """nvidia-nccl-cu11, -cu12, and -cu13 all write the same file: the last one installed wins."""
    if len(versions.nccl_packages) < 2:
        return
    own = next((library.version for library in versions.nccl_libraries if _is_own(library)), None)
    is_right = own is not None and own == versions.nccl_required
    names = " and ".join(f"{package.name} {package.version}" for package in versions.nccl_packages)
    yield Finding(
        f"{names} overwrite each other; torch {versions.torch} needs only one",
        (Evidence("versions.nccl_packages", names, f"one, for CUDA {versions.torch_cuda}"),),
        fix=f"Uninstall both, then reinstall the one for CUDA {versions.torch_cuda}.",
        severity=Severity.WARNING if is_right else None,
    )
