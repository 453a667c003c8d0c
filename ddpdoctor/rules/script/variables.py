"""The environment variables that a script sets and reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ddpdoctor.light_dataclass import dataclass
from ddpdoctor.rules.script.script_questions import argument, only_value, value
from ddpdoctor.scripts.syntax.module import Module
from ddpdoctor.scripts.syntax.nodes import inner

TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "GROUP_RANK")


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """An assignment to os.environ: `node` is the statement or call, `given` the value."""

    name: str
    node: ast.AST
    given: ast.expr
    module: Module

    @property
    def text(self) -> str | None:
        """The value, if the file itself determines it."""
        content = value(self.module, self.given)
        return content if isinstance(content, str) else None

    @property
    def default(self) -> str | None:
        """The default of the command line option that the value comes from, also through str()."""
        node = self.given
        if isinstance(node, ast.Call) and self.module.names.of(node.func) == "str" and len(node.args) == 1:
            node = node.args[0]
        option = self.module.options.get(node.attr) if isinstance(node, ast.Attribute) else None
        content = value(self.module, argument(option, None, "default")) if option is not None else None
        return str(content) if isinstance(content, (str, int)) else None


def sets(module: Module) -> Iterator[Setting]:
    """The variables that the file overwrites: not with setdefault, and not under a condition that checks them first."""
    for subscript in module.index.subscripts:
        statement = module.index.parents.get(subscript)
        if (
            isinstance(subscript.ctx, ast.Store)
            and isinstance(statement, ast.Assign)
            and _is_environ(module, subscript.value)
        ):
            name = value(module, subscript.slice)
            if isinstance(name, str) and not is_guarded(module, statement, name):
                yield Setting(name, statement, statement.value, module)
            for key, given in _in_turn(module, subscript, statement):
                if not is_guarded(module, statement, key):
                    yield Setting(key, statement, given, module)
    for call in module.calls("os.environ.update"):
        for key, given in _updates(module, call):
            if not is_guarded(module, call, key):
                yield Setting(key, call, given, module)
    for change in (n for n in module.index.parents if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.BitOr)):
        if _is_environ(module, change.target):
            yield from (Setting(key, change, given, module) for key, given in _pairs(module, change.value))
    for call in module.calls("os.putenv"):
        name = value(module, call.args[0]) if call.args else None
        if isinstance(name, str) and len(call.args) > 1:
            yield Setting(name, call, call.args[1], module)


def defaults(module: Module) -> Iterator[Setting]:
    """The variables that the file sets only if they are not set yet."""
    for call in module.calls("os.environ.setdefault"):
        name = value(module, call.args[0]) if len(call.args) > 1 else None
        if isinstance(name, str):
            yield Setting(name, module.index.statement(call), call.args[1], module)


def _updates(module: Module, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    for given in call.args:
        yield from _pairs(module, given)
    for keyword in call.keywords:
        if keyword.arg:
            yield keyword.arg, keyword.value


def _pairs(module: Module, node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """The items of a mapping or of a list of pairs: keys as text, values as expressions."""
    if isinstance(node, ast.Name):
        made = only_value(module, node)
        if made is None:
            return
        node = made
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "items":
        yield from _pairs(module, node.func.value)
    elif isinstance(node, ast.Call) and module.names.of(node.func) == "dict":
        yield from ((k.arg, k.value) for k in node.keywords if k.arg)
    items = list(zip(node.keys, node.values, strict=True)) if isinstance(node, ast.Dict) else []
    for element in node.elts if isinstance(node, (ast.List, ast.Tuple)) else ():
        items += (
            [(element.elts[0], element.elts[1])] if isinstance(element, ast.Tuple) and len(element.elts) == 2 else []
        )
    for key, item in items:
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value, item


def _in_turn(module: Module, target: ast.Subscript, statement: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """What a loop over literal pairs sets: `for key, value in {…}.items(): os.environ[key] = value`."""
    loop = next((p for p, _ in module.index.enclosing(statement) if isinstance(p, ast.For)), None)
    names = loop.target.elts if loop is not None and isinstance(loop.target, ast.Tuple) else []
    asked = (target.slice, statement.value)
    if loop is not None and [ast.unparse(n) for n in names] == [ast.unparse(n) for n in asked]:
        yield from _pairs(module, loop.iter)


def _is_environ(module: Module, node: ast.expr) -> bool:
    return module.names.of(node) == "os.environ"


def is_guarded(module: Module, node: ast.AST, name: str) -> bool:
    """Whether a condition around a node, or an exit before it, checks how the script was started."""
    for parent, child in module.index.enclosing(node):
        test = parent.test if isinstance(parent, ast.If) and child is not parent.test else None
        if test is not None and not _is_main(test):
            return True
        if isinstance(parent, (ast.ExceptHandler, ast.IfExp)):
            return True
        body = getattr(parent, "body", None)
        if isinstance(body, list) and child in body:
            earlier = body[: body.index(child)]
            if any(isinstance(s, ast.If) and any(isinstance(n, ast.Return) for n in inner(s)) for s in earlier):
                return True
    given = getattr(node, "value", None)
    return given is not None and any(isinstance(n, ast.Constant) and n.value == name for n in ast.walk(given))


def _is_main(test: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(test))


def reads(module: Module) -> Iterator[tuple[str, ast.AST, bool]]:
    """The variables that the file reads: name, node, and whether reading fails if the variable is not set."""
    for subscript in module.index.subscripts:
        if isinstance(subscript.ctx, ast.Load) and _is_environ(module, subscript.value):
            name = value(module, subscript.slice)
            if isinstance(name, str):
                yield name, subscript, True
    for call in module.calls("os.getenv", "os.environ.setdefault", "os.environ.pop"):
        name = value(module, call.args[0]) if call.args else None
        if isinstance(name, str):
            yield name, call, False


def reads_ranks(module: Module) -> bool:
    """Whether the file reads torchrun's variables and is therefore meant to be started by a launcher."""
    written = {s.name for s in sets(module)}
    return any(name in TORCHRUN and name not in written for name, _, _ in reads(module))
