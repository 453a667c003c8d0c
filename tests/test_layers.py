"""Layering: which package may import which, as one table and one walk over the imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Set
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
    ("multinode", "probe", "rehearsal"),
    ("causality",),
    ("rules",),
    ("scripts",),
    ("launch",),
    ("logs", "dumps", "sequences", "tool_output"),
    ("network", "privacy"),
    ("system", "facts", "findings"),
    ("examined",),
    ("wording", "light_dataclass", "late_pattern"),
    ("",),
)
"""The packages from the top down: each may import itself and what is below it. "" is the package itself (its version)."""

NEVER = {
    "render": {"facts", "collectors", "probe", "multinode", "rehearsal", "engine"},
    "engine": {"collectors", "probe", "multinode", "render"},
    "rules": {"network", "system"},
    "causality": {"rules", "scripts", "launch", "dumps", "network", "system"},
    "facts": {"findings", "system"},
    "findings": {"facts", "system"},
    "scripts": {"findings", "system", "network"},
    "logs": {"findings", "system", "network"},
    "dumps": {"findings", "system", "network"},
    "sequences": {"findings", "system", "network", "privacy"},
    "tool_output": {"findings", "system", "network", "logs", "dumps"},
    "launch": {"findings", "network", "system"},
}
"""Packages below that must not be imported anyway."""

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
PURE = (
    "facts",
    "findings",
    "examined",
    "wording",
    "rules",
    "causality",
    "engine",
    "scripts",
    "launch",
    "logs",
    "dumps",
    "sequences",
    "tool_output",
    "privacy",
)


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


def _graph() -> dict[str, set[str]]:
    """Which module of the package imports which, wherever in the file and for whatever reason."""
    files = {_name(path): path for path in _modules()}
    return {name: _imported_modules(path, files.keys()) for name, path in files.items()}


def _name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def _imported_modules(path: Path, names: Set[str]) -> set[str]:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            submodules = (f"{node.module}.{alias.name}" for alias in node.names)
            imported |= {name if name in names else str(node.module) for name in submodules}
    return imported & names


def _circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The strongly connected components of more than one module: each module with all that it reaches and that reach it."""
    reached = {name: _reached(graph, name) for name in graph}
    circles = (frozenset(other for other in reached[name] if name in reached[other]) for name in graph)
    return {circle for circle in circles if len(circle) > 1}


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - reached
        reached |= new
        waiting += new
    return reached


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert _circles(_graph()) == set()


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


HEAVY_FOR_A_SUPERVISOR = (
    *("hashlib", "_hashlib", "hmac", "secrets", "random", "ssl", "multiprocessing", "asyncio", "tempfile", "shutil"),
    *(
        "ddpdoctor.rules",
        "ddpdoctor.render",
        "ddpdoctor.app",
        "ddpdoctor.cli",
        "ddpdoctor.engine",
        "ddpdoctor.collectors",
    ),
)
"""OpenSSL alone takes 3.5 MB. Every rank of a job has a supervisor, which has 20 MB at most."""


def test_a_supervisor_imports_nothing_heavy_until_it_has_published_its_report() -> None:
    code = (
        "import sys, ddpdoctor.probe.__main__, ddpdoctor.probe.supervisor\n"
        "from ddpdoctor.facts.codec import encode\n"
        "from ddpdoctor.facts.probe import Kind, Observation\n"
        "from ddpdoctor.privacy.redaction import redact\n"
        "from ddpdoctor.probe.records import Records\n"
        "seen = Observation(Kind.OUT_OF_FILES, 'rank 1 cannot start: https://user:word@host', (1,), 1, 'gpu-07')\n"
        "assert b'user:word' not in Records().line(redact(encode(seen)))\n"
        f"print(*[name for name in {HEAVY_FOR_A_SUPERVISOR!r} if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.split() == []


STARTS = {
    "subprocess.Popen": {"system/process.py"},
    "multiprocessing.get_context": {"system/pools.py"},
    "os.fork": {"probe/fork_template.py", "rehearsal/hook/start.py"},
}
"""Where processes are started: commands, pools of forks, and forks of a process that has imported torch for the ranks."""
WAITS = {"subprocess.TimeoutExpired": {"system/process.py"}}
"""Where a child is waited for with a deadline; others call `ended_within` or `output_within`."""
OTHER_WAYS = re.compile(
    r"subprocess\.(?:run|call|check_call|check_output|getoutput|getstatusoutput)|os\.(?:system|popen|posix_spawnp?|spawn\w+|forkpty)"
    r"|asyncio\.create_subprocess_\w+|multiprocessing\.(?:Process|Pool)|pty\.(?:fork|spawn)|concurrent\.futures\.ProcessPoolExecutor"
)


def _calls_and_catches(path: Path) -> Iterator[str]:
    """What a file calls, and which exceptions it catches, by the names that it writes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        elif isinstance(node, ast.ExceptHandler) and node.type is not None:
            yield from map(ast.unparse, node.type.elts if isinstance(node.type, ast.Tuple) else [node.type])
        elif isinstance(node, ast.ImportFrom) and node.module in ("subprocess", "os", "pty"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_there_is_one_way_to_start_a_process_and_one_to_wait_for_it() -> None:
    places: dict[str, set[str]] = {name: set() for name in (*STARTS, *WAITS)}
    for path in _modules():
        file = path.relative_to(PACKAGE).as_posix()
        for name in _calls_and_catches(path):
            assert not OTHER_WAYS.fullmatch(name), f"{file}: {name}"
            if name in places:
                places[name].add(file)
    assert places == STARTS | WAITS


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_classes_are_declared_cheaply(path: Path) -> None:
    """The standard library's dataclass costs 0.6 ms per class, used or not. The hook shares no code with ddpdoctor."""
    if not path.is_relative_to(PACKAGE / "rehearsal" / "hook") and path.name != "light_dataclass.py":
        assert "from dataclasses import dataclass" not in path.read_text()
        assert "dataclasses.dataclass(" not in path.read_text()


FUNCTION_LINES = 15
"""What a function in facts/ may have without its docstring, and a command of the command line without its signature."""


def _functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]


def _lines(nodes: list[ast.stmt]) -> int:
    """The lines of a function's statements without its docstring."""
    first = nodes[0]
    has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    own = nodes[1:] if has_docstring else nodes
    return (own[-1].end_lineno or 0) - own[0].lineno + 1 if own else 0


@pytest.mark.parametrize("path", sorted((PACKAGE / "facts").rglob("*.py")), ids=lambda p: p.name)
def test_facts_hold_no_algorithm(path: Path) -> None:
    for function in _functions(path):
        docstring = ast.get_docstring(function, clean=False)
        lines = (
            (function.end_lineno or 0) - function.lineno + 1 - (0 if docstring is None else len(docstring.split("\n")))
        )
        assert lines <= FUNCTION_LINES, f"{function.name}: an algorithm belongs to an engine"


def test_commands_are_short() -> None:
    from ddpdoctor.cli.app import COMMANDS

    for module in sorted(set(COMMANDS.values())):
        commands = {name for name, where in COMMANDS.items() if where == module} | {
            "show"
        }  # `parts` makes its commands
        found = [f for f in _functions(PACKAGE / "cli" / f"{module}.py") if f.name in commands]
        assert found, module
        for function in found:
            assert _lines(function.body) <= FUNCTION_LINES, f"{module}.{function.name}: move it to app/"


@pytest.mark.parametrize("path", sorted((PACKAGE / "app").glob("*.py")), ids=lambda p: p.name)
def test_use_cases_neither_print_nor_exit(path: Path) -> None:
    assert not {name.split(".")[0] for name in _imports(path)} & {"typer", "rich", "click"}
    calls = [ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    banned = {"print", "exit", "sys.exit", "os._exit", "sys.stdout.write", "sys.stderr.write"}
    assert not banned & set(calls), "the command line prints and exits"


_CODE = re.compile(r"(ENV|LAUNCH|HOST|NET|GPU|TOPO|VERSION|SCRIPT|PROBE|LOG)\d{3}")


@pytest.mark.parametrize("path", _modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_codes_stand_only_where_causes_are_declared(path: Path) -> None:
    """`@cause` declares what follows from what and what a cause is about: there is no other table of codes."""
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


def test_a_class_name_means_one_thing() -> None:
    places: dict[str, list[str]] = {}
    for path in _modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
