"""What a line would start on this machine: programs, environments, interpreters, modules and packages, in many tools' words."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cases import Case
from launches import LEGAL as LEGAL_LINES
from launches import WRONG as WRONG_LINES

from ddpdoctor.app.lint_lines import environ_of, rules_of
from ddpdoctor.app.request import Request
from ddpdoctor.collectors.launch import collect_launch
from ddpdoctor.collectors.startup import BUILTINS, collect_startup
from ddpdoctor.engine import judge
from ddpdoctor.facts.record import SCHEMA, Facts
from ddpdoctor.facts.startup import LookupResult, Startup
from ddpdoctor.findings import Finding
from ddpdoctor.system.machine import Machine

CODES = ("LAUNCH003", "LAUNCH520", "LAUNCH521", "LAUNCH522")
PROGRAMS = (
    *("srun", "mpirun", "docker", "singularity", "ssh", "uv", "poetry", "conda", "mamba", "pixi", "nohup", "numactl"),
    *("timeout", "env", "bash", "sudo", "taskset", "ray", "flux", "jsrun", "hatch"),
)
SHEBANG = f"#!{sys.executable}\n"
PYTHON = f'#!/bin/sh\nexec {sys.executable} "$@"\n'


class Site:
    """A machine with programs of its own: one environment on PATH, one of conda, and a project."""

    def __init__(self, folder: Path) -> None:
        self.bin, self.job = folder / "bin", folder / "job"
        self.conda = folder / "conda"
        for each in (self.bin, self.job, self.conda / "conda-meta", self.conda / "envs" / "train" / "bin"):
            each.mkdir(parents=True)
        for name in PROGRAMS:
            self.program(self.bin / name, "#!/bin/sh\n")
        for name in ("torchrun", "accelerate", "deepspeed"):
            self.program(self.bin / name, SHEBANG)
        for name in ("python", "python3"):
            self.program(self.bin / name, PYTHON)
        self.program(self.conda / "envs" / "train" / "bin" / "torchrun", SHEBANG)
        self.program(self.conda / "envs" / "train" / "bin" / "python", PYTHON)
        self.write("train.py", "import os\nimport torch\n")
        self.write("pkg/__init__.py", "")
        self.write("pkg/train.py", "import os\n")
        self.program(self.write("run.sh", "#!/bin/sh\n"), "#!/bin/sh\n")
        self.environ = {"PATH": f"{self.bin}", "HOME": f"{folder}", "CONDA_EXE": f"{self.conda}/bin/conda"}

    @staticmethod
    def program(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def write(self, name: str, text: str) -> Path:
        path = self.job / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def startup(self, line: str) -> tuple[Startup, list[Finding]]:
        machine = Machine(environ=self.environ)
        launch = collect_launch(machine, [line] if " " in line else line.split(), torch="2.13", cwd=str(self.job))
        startup = collect_startup(launch.lines[0], machine)
        facts = Facts(SCHEMA, "", "here", environ=environ_of(launch), launch=launch, startup=startup)
        outcome = judge(facts, [rule for rule in rules_of(Request()) if rule.code in CODES])
        assert not outcome.crashed
        return startup, outcome.findings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site"))


LEGAL = [
    "torchrun --nproc_per_node=2 train.py",
    "python train.py",
    "python3 -u train.py --lr 1",
    "python -m torch.distributed.run --nproc_per_node=2 train.py",
    "python -u -m torch.distributed.run train.py",
    "torchrun -m pkg.train",
    "python -m pkg.train",
    "accelerate launch --num_processes 2 train.py",
    "deepspeed --num_gpus 2 train.py",
    "nohup torchrun train.py",
    "env OMP_NUM_THREADS=1 torchrun train.py",
    "time torchrun train.py",
    "exec torchrun train.py",
    "numactl -N 0 torchrun train.py",
    "timeout 60 torchrun train.py",
    "OMP_NUM_THREADS=2 torchrun train.py",
    "conda run -n train torchrun train.py",
    "conda run --no-capture-output -n train python train.py",
    "mamba run -n train torchrun train.py",
    "srun bash -c 'torchrun train.py'",
    "mpirun -np 2 python train.py",
    "bash -c 'ulimit -l unlimited && torchrun train.py'",
    "./run.sh",
    "bash run.sh",
    "torchrun --no-python ./run.sh",
]
ELSEWHERE = [
    "docker run --gpus all image torchrun /data/nothing.py",
    "docker run image python -m no.such",
    "singularity exec --nv image.sif torchrun missing.py",
    "ssh node1 torchrun train.py",
    "source /opt/venv/bin/activate && torchrun train.py",
    "module load pytorch && torchrn_of_module train.py",
    "bash -lc 'no_such_launcher train.py'",
    "PATH=$HOME/bin:$PATH no_such_launcher train.py",
    "ray job submit -- python train.py",
    "sudo no_such_program train.py",
    "hatch run train",
    "srun --container-image=image torchrun missing_program.py",
    "uv run train.py",
    "$LAUNCHER train.py",
]
WRONG = [
    ("torchrn train.py", "LAUNCH520", "torchrun train.py"),
    ("nohup torchrn train.py", "LAUNCH520", "nohup torchrun train.py"),
    ("pyhton train.py", "LAUNCH520", "python train.py"),
    ("./mising.sh", "LAUNCH520", None),
    ("bash runn.sh", "LAUNCH520", "bash run.sh"),
    ("/nonexistent/torchrun train.py", "LAUNCH520", None),
    ("colossalai run train.py", "LAUNCH520", None),
    ("composer -n 2 train.py", "LAUNCH520", None),
    ("horovodrun -np 2 python train.py", "LAUNCH520", None),
    ("torchx run dist.ddp --script train.py", "LAUNCH520", None),
    ("apptainer exec image.sif torchrun train.py", "LAUNCH520", None),
    ("micromamba run -n train torchrun train.py", "LAUNCH520", None),
    ("pdm run torchrun train.py", "LAUNCH520", None),
    ("env FOO=1 no_such_launcher train.py", "LAUNCH520", None),
    ("bash -c 'export FOO=1; torchrn train.py'", "LAUNCH520", None),
    ("conda run -n trian torchrun train.py", "LAUNCH521", "conda run -n train torchrun train.py"),
    ("conda run -p /nonexistent/env torchrun train.py", "LAUNCH521", None),
    ("conda run -n train accelerat launch train.py", "LAUNCH520", None),
    ("poetry run torchrun train.py", "LAUNCH521", None),
    ("pixi run torchrun train.py", "LAUNCH521", None),
    ("python -m pkg.trian", "LAUNCH003", "python -m pkg.train"),
    ("torchrun -m pkg.trian", "LAUNCH003", "torchrun -m pkg.train"),
    ("python -m pgk.train", "LAUNCH003", "python -m pkg.train"),
    ("python -m accelerate.commands.launch train.py", "LAUNCH522", None),
    ("python -m deepspeed.launcher.runner train.py", "LAUNCH522", None),
    ("srun no_such_launcher train.py", "LAUNCH520", None),
]


@pytest.mark.parametrize("case", [*LEGAL_LINES, *WRONG_LINES], ids=lambda case: case.id)
def test_every_known_line_can_be_followed_on_a_machine_without_programs(case: Case, tmp_path: Path) -> None:
    machine = Machine(environ={"PATH": str(tmp_path)})
    line = collect_launch(machine, None, [case.text], torch="2.13", cwd=str(tmp_path)).lines[0]
    startup = collect_startup(line, machine)
    assert startup.python is None or startup.python.startswith("/")
    assert all(each.layer < len(line.layers) for each in startup.lookups)
    if line.layers and not any(layer.typos for layer in line.layers):
        assert startup.lookups or line.layers[0].name in BUILTINS


def test_there_are_enough_lines() -> None:
    assert len(LEGAL) + len(ELSEWHERE) + len(WRONG) >= 60


@pytest.mark.torch
@pytest.mark.parametrize("line", LEGAL)
def test_a_line_whose_programs_are_here_is_silent(line: str, site: Site) -> None:
    startup, findings = site.startup(line)
    assert not findings, [each.message for each in findings]
    assert startup.lookups
    assert all(each.result is LookupResult.FOUND for each in startup.lookups)


@pytest.mark.parametrize("line", ELSEWHERE)
def test_what_cannot_be_seen_from_here_is_unknown_and_silent(line: str, site: Site) -> None:
    startup, findings = site.startup(line)
    assert not findings, [each.message for each in findings]
    assert startup.unknown or startup.python is None


@pytest.mark.torch
@pytest.mark.parametrize(("line", "code", "command"), WRONG)
def test_a_line_that_cannot_start_is_told_with_the_nearest_name(
    line: str, code: str, command: str | None, site: Site
) -> None:
    _, findings = site.startup(line)
    assert [each.code for each in findings] == [code], [each.message for each in findings]
    if command is not None:
        assert findings[0].fix_command == command


@pytest.mark.torch
@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import cv9\nexcept ImportError:\n    cv9 = None\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import cv9\n",
        "def main():\n    import cv9\n",
        "import sys\nsys.path.insert(0, '/opt/vendored')\nimport cv9\n",
        "import beside\n",
        "import spread.inner\n",
        "import adds_paths\nimport cv9\n",
        "import sys\nsys.exit(0)\nimport cv9\n",
        "from . import cv9\n",
        "import os.path, numpy as np\nfrom torch.distributed import init_process_group\n",
        "if flag:\n    import cv9\n",
        "class A:\n    import cv9\n",
        "import subprocess\nsubprocess.run(['pip', 'install', 'cv9'])\nimport cv9\n",
    ],
)
def test_an_import_that_may_succeed_is_silent(text: str, site: Site) -> None:
    site.write("beside.py", "")
    site.write("spread/inner.py", "")
    site.write("adds_paths.py", "import sys\nsys.path.append('/opt/x')\n")
    site.write("train_other.py", text)
    assert not site.startup("torchrun train_other.py")[1]


@pytest.mark.torch
def test_a_missing_package_is_told_at_its_import_with_what_pip_installs(site: Site) -> None:
    site.write("train_other.py", "import os\nimport skimage.io\nfrom nowhere_known import x\n\nimport os\n")
    first, second = site.startup("torchrun train_other.py")[1]
    assert (first.code, first.where.line, first.where.column) == ("LAUNCH522", 2, 8)
    assert first.fix_command is not None
    assert first.fix_command.endswith("-m pip install scikit-image")
    assert (second.where.line, second.fix_command) == (3, None)
    assert "pypi.org" in second.fix


@pytest.mark.torch
def test_an_import_in_the_main_guard_counts(site: Site) -> None:
    site.write("train_other.py", 'if __name__ == "__main__":\n    import cv9\n')
    assert [each.code for each in site.startup("python train_other.py")[1]] == ["LAUNCH522"]


@pytest.mark.torch
def test_a_package_beside_the_project_is_put_on_the_search_path(site: Site) -> None:
    site.write("src/ourmodels/__init__.py", "")
    site.write("tools/train.py", "import ourmodels\n")
    (found,) = site.startup("torchrun tools/train.py")[1]
    assert found.fix_command == f"export PYTHONPATH={site.job}/src:$PYTHONPATH"
    assert not site.startup(f"PYTHONPATH={site.job}/src torchrun tools/train.py")[1]


@pytest.mark.torch
def test_modules_of_pth_files_and_editable_installs_are_found(tmp_path: Path, site: Site) -> None:
    packages = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked_package.py").write_text("")
    (packages / "linked.pth").write_text(f"{tmp_path / 'elsewhere'}\n")
    finder = f"""
import sys, importlib.util
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "editable_package":
            return importlib.util.spec_from_file_location(name, {str(tmp_path / "e.py")!r})
sys.meta_path.append(Finder)
"""
    (packages / "__editable___finder.py").write_text(finder)
    (packages / "__editable__.pth").write_text("import __editable___finder\n")
    (tmp_path / "bin").mkdir()
    base = os.path.realpath(sys.executable)
    (tmp_path / "pyvenv.cfg").write_text(f"home = {os.path.dirname(base)}\n")
    (tmp_path / "bin" / "python").symlink_to(base)
    site.write("train_other.py", "import linked_package, editable_package\nimport unlinked_package\n")
    startup, findings = site.startup(f"{tmp_path}/bin/python train_other.py")
    assert [each.module for each in startup.imports] == ["unlinked_package"]
    assert [each.code for each in findings] == ["LAUNCH522"]
    assert startup.has_torch is False


@pytest.mark.torch
def test_one_child_process_answers_for_everything(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpdoctor.system import process

    asked: list[object] = []
    run = process.run
    monkeypatch.setattr(process, "run", lambda *words, **more: (asked.append(words), run(*words, **more))[1])
    site.write("train_other.py", "".join(f"import module_{i}\n" for i in range(30)))
    startup, _ = site.startup("torchrun train_other.py")
    assert len(startup.imports) == 30
    assert len(asked) == 1


def test_python_is_called_python3_on_some_machines(tmp_path: Path) -> None:
    site = Site(tmp_path)
    (site.bin / "python").unlink()
    (found,) = site.startup("python train.py")[1]
    assert found.fix_command == "python3 train.py"


def test_a_uv_project_may_still_install_what_it_names(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.write("pyproject.toml", '[project]\nname = "x"\ndependencies = ["deepspeed", "opencv-python"]\n')
    (site.job / ".venv" / "bin").mkdir(parents=True)
    (site.bin / "deepspeed").unlink()
    startup, findings = site.startup("uv run deepspeed train.py")
    assert not findings
    assert any("may install deepspeed" in reason for reason in startup.unknown)
    assert [each.code for each in site.startup("uv run composer train.py")[1]] == ["LAUNCH520"]
