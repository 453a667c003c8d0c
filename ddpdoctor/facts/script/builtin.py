"""What operators, builtins, os.environ, torch and attributes give: the leaves of `values.Reader`."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ddpdoctor.facts.script.index import Binding, Bound, inner
from ddpdoctor.facts.script.vocabulary import ATTRIBUTES, COLLECTIVES, PARAMETERS, SUBGROUP, VARIABLES
from ddpdoctor.facts.script.world import Device, Made, Unknown, known, worst

if TYPE_CHECKING:
    from ddpdoctor.facts.script.module import Module
    from ddpdoctor.facts.script.values import Frame, Reader

__all__ = ["attribute", "call", "is_reduced", "method", "other", "part_of", "variable"]

MAX_ITEMS = 64
_LOADER = re.compile(r"(?i)(data_?loader|_loader|^loader|dataloader|_dl$)")
_REDUCED = re.compile(r"(?i)reduc|gather|sync|broadcast|avg_across|mean_across|global_")
_OPTIONS = re.compile(r"(?i)^_?(args?|opts?|options?|flags?|config|cfg|conf|hparams|params|parsed|cmd_args|hps?)$")

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: lambda a, b: a is b if a is None or b is None else a == b,
    ast.IsNot: lambda a, b: a is not b if a is None or b is None else a != b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_PLAIN = (int, float, str, bool, bytes, type(None), list, tuple, set)


def other(reader: Reader, node: ast.expr, frame: Frame) -> object:
    """Values of expressions that are no name, attribute or call."""
    read = _READ.get(type(node))
    return read(reader, node, frame) if read is not None else Unknown.SAME


def _constant(reader: Reader, node: ast.Constant, frame: Frame) -> object:
    return node.value


def _sequence(reader: Reader, node: ast.List | ast.Tuple | ast.Set, frame: Frame) -> object:
    if len(node.elts) > MAX_ITEMS or any(isinstance(e, ast.Starred) for e in node.elts):
        return Unknown.SAME
    items = [reader.value(e, frame) for e in node.elts]
    return tuple(items) if isinstance(node, ast.Tuple) else items


def _dict(reader: Reader, node: ast.Dict, frame: Frame) -> object:
    return {} if not node.keys else Unknown.SAME


def _binary(reader: Reader, node: ast.BinOp, frame: Frame) -> object:
    left, right = reader.value(node.left, frame), reader.value(node.right, frame)
    if not known(left) or not known(right):
        return worst(left, right)
    work = _BINARY.get(type(node.op))
    if work is None or not isinstance(left, _PLAIN) or not isinstance(right, _PLAIN) or _is_large(left, right, node.op):
        return Unknown.SAME
    return _tried(work, left, right)


def _is_large(left: object, right: object, op: ast.operator) -> bool:
    if not isinstance(op, ast.Mult):
        return False
    sized = [x for x in (left, right) if isinstance(x, (str, list, tuple, bytes))]
    counts = [x for x in (left, right) if isinstance(x, int)]
    return bool(sized and counts and len(sized[0]) * counts[0] > 4096) or any(abs(c) > 1 << 62 for c in counts)


def _tried(work: Callable[..., Any], *operands: Any) -> object:
    try:
        result = work(*operands)
    except (TypeError, ValueError, ArithmeticError, KeyError, IndexError, MemoryError):
        return Unknown.SAME  # the rehearsed line would raise: nothing is known of its value
    return result


def _unary(reader: Reader, node: ast.UnaryOp, frame: Frame) -> object:
    if isinstance(node.op, ast.Not):
        return reader.truth(node, frame)
    value = reader.value(node.operand, frame)
    if isinstance(value, (int, float)):
        return -value if isinstance(node.op, ast.USub) else value
    return worst(value)


def _truth(reader: Reader, node: ast.BoolOp, frame: Frame) -> object:
    values: list[object] = []
    for each in node.values:
        value = reader.value(each, frame)
        values.append(value)
        if known(value) and not isinstance(value, Made) and bool(value) is isinstance(node.op, ast.Or):
            return value if all(known(v) for v in values) else worst(*values)
    return values[-1] if all(known(v) for v in values) else worst(*values)


def _compare(reader: Reader, node: ast.Compare, frame: Frame) -> object:
    values = [reader.value(each, frame) for each in (node.left, *node.comparators)]
    if isinstance(node.ops[0], (ast.In, ast.NotIn)) and _is_environ(node.comparators[0], frame):
        known_one = (
            values[0] in VARIABLES and not str(values[0]).startswith(("SLURM", "OMPI", "PMI"))
            if known(values[0])
            else None
        )
        return Unknown.SAME if not known_one else isinstance(node.ops[0], ast.In)
    if isinstance(node.ops[0], (ast.Is, ast.IsNot)) and isinstance(values[0], Made) and values[1] is None:
        return isinstance(node.ops[0], ast.IsNot)
    if not all(known(v) and isinstance(v, (*_PLAIN, Device)) for v in values) or any(_has_unknown(v) for v in values):
        return worst(*values, *(Unknown.SAME if known(v) else v for v in values))
    for left, op, right in zip(values, node.ops, values[1:], strict=False):
        result = _tried(_COMPARE[type(op)], left, right)
        if not known(result):
            return result
        if not result:
            return False
    return True


def _has_unknown(value: object) -> bool:
    return isinstance(value, (list, tuple, set)) and any(isinstance(v, Unknown) for v in value)


def _either(reader: Reader, node: ast.IfExp, frame: Frame) -> object:
    truth = reader.truth(node.test, frame)
    if not isinstance(truth, Unknown):
        return reader.value(node.body if truth else node.orelse, frame)
    values = [reader.value(node.body, frame), reader.value(node.orelse, frame)]
    literal = [isinstance(e, ast.Constant) for e in (node.body, node.orelse)]
    if values[0] == values[1] and type(values[0]) is type(values[1]):
        return values[0]
    if literal[0] != literal[1]:
        return values[literal.index(False)]
    return worst(truth, *values)


def _text(reader: Reader, node: ast.JoinedStr, frame: Frame) -> object:
    parts: list[object] = []
    for each in node.values:
        if isinstance(each, ast.Constant):
            parts.append(str(each.value))
        elif isinstance(each, ast.FormattedValue):
            value = reader.value(each.value, frame)
            plain = isinstance(value, (str, int)) and each.format_spec is None and each.conversion == -1
            parts.append(str(value) if plain else worst(value))
    return "".join(str(p) for p in parts) if all(known(p) for p in parts) else worst(*parts)


def _subscript(reader: Reader, node: ast.Subscript, frame: Frame) -> object:
    if _is_environ(node.value, frame):
        return variable(reader, reader.value(node.slice, frame), frame)
    base = reader.value(node.value, frame)
    if isinstance(node.slice, ast.Slice):
        return _slice(reader, base, node.slice, frame)
    at = reader.value(node.slice, frame)
    if isinstance(base, (str, list, tuple)) and isinstance(at, int):
        return _tried(operator.getitem, base, at)
    varies = isinstance(at, int) and _differs(reader, node.slice, frame)
    return Unknown.VARIES if varies else worst(base, at)


def _slice(reader: Reader, base: object, part: ast.Slice, frame: Frame) -> object:
    ends = [None if e is None else reader.value(e, frame) for e in (part.lower, part.upper, part.step)]
    if known(base) and all(known(e) for e in ends) and isinstance(base, (str, list, tuple)):
        return _tried(operator.getitem, base, slice(*ends))
    return worst(base, *ends)


def _differs(reader: Reader, node: ast.expr, frame: Frame) -> bool:
    """Whether an expression has a name in it that could tell the rank."""
    return any(isinstance(n, ast.Name) and n.id in PARAMETERS for n in ast.walk(node))


def _comprehension(reader: Reader, node: ast.ListComp | ast.GeneratorExp, frame: Frame) -> object:
    generator = node.generators[0]
    items = reader.value(generator.iter, frame)
    plain = len(node.generators) == 1 and not generator.ifs and isinstance(generator.target, ast.Name)
    if not plain or not isinstance(items, (list, tuple)) or len(items) > MAX_ITEMS:
        return worst(items)
    found = []
    name = generator.target.id if isinstance(generator.target, ast.Name) else ""
    for item in items:
        inner_frame = type(frame)(frame.module, frame.function, {**frame.bound, name: item})
        found.append(reader.value(node.elt, inner_frame))
    return found


_READ: dict[type, Callable[[Reader, Any, Frame], object]] = {
    ast.Constant: _constant,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _dict,
    ast.BinOp: _binary,
    ast.UnaryOp: _unary,
    ast.BoolOp: _truth,
    ast.Compare: _compare,
    ast.IfExp: _either,
    ast.JoinedStr: _text,
    ast.Subscript: _subscript,
    ast.ListComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.NamedExpr: lambda reader, node, frame: reader.value(node.value, frame),
    ast.Await: lambda reader, node, frame: reader.value(node.value, frame),
}


# The environment.


def _is_environ(node: ast.expr, frame: Frame) -> bool:
    return frame.module.names.of(node) == "os.environ"


def variable(reader: Reader, name: object, frame: Frame) -> object:
    """The text of an environment variable under a launcher."""
    word = VARIABLES.get(name) if isinstance(name, str) else None
    if word is None:
        return worst(name)
    return str(reader.place_value(word))


# Calls of known functions.


def call(reader: Reader, name: str, node: ast.Call, frame: Frame) -> object:
    """What a function with this short name returns; NotImplemented for one that is not known."""
    work = _CALLS.get(name)
    if work is not None:
        return work(reader, node, frame)
    if name in _PURE:
        values = [reader.value(a, frame) for a in node.args]
        plain = all(known(v) and isinstance(v, _PLAIN) and not _has_unknown(v) for v in values)
        if not plain or node.keywords:
            return worst(*values)
        return _bounded(_PURE[name], *values)
    return NotImplemented


def _bounded(work: Callable[..., Any], *values: Any) -> object:
    if work is range:
        found = _tried(range, *values)
        return list(found) if isinstance(found, range) and len(found) <= MAX_ITEMS else Unknown.SAME
    return _tried(work, *values)


def _rank(reader: Reader, node: ast.Call, frame: Frame) -> object:
    return Unknown.VARIES if _has_group(reader, node, frame) else reader.place.rank


def _world(reader: Reader, node: ast.Call, frame: Frame) -> object:
    return Unknown.SAME if _has_group(reader, node, frame) else reader.place.world_size


def _has_group(reader: Reader, node: ast.Call, frame: Frame) -> bool:
    given = [*node.args, *(k.value for k in node.keywords)]
    return any(
        not (isinstance(g, ast.Constant) and g.value is None)
        and frame.module.names.of(g) not in ("dist.group.WORLD", "dist.GroupMember.WORLD")
        for g in given
    )


def _getenv(reader: Reader, node: ast.Call, frame: Frame) -> object:
    return variable(reader, reader.value(node.args[0], frame), frame) if node.args else Unknown.SAME


def _device(reader: Reader, node: ast.Call, frame: Frame) -> object:
    values = [reader.value(a, frame) for a in (*node.args, *(k.value for k in node.keywords))]
    if not values or not known(values[0]):
        return worst(*values)
    if isinstance(values[0], int):
        return Device("cuda", values[0])
    if isinstance(values[0], Device):
        return values[0]
    if not isinstance(values[0], str):
        return Unknown.SAME
    kind, _, index = values[0].partition(":")
    if len(values) > 1:
        return Device(kind, values[1])
    return Device(kind, int(index) if index.isdigit() else index or None)


def _fixed(value: object) -> Callable[[Reader, ast.Call, Frame], object]:
    return lambda reader, node, frame: value


_CALLS: dict[str, Callable[[Any, ast.Call, Any], object]] = {
    "dist.get_rank": _rank,
    "dist.get_world_size": _world,
    "dist.get_node_local_rank": lambda reader, node, frame: reader.place.local_rank,
    "dist.is_available": _fixed(True),
    "dist.is_initialized": _fixed(True),
    "dist.is_torchelastic_launched": lambda reader, node, frame: not reader.place.spawned,
    "dist.GroupMember": _fixed(Unknown.SAME),
    "os.getenv": _getenv,
    "os.environ.setdefault": _getenv,
    "torch.device": _device,
    "cuda.is_available": _fixed(True),
    "torch.accelerator.is_available": _fixed(True),
    "cuda.device_count": lambda reader, node, frame: reader.place.local_world_size,
    "torch.accelerator.device_count": lambda reader, node, frame: reader.place.local_world_size,
    "cuda.current_device": _fixed(Unknown.VARIES),
    "horovod.torch.rank": lambda reader, node, frame: reader.place.rank,
    "horovod.torch.local_rank": lambda reader, node, frame: reader.place.local_rank,
    "horovod.torch.size": lambda reader, node, frame: reader.place.world_size,
    "socket.gethostname": _fixed(Unknown.VARIES),
    "os.getpid": _fixed(Unknown.VARIES),
    "time.time": _fixed(Unknown.VARIES),
    "time.perf_counter": _fixed(Unknown.VARIES),
    "random.random": _fixed(Unknown.VARIES),
    "isinstance": _fixed(Unknown.SAME),
    "hasattr": _fixed(Unknown.SAME),
    "print": _fixed(None),
    "dict": _fixed(Unknown.SAME),
}
_PURE: dict[str, Callable[..., Any]] = {
    "int": int,
    "str": str,
    "float": float,
    "bool": bool,
    "len": len,
    "abs": abs,
    "min": min,
    "max": max,
    "range": range,
    "list": list,
    "tuple": tuple,
    "set": set,
    "sorted": sorted,
    "reversed": lambda items: list(reversed(items)),
    "enumerate": lambda items: list(enumerate(items)),
    "sum": sum,
}


def method(reader: Reader, node: ast.Call, last: str, frame: Frame) -> object:
    """What a method of a value, or an unknown function, returns."""
    operands = [
        reader.value(a, frame)
        for a in (*node.args, *(k.value for k in node.keywords))
        if not isinstance(a, ast.Starred)
    ]
    if _REDUCED.search(last):
        return Unknown.SAME
    if not isinstance(node.func, ast.Attribute):
        return _unless_varies(operands)
    base = reader.value(node.func.value, frame)
    if isinstance(base, str) and last in (
        "lower",
        "upper",
        "strip",
        "startswith",
        "endswith",
        "isdigit",
        "split",
        "format",
    ):
        plain = all(isinstance(o, (str, int)) and not isinstance(o, Unknown) for o in operands)
        return _tried(getattr(base, last), *operands) if plain else worst(*operands)
    if last in ("cuda", "to", "cpu", "item", "detach", "clone", "eval", "train", "float", "mean", "sum"):
        return worst(base, *[o for o in operands if o is Unknown.DATA]) if not known(base) else Unknown.SAME
    return worst(base, _unless_varies(operands))


def _unless_varies(operands: list[object]) -> Unknown:
    """An unknown function of known values: nothing is known of its result, not even whether the ranks agree."""
    return worst(*operands)


# Attributes.


def attribute(reader: Reader, node: ast.Attribute, frame: Frame) -> object:
    """The value of `base.name`."""
    module = frame.module
    dotted = module.names.of(node)
    if dotted is not None and dotted in ("dist.group.WORLD", "dist.GroupMember.WORLD"):
        return None
    if isinstance(node.value, ast.Name):
        value = _assigned(reader, node.value.id, node, frame)
        if value is not NotImplemented:
            return value
    word = ATTRIBUTES.get(node.attr)
    if word is not None and dotted is None:
        return reader.place_value(word)
    if node.attr in ("local_rank",) and _is_self_of_framework(node, frame):
        return reader.place.local_rank
    base = reader.value(node.value, frame) if not isinstance(node.value, ast.Name) or dotted is None else Unknown.SAME
    if isinstance(base, Device) and node.attr in ("index", "type"):
        return getattr(base, node.attr)
    if reader.trusting and dotted is None:
        word = PARAMETERS.get(node.attr)
        if word is not None:
            return reader.place_value(word)
        if SUBGROUP.search(node.attr) or node.attr.endswith("rank"):
            return Unknown.VARIES
    return (
        base
        if base in (Unknown.DATA, Unknown.VARIES) and node.attr not in ("shape", "dtype", "device")
        else Unknown.SAME
    )


def _is_self_of_framework(node: ast.Attribute, frame: Frame) -> bool:
    return bool(frame.module.frameworks & {"lightning", "pytorch_lightning", "lightning_fabric", "transformers"})


def _assigned(reader: Reader, base: str, node: ast.Attribute, frame: Frame) -> object:
    module = frame.module
    owner = module.class_of_value(node.value)
    if owner is not None:
        return _of_class(reader, owner, node, frame)
    assigned = module.index.attributes.get((base, node.attr), [])
    assigned = [b for b in assigned if b.value is not None and not any(n is node for n in ast.walk(b.value))]
    option = module.options.get(node.attr) if _OPTIONS.match(base) else None
    if option is not None and not assigned:
        return _option(reader, node.attr, option, frame)
    candidates = [(b, _read(reader, b, frame)) for b in assigned]
    return reader._joined(candidates, node, frame) if candidates else NotImplemented


def _read(reader: Reader, binding: Binding, frame: Frame) -> Callable[[], object]:
    def read() -> object:
        if binding.how is not Bound.VALUE or binding.value is None:
            return Unknown.SAME
        return reader.value(binding.value, reader.frame_of(binding.value, frame.module))

    return read


def _of_class(reader: Reader, owner: ast.ClassDef, node: ast.Attribute, frame: Frame) -> object:
    module = frame.module
    target = module.method(owner, node.attr)
    if target is not None:
        properties = [module.names.of(d) or getattr(d, "attr", "") for d in target.function.decorator_list]
        is_property = any(p in ("property", "functools.cached_property", "cached_property") for p in properties)
        return reader.returned(module, target.function, {}) if is_property else Unknown.SAME
    bindings = [b for b in module.index.attributes.get(("self", node.attr), []) if module.index.class_of(b.at) is owner]
    bindings += module.index.scopes[owner].names.get(node.attr, []) if not bindings else []
    for base in owner.bases:
        parent = module.class_named(base)
        if parent is not None and parent is not owner and not bindings:
            return _of_class(reader, parent, node, frame)
    bindings = [b for b in bindings if b.value is not None]
    candidates = [(b, _field(reader, b, frame)) for b in bindings]
    return reader._joined(candidates, node, frame) if candidates else NotImplemented


def _field(reader: Reader, binding: Binding, frame: Frame) -> Callable[[], object]:
    value = binding.value
    if isinstance(value, ast.Call) and frame.module.names.of(value.func) in ("dataclasses.field", "field"):
        given = {k.arg: k.value for k in value.keywords}
        factory = given.get("default_factory")
        if isinstance(factory, ast.Lambda):
            value = factory.body
        else:
            value = given.get("default")
        return lambda: Unknown.SAME if value is None else reader.value(value, reader.frame_of(value, frame.module))
    return _read(reader, binding, frame)


def _option(reader: Reader, name: str, option: ast.Call, frame: Frame) -> object:
    """A command line option: --local_rank is what torch.distributed.launch passes, others hold their default's source."""
    given = {k.arg: k.value for k in option.keywords}
    kind = given.get("type")
    is_text = kind is None or frame.module.names.of(kind) == "str"
    if name == "local_rank":
        return str(reader.place.local_rank) if is_text and "action" not in given else reader.place.local_rank
    default = given.get("default")
    if default is None or isinstance(default, ast.Constant):
        word = PARAMETERS.get(name)
        return Unknown.SAME if word is None or not reader.trusting else reader.place_value(word)
    value = reader.value(default, reader.frame_of(default, frame.module))
    if isinstance(value, str) and not is_text:
        return _tried(int, value)
    return value


# Parts of values, and what collectives make of names.


def part_of(reader: Reader, binding: Binding, frame: Frame) -> object:
    """An item of what a loop runs over, or one part of an unpacked value."""
    assert binding.value is not None
    if binding.how is Bound.ITEM:
        if binding.part == 0 and _is_counted(binding.value, frame):
            return Unknown.SAME
        return Unknown.DATA if _is_loader(reader, binding.value, frame) else worst(reader.value(binding.value, frame))
    value = reader.value(binding.value, frame)
    if isinstance(value, (tuple, list)) and binding.part is not None and binding.part < len(value):
        return value[binding.part]
    return worst(value)


def _is_counted(node: ast.expr, frame: Frame) -> bool:
    """enumerate(...), also inside a progress bar."""
    if not isinstance(node, ast.Call):
        return False
    if frame.module.names.of(node.func) == "enumerate":
        return True
    return bool(node.args) and _is_counted(node.args[0], frame)


def _is_loader(reader: Reader, node: ast.expr, frame: Frame) -> bool:
    if isinstance(node, ast.Call):
        name = frame.module.names.of(node.func) or str(getattr(node.func, "attr", ""))
        wraps = name in ("enumerate", "zip", "iter", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "next") or name.endswith(
            "log_every"
        )
        if wraps:
            return any(_is_loader(reader, a, frame) for a in node.args)
        return name == "DataLoader"
    text = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    if _LOADER.search(text):
        return True
    value = reader.value(node, frame)
    return isinstance(value, Made) and value.name == "DataLoader"


def is_reduced(module: Module, root: ast.AST, name: str) -> bool:
    """Whether a name goes through a collective, or a helper called like one, anywhere in a function."""
    return name in _reduced(module, root)


@lru_cache(maxsize=512)
def _reduced(module: Module, root: ast.AST) -> frozenset[str]:
    found: set[str] = set()
    nodes = ast.walk(root) if not isinstance(root, ast.Module) else inner(root)
    for node in nodes:
        if isinstance(node, ast.Call):
            last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if module.names.of(node.func) in COLLECTIVES or _REDUCED.search(last):
                found |= {n.id for a in node.args for n in ast.walk(a) if isinstance(n, ast.Name)}
    return frozenset(found)
