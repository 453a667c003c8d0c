"""Compiles the user's own files so that conversions and slices are seen: `float(x)`, `type(x)`, `items[rank::world]`.

Three kinds of expressions change: a call of a name that may be `float`, `int`, `round` or `type`, a read of a slice with a start,
and `100.0 * x`, of which Python asks only the left side. Lines and columns stay.
"""

from __future__ import annotations

import ast
import builtins
import importlib.machinery
from types import CodeType
from typing import Any

from ddpdoctor.rehearsal.hook import origins
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.places import is_of_user, place

__all__ = ["compiled", "watch"]

CONVERT, CUT, TIMES = "__ddpdoctor_convert__", "__ddpdoctor_cut__", "__ddpdoctor_times__"
CONVERSIONS = frozenset(("float", "int", "round", "type"))
MOST_SLICES = 20
_told: set[tuple[object, ...]] = set()


def watch() -> None:
    """Compile the user's modules this way from now on."""
    setattr(builtins, CONVERT, _convert)
    setattr(builtins, CUT, _cut)
    setattr(builtins, TIMES, _times)
    loader: Any = importlib.machinery.SourceFileLoader
    get_code = loader.get_code

    def code_of(self: Any, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if not is_of_user(path):
            return get_code(self, fullname)  # type: ignore[no-any-return]
        return compiled(self.get_data(path), path)

    loader.get_code = code_of


def compiled(source: bytes, path: str) -> CodeType:
    """The code of a file.

    Raises:
        SyntaxError: the file is not Python.
    """
    tree = compile(source, path, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    return compile(ast.fix_missing_locations(_Rewriter().visit(tree)), path, "exec", dont_inherit=True)


class _Rewriter(ast.NodeTransformer):
    """Puts the two functions into the tree."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        is_conversion = isinstance(node.func, ast.Name) and node.func.id in CONVERSIONS
        is_conversion = is_conversion and (len(node.args) == 1 or ast.unparse(node.func) != "type")
        if not is_conversion or not node.args or node.keywords or isinstance(node.args[0], ast.Starred):
            return node
        name = ast.copy_location(ast.Name(CONVERT, ast.Load()), node)
        return ast.copy_location(ast.Call(name, [node.func, *node.args], []), node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load) or not isinstance(node.slice, ast.Slice) or node.slice.lower is None:
            return node
        part = node.slice
        bounds = [each or ast.Constant(None) for each in (part.lower, part.upper, part.step)]
        name = ast.copy_location(ast.Name(CUT, ast.Load()), node)
        return ast.copy_location(ast.Call(name, [node.value, *bounds], []), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        is_factor = isinstance(node.left, ast.Constant) and type(node.left.value) is float
        if not is_factor or not isinstance(node.op, ast.Mult):
            return node
        name = ast.copy_location(ast.Name(TIMES, ast.Load()), node)
        return ast.copy_location(ast.Call(name, [node.left, node.right], []), node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return node


def _convert(kind: Any, value: Any, *rest: Any) -> Any:
    if kind is type or kind is float or kind is int or kind is round:
        return origins.convert(kind, value, *rest)
    return kind(value, *rest)


def _times(factor: float, value: Any) -> Any:
    return value * factor if origins.is_traced(value) else factor * value


def _cut(value: Any, start: Any, stop: Any, step: Any) -> Any:
    result = value[start:stop:step]
    if origins.is_active() and type(start) is int and len(_told) < MOST_SLICES:
        _note(value, start, stop, step)
    return result


def _note(value: Any, start: int, stop: Any, step: Any) -> None:
    """Report a slice that may be the part of this rank: every `world`-th item, or an equal share."""
    import torch.distributed as dist

    world, rank = dist.get_world_size(), dist.get_rank()
    try:
        size = len(value)
    except TypeError:
        return
    is_stride = step == world and start == rank
    share = stop - start if type(stop) is int and step is None else 0
    is_share = share > 0 and start == rank * share and share in (size // world, -(-size // world))
    if (is_stride or is_share) and size > world:
        at = place()
        key = tuple(map(tuple, at[:1]))
        if at and key not in _told:
            _told.add(key)
            channel().say("share", size=size, at=at)
