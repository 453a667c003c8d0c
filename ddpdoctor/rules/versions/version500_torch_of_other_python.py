"""VERSION500: a torch compiled for another version of Python."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.gaps import not_here
from ddpdoctor.facts.versions import Versions
from ddpdoctor.findings import Evidence, Finding, Severity
from ddpdoctor.rules import cause


@cause("VERSION500", "torch-of-other-python", Severity.ERROR, signatures=(r"No module named 'torch\._C'",))
def torch_of_other_python(versions: Versions) -> Iterator[Finding]:
    """The torch that would be imported was compiled for another version of Python.

    ## Why it matters
    The import fails with `No module named 'torch._C'`: PYTHONPATH or a copied folder makes this Python use the
    packages of another one.

    ## Fix
    Unset PYTHONPATH, or install torch for this Python.

    ## Example

        ModuleNotFoundError: No module named 'torch._C'

        # before
        export PYTHONPATH=/opt/python3.8/site-packages
        python3.11 train.py
        # after
        unset PYTHONPATH
        python3.11 train.py
    """
    if versions.torch_abi is None:
        not_here("no torch, or a build for every Python")
    own = "cpython-" + "".join(versions.python.split(".")[:2])
    if versions.torch_abi.rstrip("t") != own:
        yield Finding(
            f"torch in {versions.torch_path} is compiled for {versions.torch_abi}, but {versions.python_path} needs {own}",
            (Evidence("versions.torch_abi", versions.torch_abi, own),),
        )
