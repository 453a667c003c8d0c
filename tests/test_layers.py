"""The walls of the house: which room may import which, as one table and one walk over the imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "ddpdoctor"

ALLOWED: dict[str, set[str]] = {
    "findings": set(),
    "facts": {"facts"},
    "rules": {"facts", "findings", "rules"},
    "blame": {"findings", "facts"},
    "blame_of_logs": {"findings", "facts"},
    "doctor": {"blame", "blame_of_logs", "facts", "findings", "rules"},
    "render": {"findings", "render", "", "rules"},
    "collectors": {"facts", "collectors", "meeting", "own", "probe", ""},
    "meeting": {"facts", "meeting"},
    "probe": {"probe", "facts", "blame", "own", ""},
    "cli": {"cli", "collectors", "doctor", "facts", "findings", "meeting", "own", "render", "rules", "probe", ""},
    "own": set(),
    "__main__": {"cli", "own"},
    "": set(),
}
"""A room and the rooms that it may import; "" is the package itself (its version)."""

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
PURE = ("facts", "findings", "rules", "blame", "blame_of_logs", "doctor")


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
        assert target in ALLOWED[_room(path)], f"{_room(path)} may not import {name}"


@pytest.mark.parametrize("path", [p for p in _modules() if _room(p) in PURE], ids=lambda p: str(p.relative_to(PACKAGE)))
def test_pure_rooms_touch_no_machine(path: Path) -> None:
    touched = {name.split(".")[0] for name in _imports(path)} & TOUCHES_THE_MACHINE
    assert not touched


@pytest.mark.parametrize(
    ("module", "banned"),
    [
        ("ddpdoctor.cli.app", ("torch", "pynvml", "psutil", "ddpdoctor.rules.environ")),
        ("ddpdoctor.probe.supervisor", ("torch", "pynvml", "psutil", "rich", "typer", "asyncio")),
        ("ddpdoctor.doctor", ("torch", "pynvml", "psutil", "rich", "typer", "subprocess")),
    ],
)
def test_heavy_modules_stay_out(module: str, banned: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*[m for m in {banned!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.split() == []
