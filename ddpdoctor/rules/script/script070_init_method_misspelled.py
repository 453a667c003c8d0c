"""SCRIPT070: a model class with a misspelled __init__."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.facts.script import Script
from ddpdoctor.findings import Edit, Finding, Severity
from ddpdoctor.rules import cause
from ddpdoctor.rules.script.pointing import code, point, replace, safe
from ddpdoctor.scripts.syntax.module import Module, modules

MISSPELLED = ("init", "__int__", "_init_", "__init", "_init__", "__init_", "__ini__")


@cause(
    "SCRIPT070",
    "init-method-misspelled",
    Severity.ERROR,
    signatures=(r"optimizer got an empty parameter list",),
)
def init_method_misspelled(script: Script) -> Iterator[Finding]:
    """A module defines init instead of __init__.

    ## Why it matters
    The layers are never created. The script fails with `ValueError: optimizer got an empty parameter list`, or with
    an AttributeError in forward.

    ## Fix
    Rename the method: `def __init__(self):`.

    ## Example
        # before
        class Net(nn.Module):
            def init(self):
                super().__init__()
                self.fc = nn.Linear(8, 2)
        # ValueError: optimizer got an empty parameter list

        # after
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 2)
    """
    for module in modules(script):
        for owner in module.index.classes:
            if not module.is_a(owner, "nn.Module"):
                continue
            methods = {m.name: m for m in owner.body if isinstance(m, ast.FunctionDef)}
            for name in MISSPELLED:
                method = methods.get(name)
                if method is not None and "__init__" not in methods and _builds(module, method):
                    yield point(
                        module,
                        method,
                        f"{owner.name} defines {name}() instead of __init__()",
                        "def __init__(self)",
                        label="its layers are never created",
                        fix=f"Rename {name} to `__init__`.",
                        edits=safe(_renamed(module, method)),
                    )


def _builds(module: Module, method: ast.FunctionDef) -> bool:
    """Whether a method creates layers or calls the base's __init__, and is never called itself."""
    calls = [c for c in module.method_calls.get(method.name, ()) if module.index.function_of(c) is not method]
    if calls:
        return False
    text = ast.unparse(method)
    return ("super(" in text and "__init__" in text) or any(
        isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Call)
        and (module.names.of(n.value.func) or "").startswith("nn.")
        for n in ast.walk(method)
    )


def _renamed(module: Module, method: ast.FunctionDef) -> tuple[Edit, ...]:
    text = module.lines[method.lineno - 1]
    at = text.find(f"def {method.name}")
    if at < 0:
        return ()
    start = at + len("def ") + 1
    name = Edit(module.path, method.lineno, start, method.lineno, start + len(method.name), "__init__")
    base = [
        replace(module, n, f"{code(module, n.value)}.__init__")
        for n in ast.walk(method)
        if isinstance(n, ast.Attribute) and n.attr == method.name and ast.unparse(n.value).startswith("super(")
    ]
    return (name, *base)
