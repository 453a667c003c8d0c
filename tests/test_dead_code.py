"""No code is dead: what the package defines is used by the package, and what a function takes is passed by some call."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
CALLED_BY_OTHERS = {
    "cli/conversion.py": {"format_options", "format_epilog"},  # click
    "collectors/hang/unpickle.py": {"find_class", "persistent_load"},  # pickle
    "collectors/log/inputs.py": {"readinto"},  # io
    "multinode/udp_discovery.py": {"connection_made", "datagram_received", "error_received"},  # asyncio
    "rehearsal/hook/cuda.py": {
        *(
            "elapsed_time",
            "ipc_handle",
            "is_capturing",
            "query",
            "wait_event",
            "wait_stream",
        ),  # torch.cuda.Stream, Event
    },
    "rehearsal/hook/deepspeed_ops.py": {"create_adam", "destroy_adam", "adam_update"},  # deepspeed's Adam
    "system/selfexec.py": {"writable"},  # io
}
"""Methods that a library calls."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class File:
    """What one file defines, and which names it loads."""

    path: str
    module: str
    body: list[ast.stmt]
    loads: Counter[str] = field(default_factory=Counter)
    classes: list[ast.ClassDef] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)


@dataclass
class Uses:
    """What all files use. `calls` are those of each name, through `functools.partial` included."""

    files: list[File] = field(default_factory=list)
    loads: Counter[str] = field(default_factory=Counter)
    attributes: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    imported: set[tuple[str, str]] = field(default_factory=set)
    calls: dict[str, list[ast.Call]] = field(default_factory=lambda: defaultdict(list))

    def read(self, path: Path) -> None:
        tree = ast.parse(path.read_text())
        parts = path.relative_to(ROOT).with_suffix("").parts
        file = File(str(path.relative_to(ROOT)), ".".join(parts).removesuffix(".__init__"), tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                file.loads[node.id] += isinstance(node.ctx, ast.Load)
            elif isinstance(node, ast.Attribute):
                self.attributes[node.attr] += 1
            elif isinstance(node, ast.Call):
                self.call(node)
            elif isinstance(node, ast.Constant):
                if isinstance(node.value, str):
                    self.texts[node.value] += 1
            elif isinstance(node, ast.ImportFrom):
                self.imported |= {(str(node.module), alias.name) for alias in node.names}
            elif isinstance(node, Function):
                file.functions.append(node)
            elif isinstance(node, ast.ClassDef):
                file.classes.append(node)
        self.files.append(file)
        self.loads += file.loads

    def call(self, node: ast.Call) -> None:
        name = _name(node.func)
        if name is not None:
            self.calls[name].append(node)
        if name == "partial" and node.args and (inner := _name(node.args[0])):
            self.calls[inner].append(ast.Call(func=node.args[0], args=node.args[1:], keywords=node.keywords))


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


@cache
def _uses() -> Uses:
    uses = Uses()
    for path in sorted((ROOT / "ddpdoctor").rglob("*.py")):
        uses.read(path)
    return uses


def _defined(node: ast.stmt) -> list[str]:
    """What a statement of a module defines; a decorated function may have been registered, a public constant is data."""
    if isinstance(node, ast.ClassDef) or (isinstance(node, Function) and not node.decorator_list):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [t.id for t in targets if isinstance(t, ast.Name) and t.id.startswith("_") and not t.id.startswith("__")]


def _is_load(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _is_used_here(name: str, node: ast.stmt, file: File) -> bool:
    """Whether a file uses what a statement of it defines; a recursive call is no use."""
    return file.loads[name] > sum(_is_load(n, name) for n in ast.walk(node))


def test_what_a_module_defines_is_used() -> None:
    uses = _uses()
    unused = [
        f"{file.path}:{node.lineno} {name}"
        for file in uses.files
        for node in file.body
        for name in _defined(node)
        if not ((file.module, name) in uses.imported or uses.attributes[name] or uses.texts[name] > 1)
        if not _is_used_here(name, node, file)
    ]
    assert unused == []


def test_methods_are_called() -> None:
    uses = _uses()
    unused = [
        f"{file.path}:{node.lineno} {node.name}"
        for file in uses.files
        for owner in file.classes
        for node in owner.body
        if isinstance(node, Function) and not node.name.startswith(("__", "visit_"))
        if node.name not in CALLED_BY_OTHERS.get(file.path.removeprefix("ddpdoctor/"), ())
        if not (uses.attributes[node.name] or uses.texts[node.name] or file.loads[node.name])
    ]
    assert unused == []


def _is_passed(call: ast.Call, parameter: str, position: int | None) -> bool:
    return (
        any(keyword.arg in (parameter, None) for keyword in call.keywords)
        or any(isinstance(argument, ast.Starred) for argument in call.args)
        or (position is not None and len(call.args) > position)
    )


def _optional(function: Function) -> list[tuple[str, int | None]]:
    """The parameters with a default, and their positions in a call."""
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
    names = names[1:] if names[:1] in (["self"], ["cls"]) else names
    by_position = [(name, at) for at, name in enumerate(names) if at >= len(names) - len(function.args.defaults)]
    pairs = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return [*by_position, *((argument.arg, None) for argument, default in pairs if default is not None)]


def test_optional_parameters_are_passed_somewhere() -> None:
    uses = _uses()
    count = Counter(function.name for file in uses.files for function in file.functions)
    unused = []
    for file in uses.files:
        for function in file.functions:
            known = uses.calls[function.name]
            is_one = count[function.name] == 1 and known and not function.decorator_list
            if not is_one or uses.loads[function.name] > len(known):
                continue  # another function may be meant, or its calls are unknown
            unused += [
                f"{file.path}:{function.lineno} {function.name}({parameter})"
                for parameter, position in _optional(function)
                if not any(_is_passed(call, parameter, position) for call in known)
            ]
    assert unused == []
