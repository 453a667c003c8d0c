"""Layering: which package may import which, as one table and one walk over the imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ddpdoctor"

ORDER = (
    ("__main__",),
    ("cli",),
    ("app",),
    ("render", "engine"),
    ("collectors",),
    ("multinode", "probe"),
    ("causality",),
    ("rules",),
    ("scripts",),
    ("launch",),
    ("logs", "dumps"),
    ("network", "privacy"),
    ("system", "facts", "findings"),
    ("",),
)
"""The packages from the top down: each may import itself and what stands below it. "" is the package itself (its version)."""

NEVER = {
    "render": {"facts", "collectors", "probe", "multinode", "engine"},
    "engine": {"collectors", "probe", "multinode", "render"},
    "rules": {"network", "system"},
    "causality": {"rules", "scripts", "launch", "dumps", "network", "system"},
    "facts": {"findings", "system"},
    "findings": {"facts", "system"},
    "scripts": {"findings", "system", "network"},
    "logs": {"findings", "system", "network"},
    "dumps": {"findings", "system", "network"},
    "launch": {"findings", "network"},
}
"""What would be below, and is not to be imported all the same."""

TOUCHES_THE_MACHINE = {
    "os",
    "subprocess",
    "socket",
    "psutil",
    "pynvml",
    "torch",
    "ctypes",
    "pathlib",
    "shutil",
    "signal",
}
PURE = ("facts", "findings", "rules", "causality", "engine", "scripts", "logs", "dumps", "privacy")


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _room(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py") if first != "__init__.py" else ""


def _imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [node.module or ""]
            if node.module == "ddpdoctor":
                found += [f"ddpdoctor.{alias.name}" for alias in node.names if not alias.name.startswith("__")]
    return found


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    for name in _imports(path):
        if name.split(".")[0] != "ddpdoctor":
            continue
        target = name.split(".")[1] if "." in name else ""
        assert _may(_room(path), target), f"{_room(path)} may not import {name}"


def _may(importer: str, imported: str) -> bool:
    level = {name: number for number, names in enumerate(ORDER) for name in names}
    if importer == imported:
        return True
    return level[importer] < level[imported] and imported not in NEVER.get(importer, set())


@pytest.mark.parametrize("path", [p for p in _modules() if _room(p) in PURE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_pure_rooms_touch_no_machine(path: Path) -> None:
    touched = {name.split(".")[0] for name in _imports(path)} & TOUCHES_THE_MACHINE
    assert not touched


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("ddpdoctor.cli.app", ("torch", "pynvml", "psutil", "ddpdoctor.rules.environ")),
        ("ddpdoctor.probe.supervisor", ("torch", "pynvml", "psutil", "rich", "typer", "asyncio")),
        ("ddpdoctor.engine", ("torch", "pynvml", "psutil", "rich", "typer", "subprocess")),
    ],
)
def test_heavy_modules_stay_out(module: str, banned: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[m for m in {banned!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.split() == []


_CODE = re.compile(r"(ENV|LAUNCH|HOST|NET|GPU|TOPO|VERSION|SCRIPT|PROBE|LOG)\d{3}")


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_codes_stand_only_where_causes_are_declared(path: Path) -> None:
    """What follows from what, and what a cause is about, is said by `@cause`: no table of codes stands anywhere else."""
    tree = ast.parse(path.read_text())
    declared = {
        id(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cause"
        for each in ast.walk(node)
    }
    literals = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in declared]
    found = [
        f"line {node.lineno}: {node.value}"
        for node in literals
        if isinstance(node.value, str) and _CODE.fullmatch(node.value)
    ]
    assert found == []
