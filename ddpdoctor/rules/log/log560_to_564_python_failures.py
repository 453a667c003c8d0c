"""LOG560 to LOG564: what Python itself could not import, open, or call, each with a fix of its own."""

from __future__ import annotations

from collections.abc import Iterator

from ddpdoctor.facts.log import Log
from ddpdoctor.findings import CausalStage, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.log.log500_uncaught_exception import python_failures
from ddpdoctor.rules.log.python_failures import PythonFailure
from ddpdoctor.rules.log.signatures import ending

__all__: list[str] = []


@cause("LOG560", "python-module-missing", Severity.ERROR, stage=CausalStage.IMPORT)
def python_module_missing(log: Log) -> Iterator[Finding]:
    """A Python module is not installed for the Python that runs the job.

    ## Why it matters
    `ModuleNotFoundError: No module named 'yaml'`: the package was installed on another node or for another Python, or the folder
    of the project is not on the module path. torchrun's summary only shows `exitcode : 1`.

    ## Fix
    Install the package on every node with the Python that starts the ranks. For a module of the project, start in its folder or
    set PYTHONPATH=$PWD. The finding names the package, which is often called differently (`cv2` is `opencv-python-headless`).

    ## Example

        ModuleNotFoundError: No module named 'yaml'

        # before: installed on the login node only
        torchrun --nnodes 2 … train.py
        # after, on every node
        python -m pip install PyYAML

    ## Source
    Confirmed in https://github.com/NVIDIA/flownet2-pytorch/issues/142.
    """
    yield from python_failures(log, PythonFailure.MODULE_MISSING)


@cause("LOG561", "python-import-mismatch", Severity.ERROR, stage=CausalStage.IMPORT)
def python_import_mismatch(log: Log) -> Iterator[Finding]:
    """The installed version of a package does not have a name that the code imports.

    ## Why it matters
    `ImportError: cannot import name 'X' from 'transformers.utils'`: the package is installed, but the code was written for
    another version. A file of the job with the name of the package hides it in the same way.

    ## Fix
    Install the version that the importing code names in its requirements, on every node. Run `python -c "import PACKAGE;
    print(PACKAGE.__version__, PACKAGE.__file__)"` to see which one the ranks import.

    ## Example

        ImportError: cannot import name 'is_torch_greater_or_equal_than_1_13' from 'transformers.pytorch_utils'

        # before
        python -m pip install --upgrade transformers
        # after: the version that the project was written for
        python -m pip install 'transformers==4.47.0'

    ## Source
    Confirmed in https://github.com/NVlabs/hymba/issues/6 (4.47.0 instead of 4.48.1) and
    https://github.com/microsoft/LMOps/issues/176 (the transformers of the project).
    """
    yield from python_failures(log, PythonFailure.NAME_MISSING)


@cause("LOG562", "python-file-missing", Severity.ERROR, stage=CausalStage.DEATH)
def python_file_missing(log: Log) -> Iterator[Finding]:
    """A file that the script opens does not exist on the node of the rank.

    ## Why it matters
    `FileNotFoundError: [Errno 2] No such file or directory: 'data/train.json'`: a relative path starts in the folder of the
    launch, under Slurm in the folder of `sbatch`; node-local disks differ; or another rank has not written the file yet.

    ## Fix
    Use the absolute path of a file on a shared file system, and list it on every node: `srun --ntasks-per-node=1 ls
    -ld PATH` under Slurm, or `kubectl exec POD -- ls -ld PATH`. If a rank writes the file, let the others wait at a
    barrier before they read it.

    ## Example

        FileNotFoundError: [Errno 2] No such file or directory: 'data/train.json'

        # before
        torchrun --nproc-per-node 8 train.py --data data/train.json
        # after
        torchrun --nproc-per-node 8 train.py --data /shared/data/train.json
    """
    yield from python_failures(log, PythonFailure.FILE_MISSING)


@cause("LOG563", "python-permission-denied", Severity.ERROR, stage=CausalStage.DEATH)
def python_permission_denied(log: Log) -> Iterator[Finding]:
    """The user that runs the ranks may not open a file or create a folder.

    ## Why it matters
    `PermissionError: [Errno 13] Permission denied: '/.cache'`: in a container without a home directory, HOME is `/`, so that
    caches are created in `/`. On a shared cache, another user owns the lock files.

    ## Fix
    Point the path to a folder that the user owns. For a cache in `/.cache`, set HOME, or `XDG_CACHE_HOME=/tmp/cache`,
    `HF_HOME=/tmp/hf` and `TRITON_CACHE_DIR=/tmp/triton` on every rank.

    ## Example

        PermissionError: [Errno 13] Permission denied: '/.cache'

        # before
        docker run --user 1000 image torchrun train.py
        # after
        docker run --user 1000 --env XDG_CACHE_HOME=/tmp/cache --env HF_HOME=/tmp/hf image torchrun train.py

    ## Source
    Confirmed in https://github.com/opendatahub-io/ilab-on-ocp/pull/26 and https://github.com/jchengai/planTF/issues/27.
    """
    yield from python_failures(log, PythonFailure.PERMISSION_DENIED)


@cause(
    "LOG564",
    "python-api-changed",
    Severity.ERROR,
    stage=CausalStage.DEATH,
    signatures=(
        r"module '[\w.]+' has no attribute '",
        r"does not recognize this architecture",
        r"Tokenizer class \w+ does not exist or is not currently imported",
    ),
)
def python_api_changed(log: Log) -> Iterator[Finding]:
    """The code calls what the installed version of a package does not have.

    ## Why it matters
    `TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'` and `AttributeError: module 'torch.distributed' has
    no attribute 'init_process_group'`: the package is older or newer than the code, or it was built without that part.

    ## Fix
    Install the version that the project names in its requirements, on every node, or change the call: Lightning 2 has `devices=`
    in place of `gpus=`. torch for macOS and old torch for Windows have no torch.distributed.

    ## Example

        TypeError: Trainer.__init__() got an unexpected keyword argument 'gpus'

        # before
        trainer = Trainer(gpus=8)
        # after, with Lightning 2
        trainer = Trainer(devices=8)

    ## Source
    Confirmed in https://github.com/strath-ai/satellite-cloud-removal-dip/issues/3 and
    https://github.com/MhLiao/MaskTextSpotter/issues/55.
    """
    yield from ending(python_api_changed, log)
    yield from python_failures(log, PythonFailure.INTERFACE_DIFFERS)
