"""The collector of `versions` over small environments of packages: nothing is imported, nothing is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from elf_files import write_elf

from ddpdoctor.collectors import Missing
from ddpdoctor.collectors.interpreter import Interpreter, environment_of, script_python
from ddpdoctor.collectors.versions import collect
from ddpdoctor.facts.codec import decode, encode
from ddpdoctor.facts.versions import NcclLibrary, Package, Versions
from ddpdoctor.system.machine import Deadline, Machine, Root, this_machine

CUDA = "__version__ = '2.6.0+cu124'\ndebug = False\ncuda: Optional[str] = '12.4'\nhip: Optional[str] = None\n"
ARCHS = b"\0text\0sm_80 sm_86 sm_90 compute_90\0"


def _write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def _environment(site: Path, *, tag: str = "rpath", pin: str = "2.21.5") -> Interpreter:
    """A CUDA wheel of torch with NCCL in its own package, as pip installs it."""
    _write(site / "torch" / "__init__.py", "raise ImportError('torch must not be imported')")
    _write(site / "torch" / "version.py", CUDA)
    _write(site / "torch" / "_C.cpython-311-x86_64-linux-gnu.so")
    pins = f'Requires-Dist: nvidia-nccl-cu12 (=={pin}) ; platform_system == "Linux"\n'
    _write(site / "torch-2.6.0+cu124.dist-info" / "METADATA", pins)
    lib = site / "torch" / "lib"
    write_elf(lib / "libtorch_cuda.so", needed="libnccl.so.2", **{tag: "$ORIGIN/../../nvidia/nccl/lib"})
    write_elf(lib / "libtorch_python.so", rodata=ARCHS)
    write_elf(site / "nvidia" / "nccl" / "lib" / "libnccl.so.2", rodata=b"\0NCCL version 2.21.5+cuda12.4\0")
    _write(site / "nvidia_nccl_cu12-2.21.5.dist-info" / "METADATA")
    _write(site / "numpy-2.1.3.dist-info" / "METADATA")
    return Interpreter("/env/bin/python", "3.11.7", "cpython-311", (str(site),))


def _machine(base: Path, **environ: str) -> Machine:
    return Machine(Root(str(base / "root")), {"PATH": str(base / "bin"), **environ}, Deadline(10))


def test_the_texts_of_the_loaded_library_say_which_variables_it_reads(tmp_path: Path) -> None:
    site = _environment(tmp_path / "site")
    texts = b"\0NCCL version 2.32.3+cuda13.4\0NCCL_RUN_RAS_DIAGNOSTICS\0NCCL_IB_TIMEOUT\0"
    write_elf(tmp_path / "site" / "nvidia" / "nccl" / "lib" / "libnccl.so.2", rodata=texts)
    given = {"NCCL_RUN_RAS_DIAGNOSTICS": "1", "NCCL_IB_TIME": "22", "NCCL_MAGIC": "1", "PATH": "/bin"}
    found = collect(_machine(tmp_path, **given), site)
    assert found.nccl is not None
    assert (found.nccl.version, found.nccl.reads) == ("2.32.3", ("NCCL_RUN_RAS_DIAGNOSTICS",))


def test_a_wheel_with_cuda_is_read_without_importing_it(tmp_path: Path) -> None:
    found = collect(_machine(tmp_path), _environment(tmp_path / "site"))
    assert (found.torch, found.build, found.torch_abi, found.numpy) == (
        "2.6.0+cu124",
        "CUDA 12.4",
        "cpython-311",
        "2.1.3",
    )
    assert found.torch_archs == ("sm_80", "sm_86", "sm_90", "compute_90")
    assert (found.nccl_is_static, found.nccl_required) == (False, "2.21.5")
    assert found.nccl_packages == (Package("nvidia-nccl-cu12", "2.21.5"),)
    assert found.nccl == NcclLibrary(str(tmp_path / "site/nvidia/nccl/lib/libnccl.so.2"), "RPATH", "2.21.5")
    assert decode(Versions, encode(found)) == found


@pytest.mark.parametrize(("tag", "winner"), [("rpath", "RPATH"), ("runpath", "LD_LIBRARY_PATH")])
def test_ld_library_path_beats_a_runpath_and_not_an_rpath(tmp_path: Path, tag: str, winner: str) -> None:
    write_elf(tmp_path / "root" / "opt" / "nccl" / "libnccl.so.2", rodata=b"\0NCCL version 2.16.2\0")
    machine = _machine(tmp_path, LD_LIBRARY_PATH="/opt/none:/opt/nccl")
    found = collect(machine, _environment(tmp_path / "site", tag=tag))
    assert found.nccl is not None
    assert found.nccl.source == winner
    assert {library.version for library in found.nccl_libraries} == {"2.21.5", "2.16.2"}


def test_a_preloaded_library_beats_all_others(tmp_path: Path) -> None:
    write_elf(tmp_path / "root" / "opt" / "libnccl.so.2.23.4")
    found = collect(_machine(tmp_path, LD_PRELOAD="/lib/x.so /opt/libnccl.so.2.23.4"), _environment(tmp_path / "site"))
    assert found.nccl is not None
    assert (found.nccl.source, found.nccl.version) == ("LD_PRELOAD", "2.23.4")


def test_nccl_inside_torch_is_no_library_to_load(tmp_path: Path) -> None:
    interpreter = _environment(tmp_path / "site")
    write_elf(tmp_path / "site" / "torch" / "lib" / "libtorch_cuda.so", needed="libcudart.so.12")
    found = collect(_machine(tmp_path), interpreter)
    assert found.nccl_is_static is True
    assert found.nccl is None


def test_a_broken_library_is_a_gap(tmp_path: Path) -> None:
    interpreter = _environment(tmp_path / "site")
    (tmp_path / "site" / "torch" / "lib" / "libtorch_cuda.so").write_bytes(b"")
    found = collect(_machine(tmp_path), interpreter)
    assert found.nccl_is_static is None
    assert found.gap("nccl_is_static")


def test_no_torch_is_a_fact(tmp_path: Path) -> None:
    found = collect(
        _machine(tmp_path), Interpreter("/usr/bin/python3", "3.12.3", "cpython-312", (str(tmp_path), "/none.zip"))
    )
    assert (found.torch, found.torch_path, found.build, found.has_nccl) == (None, None, "", None)


def test_the_first_torch_on_the_path_hides_the_others(tmp_path: Path) -> None:
    first, second = _environment(tmp_path / "user"), _environment(tmp_path / "site")
    _write(tmp_path / "user" / "torch" / "version.py", "__version__ = '2.1.0'\ncuda = None\n")
    both = Interpreter(first.path, first.version, first.tag, (*first.search_path, *second.search_path))
    assert [place.version for place in collect(_machine(tmp_path), both).torches] == ["2.1.0", "2.6.0+cu124"]


@pytest.mark.parametrize(
    "text", ["", "__version__ = (", "__version__ = 1 + 1\n", "\0", "import os\n__version__: str\n"]
)
def test_a_strange_version_file_is_a_gap(tmp_path: Path, text: str) -> None:
    interpreter = _environment(tmp_path / "site")
    _write(tmp_path / "site" / "torch" / "version.py", text)
    found = collect(_machine(tmp_path), interpreter)
    assert found.torch is None
    assert found.gap("torch")


def test_the_compat_folder_of_an_image_is_seen(tmp_path: Path) -> None:
    compat = tmp_path / "root" / "usr" / "local" / "cuda" / "compat"
    _write(compat / "libcuda.so.560.35.03")
    (compat / "libcuda.so.1").symlink_to("libcuda.so.560.35.03")
    machine = _machine(tmp_path, LD_LIBRARY_PATH="/usr/local/cuda/compat")
    found = collect(machine, Interpreter("/p", "3.11.7", "cpython-311", ()))
    assert (found.libcuda_version, found.libcuda_is_compat) == ("560.35.03", True)


def test_the_loader_cache_leads_to_system_libraries(tmp_path: Path) -> None:
    _write(tmp_path / "root" / "usr" / "lib64" / "nv" / "libcuda.so.1")
    _write(
        tmp_path / "root" / "etc" / "ld.so.cache", "glibc-ld.so.cache1.1\0libcuda.so.1\0/usr/lib64/nv/libcuda.so.1\0"
    )
    found = collect(_machine(tmp_path), Interpreter("/p", "3.11.7", "cpython-311", ()))
    assert found.libcuda_path == str(tmp_path / "root/usr/lib64/nv/libcuda.so.1")


def test_a_python_that_cannot_be_started_is_a_missing_section(tmp_path: Path) -> None:
    with pytest.raises(Missing, match="/none/python"):
        collect(Machine(python="/none/python", deadline=Deadline(5)))


def test_another_python_answers_for_itself() -> None:
    here = this_machine(20)
    found = collect(Machine(here.root, here.environ, here.deadline, str(Path(sys.executable).resolve())))
    assert found.python.startswith("3.")


def test_torch_stays_out_of_the_process() -> None:
    code = (
        "import sys; from ddpdoctor.system.machine import this_machine; "
        "from ddpdoctor.collectors.versions import collect; collect(this_machine(20)); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("text", "python"),
    [
        ("#!/env/bin/python3.11\n", "/env/bin/python3.11"),
        ("#!/bin/sh\n'''exec' \"/a/long/env/bin/python\" \"$0\" \"$@\"\n' '''\n", "/a/long/env/bin/python"),
        ("#!/usr/bin/env bash\nexec pyenv\n", None),
        ("\x7fELF", None),
        ("", None),
    ],
)
def test_the_python_of_a_script_stands_in_its_first_line(tmp_path: Path, text: str, python: str | None) -> None:
    assert script_python(str(_write(tmp_path / "torchrun", text)), "/usr/bin") == python


def test_two_virtual_environments_of_one_python_are_two_environments(tmp_path: Path) -> None:
    for name in ("a", "b"):
        _write(tmp_path / name / "pyvenv.cfg")
        (tmp_path / name / "bin").mkdir()
        (tmp_path / name / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    a, b = (environment_of(str(tmp_path / name / "bin" / "python")) for name in ("a", "b"))
    assert a != b
    assert environment_of(str(_write(tmp_path / "shim", "#!/bin/sh\n"))) is None
