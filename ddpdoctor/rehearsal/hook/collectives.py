"""Process groups and collectives: each leaves a record before it is entered, and one after it has returned.

The functions of torch.distributed are replaced, not the backend: the records have the script's own words. Calls that these
functions make of each other are part of the outer call. `nccl` becomes `gloo`; what gloo lacks is composed of what it has.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import re
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ddpdoctor.rehearsal.hook import devices, origins, variables
from ddpdoctor.rehearsal.hook.channel import channel
from ddpdoctor.rehearsal.hook.ending import steps
from ddpdoctor.rehearsal.hook.places import Place, frames_of_user, is_called_by_library, place

__all__ = ["calls", "record", "reduced", "scaling", "soft", "watch"]

INPUTS = ("tensor", "tensors", "input", "input_tensor", "input_list", "input_tensor_list", "scatter_list", "self")
OUTPUTS = ("output", "output_tensor", "output_tensor_list", "gather_list", "tensor_list")
ROOTS = ("src", "dst", "group_src", "group_dst")
OBJECTS = ("object_list", "object_gather_list", "scatter_object_input_list", "scatter_object_output_list")
COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "_all_gather_base",
    "all_gather_coalesced",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "_reduce_scatter_base",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "barrier",
    "monitored_barrier",
    "broadcast_object_list",
    "all_gather_object",
    "gather_object",
    "scatter_object_list",
    "all_gather_single",
    "reduce_scatter_single",
)
POINT_TO_POINT = ("send", "recv", "isend", "irecv", "send_object_list", "recv_object_list")
FUNCTIONAL = (
    "all_reduce",
    "all_gather_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "broadcast",
    "all_reduce_coalesced",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
    "all_gather_tensor_autograd",
    "reduce_scatter_tensor_autograd",
    "all_to_all_single_autograd",
    "permute_tensor",
)
IN_PLACE = ("all_reduce", "reduce", "broadcast")
MOST_AVERAGED = 2000
MOST_TENSORS = 64
LONG = timedelta(hours=1)
"""The timeout of gloo: the supervisor decides earlier."""
HOST_OF_METHOD = re.compile(r"tcp://(\[[^\]]*\]|[^:/]*)")


class Calls:
    """The calls of this process: their numbers, their groups, and the works that were not waited for."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._local = threading.local()
        self.backends: dict[str, str] = {}
        self._groups: dict[int, tuple[Any, str]] = {}
        self._ordinals: dict[tuple[int, ...], int] = {}
        self.works: dict[int, tuple[Any, int, list[int]]] = {}
        self.count = 0
        self.world_backend = ""
        self.kept: list[Any] = []
        """Groups that must not be destructed: gloo joins its threads then, and one of them may wait for this thread."""

    @property
    def is_inside(self) -> bool:
        """Whether this thread is inside of a recorded call."""
        return getattr(self._local, "depth", 0) > 0

    def enter(self) -> None:
        self._local.depth = getattr(self._local, "depth", 0) + 1

    def leave(self) -> None:
        self._local.depth -= 1

    def number(self) -> int:
        self.count = next(self._numbers)
        return self.count

    def name_of(self, group: Any) -> str | None:
        """The name of a group that is the same on all its members, None for a rank that is not a member."""
        if group is None or group is getattr(dist.group, "WORLD", None):
            return "world"
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            return None
        known = self._groups.get(id(group))
        return known[1] if known is not None else self.add_group(group)

    def add_group(self, group: Any) -> str | None:
        """Name a new group: its ranks, and how many groups of the same ranks this process made before."""
        try:
            ranks = tuple(dist.get_process_group_ranks(group))
        except (KeyError, RuntimeError, ValueError, TypeError):
            return None
        ordinal = self._ordinals.get(ranks, 0)
        self._ordinals[ranks] = ordinal + 1
        name = f"{','.join(map(str, ranks))}#{ordinal}"
        self._groups[id(group)] = (group, name)
        channel().say("group", g=name, ranks=list(ranks))
        return name


_calls = Calls()


def calls() -> Calls:
    """The calls of this process."""
    return _calls


def shape(tensor: Any) -> list[Any]:
    """dtype, shape and device of a tensor."""
    with torch._C.DisableTorchFunction():
        found = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
        if channel().is_watch:
            return [*found, str(tensor.device)]
    device = devices.device_of(tensor)
    return [*found, None if device is None else str(device)]


def _shapes(value: Any) -> list[Any] | None:
    if isinstance(value, torch.Tensor):
        return [shape(value)]
    if isinstance(value, (list, tuple)):
        tensors = [each for each in value[:MOST_TENSORS] if isinstance(each, torch.Tensor)]
        return [shape(each) for each in tensors]
    return None


def _described(name: str, given: dict[str, Any], group: Any) -> dict[str, Any]:
    """What a call has, for its record."""
    fields: dict[str, Any] = {}
    outs = (
        OUTPUTS
        if name.startswith(
            ("all_gather", "_all_gather", "gather", "reduce_scatter", "_reduce_scatter", "all_to_all", "scatter")
        )
        else ()
    )
    for parameter, value in given.items():
        if value is None:
            continue
        if parameter in outs:
            fields["out"] = _shapes(value)
        elif parameter in INPUTS or parameter in OUTPUTS:
            if name == "scatter" and parameter == "tensor":
                fields["out"] = _shapes(value)
            else:
                fields["in"] = _shapes(value)
        elif parameter in ROOTS:
            fields["root"] = _global(group, value) if parameter.startswith("group_") else value
        elif parameter in ("op", "reduceOp"):
            fields["red"] = _reduction(value)
        elif parameter in OBJECTS and isinstance(value, (list, tuple)):
            fields["objects"] = len(value)
        elif parameter in ("input_split_sizes", "output_split_sizes"):
            fields["splits_in" if parameter.startswith("input") else "splits_out"] = list(value)
        elif parameter == "tag" and isinstance(value, int):
            fields["tag"] = value
        elif parameter == "async_op" and value:
            fields["async"] = True
    aliased = _aliased(given)
    if aliased:
        fields["aliased"] = aliased
    return fields


def _aliased(given: dict[str, Any]) -> int:
    """How many entries of an output list are the same tensor."""
    for parameter in ("tensor_list", "gather_list", "output_tensor_list"):
        value = given.get(parameter)
        if isinstance(value, (list, tuple)) and len(value) > 1:
            with torch._C.DisableTorchFunction():
                places = [t.data_ptr() for t in value if isinstance(t, torch.Tensor) and t.numel()]
            if len(places) > 1 and len(set(places)) < len(places):
                return len(places) - len(set(places)) + 1
    return 0


def _reduction(value: Any) -> str:
    return str(value).rpartition(".")[2] if not isinstance(value, str) else value


def _global(group: Any, rank: int) -> int:
    if group is None:
        return rank
    try:
        return int(dist.get_global_rank(group, rank))
    except (RuntimeError, ValueError, KeyError):
        return rank


def record(
    name: str, group: Any, run: Callable[[], Any], at: list[Place] | None = None, *, hides: bool = True, **fields: Any
) -> Any:
    """Record a call, run it, and record its end. `hides`: the calls that it makes itself are part of it."""
    if channel().is_off:
        return run()
    name_of_group = _calls.name_of(group)
    if name_of_group is None and not _calls.is_inside and not fields.get("functional"):
        channel().say("outsider", op=name, at=at or place())
    if name_of_group is None or _calls.is_inside:
        return run()
    is_watch = channel().is_watch
    if not is_watch:
        steps().check()
    number = _calls.number()
    at = at or place()
    if name_of_group == "world" and not is_watch:
        variables.look()
    channel().say("call", n=number, op=name, g=name_of_group, at=at, step=steps().count, **fields)
    if hides:
        _calls.enter()
    try:
        result = run()
    except Exception as error:
        channel().say("error", n=number, type=type(error).__name__, text=str(error)[:300])
        raise
    finally:
        if hides:
            _calls.leave()
    if fields.get("async") and result is not None:
        _calls.works[id(result)] = (result, number, [])
        channel().say("begun", n=number)
    else:
        channel().say("ret", n=number)
    return result


def soft(name: str, group: Any, run: Callable[[], Any], at: list[Place]) -> Any:
    """Record what may wait for other ranks, and need not: it is not compared, but known as the place where a rank waits."""
    name_of_group = _calls.name_of(group)
    if name_of_group is None or _calls.is_inside:
        return run()
    number = _calls.number()
    channel().say("call", n=number, op=name, g=name_of_group, at=at, step=steps().count, soft=True)
    try:
        return run()
    finally:
        channel().say("ret", n=number)


def watch() -> None:
    """Replace the functions of torch.distributed."""
    _replace("init_process_group", _init_process_group)
    _replace("new_group", _new_group)
    _replace("destroy_process_group", _destroy)
    if hasattr(c10d, "split_group"):
        _replace("split_group", _split_group)
    for name in COLLECTIVES:
        if hasattr(c10d, name):
            _replace(name, functools.partial(_collective, name))
    for name in POINT_TO_POINT:
        if hasattr(c10d, name):
            _replace(name, functools.partial(_point_to_point, name))
    _replace("batch_isend_irecv", _batch)
    _watch_works()
    if channel().is_watch:
        return  # a store is not replaced, and functional collectives may be compiled
    _watch_stores()
    _watch_variables()
    try:
        from torch.distributed import _functional_collectives as functional
    except ImportError:
        return
    for name in FUNCTIONAL:
        if hasattr(functional, name):
            setattr(functional, name, _functional(name, getattr(functional, name)))


def _replace(name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(c10d, name)
    replacement = functools.wraps(original)(make(original))
    for module in [each for key, each in list(sys.modules.items()) if key.startswith("torch.")]:
        if vars(module).get(name) is original:  # torch.distributed, and modules that have imported the name
            setattr(module, name, replacement)


def _bound(signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return {}  # the original raises the error of the user's call
    bound.apply_defaults()
    return dict(bound.arguments)


def _collective(name: str, original: Any) -> Any:
    signature = inspect.signature(original)
    public = name.removeprefix("_")

    def call(*args: Any, **kwargs: Any) -> Any:
        if _calls.is_inside or channel().is_off or not dist.is_initialized():
            return original(*args, **kwargs)
        given = _bound(signature, args, kwargs)
        group = given.get("group")
        fields = _described(name, given, group)
        at = place()
        if channel().is_watch:
            return record(public, group, lambda: original(*args, **kwargs), at=at, **fields)
        if name == "monitored_barrier" and _backend_of(group) == "nccl":
            channel().say("refused", op=name, at=at)
            raise ValueError("monitored_barrier is only implemented for GLOO backend.")
        if name == "all_reduce" and scaling["unscaled"] and not devices.wrapped:
            _check_unscaled(given.get("tensor"), at)
        if name in IN_PLACE:
            _remember_graph(given.get("tensor"), public, at)
        run = functools.partial(_run, name, original, given, args, kwargs)
        if name == "all_reduce" and origins.is_active():
            size = dist.get_world_size(group) if _calls.name_of(group) is not None else 0
            run = functools.partial(origins.reduced, given.get("tensor"), fields.get("red", "SUM"), size, at, run)
        result = record(public, group, run, at=at, **fields)
        if public in ("all_gather", "all_gather_into_tensor", "all_gather_base"):
            outputs = devices.leaves([given[each] for each in OUTPUTS if each in given])
            origins.set_gathered(given.get("tensor", given.get("input_tensor")), outputs, at)
        elif name != "all_reduce":
            origins.forget(devices.leaves([given[each] for each in (*OUTPUTS, "tensor") if each in given]))
        if fields.get("async") and result is not None and id(result) in _calls.works:
            tensors = [t for p in (*INPUTS, *OUTPUTS) if p in given for t in devices.leaves(given[p])]
            _calls.works[id(result)][2].extend(devices.begin_flight(tensors, public, at))
        return result

    return call


reduced: dict[int, tuple[str, Any, Any]] = {}
"""The ids of tensors of a graph that a collective changed in place, with its name, its place, and the tensor itself."""


scaling: dict[str, Any] = {"unscaled": None}
"""Where gradients were unscaled since the last optimizer step."""


def _check_unscaled(tensor: Any, at: list[Place]) -> None:
    """Report gradients that are reduced after a GradScaler has looked for infinite ones."""
    if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.numel() > 1:
        channel().say("reduced_after_unscale", at=scaling["unscaled"], reduced=at)
        scaling["unscaled"] = None


def _remember_graph(tensor: Any, name: str, at: list[Place]) -> None:
    if isinstance(tensor, torch.Tensor) and torch.is_grad_enabled() and tensor.grad_fn is not None:
        reduced[id(tensor)] = (name, at, tensor)


def _backend_of(group: Any) -> str:
    return _calls.backends.get(_calls.name_of(group) or "", _calls.world_backend)


def _run(name: str, original: Any, given: dict[str, Any], args: Any, kwargs: Any) -> Any:
    """The call on gloo; what gloo lacks is made of other calls."""
    operation = given.get("op")
    if (
        operation is not None
        and name in ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce")
        and operation == dist.ReduceOp.AVG
    ):
        return _average(name, original, given)
    if name == "all_to_all":
        return _all_to_all(given)
    if name == "barrier" and given.get("device_ids") is not None:
        return original(**{**given, "device_ids": None})  # imagined devices, of which gloo has none
    return original(*args, **kwargs)


def _average(name: str, original: Any, given: dict[str, Any]) -> Any:
    """AVG as SUM and a division."""
    work = original(**{**given, "op": dist.ReduceOp.SUM, "async_op": False})
    target: Any = given.get("output", given.get("tensor"))
    with torch.no_grad(), torch._C.DisableTorchFunction():
        target.div_(dist.get_world_size(given.get("group")))
        if len(devices.averaged) < MOST_AVERAGED:
            devices.averaged[target.data_ptr()] = []
    return _Done() if given.get("async_op") else work


class _Done:
    """A work that has ended."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None


def _all_to_all(given: dict[str, Any]) -> Any:
    """gloo has no all_to_all of lists: it is made of sends and receives."""
    outputs, inputs, group = given["output_tensor_list"], given["input_tensor_list"], given.get("group")
    own = dist.get_rank(group)
    works = []
    for rank, tensor in enumerate(inputs):
        if rank == own:
            outputs[rank].copy_(tensor)
        else:
            works.append(dist.isend(tensor.contiguous(), _global(group, rank), group=group))
    for rank, tensor in enumerate(outputs):
        if rank != own:
            dist.recv(tensor, _global(group, rank), group=group)
    for work in works:
        work.wait()
    return _Done() if given.get("async_op") else None


def _functional(name: str, original: Any) -> Any:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _calls.is_inside or not dist.is_initialized():
            return original(*args, **kwargs)
        given = _bound(signature, args, kwargs)
        group = _group_of(given.get("group"), given.get("tag", ""))
        public = name.removesuffix("_autograd")
        fields = _described(public, given, group)
        fields.pop("async", None)
        fields.pop("tag", None)
        return record(public, group, lambda: original(*args, **kwargs), at=place(), functional=True, **fields)

    return call


def _group_of(group: Any, tag: str) -> Any:
    """The process group that a functional collective means: a group, a mesh, or a mesh with a dimension."""
    if isinstance(group, dist.ProcessGroup):
        return group
    try:
        from torch.distributed import _functional_collectives as functional

        return c10d._resolve_process_group(functional._resolve_group_name(group, tag))
    except (ImportError, AttributeError, RuntimeError, ValueError, TypeError, KeyError):
        return dist.GroupMember.NON_GROUP_MEMBER


def _point_to_point(name: str, original: Any) -> Any:
    signature = inspect.signature(original)
    receives = "recv" in name

    def call(*args: Any, **kwargs: Any) -> Any:
        if _calls.is_inside or channel().is_off or not dist.is_initialized():
            return original(*args, **kwargs)
        given = _bound(signature, args, kwargs)
        group = given.get("group")
        fields = _described(name, given, group)
        peer = fields.pop("root", None)
        fields["peer"] = peer
        at = place()
        is_async = name in ("isend", "irecv")
        result = record(
            name,
            group,
            lambda: original(*args, **kwargs),
            at=at,
            p2p="recv" if receives else "send",
            **fields,
            **({"async": True} if is_async else {}),
        )
        if is_async and not channel().is_watch and result is not None and id(result) in _calls.works:
            _calls.works[id(result)][2].extend(devices.begin_flight(devices.leaves(given.get("tensor")), name, at))
        return result

    return call


def _batch(original: Any) -> Any:
    def call(p2p_op_list: Any) -> Any:
        if _calls.is_inside or channel().is_off or not dist.is_initialized():
            return original(p2p_op_list)
        if not channel().is_watch:
            steps().check()
        at = place()
        numbers = []
        for each in p2p_op_list:
            receives = "recv" in getattr(each.op, "__name__", "")
            group = _calls.name_of(each.group)
            if group is None:
                continue
            numbers.append(_calls.number())
            peer = getattr(each, "peer", None)
            channel().say(
                "call",
                n=numbers[-1],
                op="irecv" if receives else "isend",
                g=group,
                at=at,
                step=steps().count,
                batch=numbers[0],
                p2p="recv" if receives else "send",
                peer=peer,
                tag=each.tag,
                **{"in": [shape(each.tensor)], "async": True},
            )
        _calls.enter()
        try:
            works = original(p2p_op_list)
        finally:
            _calls.leave()
        for number, work in zip(numbers, works, strict=False):
            _calls.works[id(work)] = (work, number, [])
        for number in numbers:
            channel().say("begun", n=number)
        return works

    return call


def _watch_works() -> None:
    from torch._C._distributed_c10d import Work

    work: Any = Work
    original, future = work.wait, work.get_future

    def wait(self: Any, *args: Any) -> Any:
        found = _calls.works.pop(id(self), None)
        if found is None:
            return original(self, *args)
        number, keys = found[1], found[2]
        channel().say("wait", n=number, at=place())
        devices.end_flight(keys)
        result = original(self, *args) if channel().is_watch else original(self)
        channel().say("waited", n=number)
        return result

    def get_future(self: Any) -> Any:
        found = _calls.works.pop(id(self), None)
        if found is not None:
            devices.end_flight(found[2])
            channel().say("waited", n=found[1])
        return future(self)

    work.wait, work.get_future = wait, get_future


def _watch_stores() -> None:
    from torch._C._distributed_c10d import Store

    for name in ("get", "wait"):
        original = getattr(Store, name)

        def call(self: Any, *args: Any, _original: Any = original, _name: str = name) -> Any:
            if _calls.is_inside:
                return _original(self, *args)
            at = frames_of_user()
            if not at:
                return _original(self, *args)
            number = _calls.number()
            keys = args[0] if args and isinstance(args[0], (list, str)) else []
            channel().say("store", n=number, op=_name, keys=keys if isinstance(keys, list) else [keys], at=at)
            result = _original(self, *args)
            channel().say("ret", n=number)
            return result

        setattr(Store, name, functools.wraps(original)(call))


def _watch_variables() -> None:
    """Variables of the rendezvous that the script sets."""
    kind: Any = type(os.environ)
    original = kind.__setitem__

    def set_item(self: Any, name: Any, value: Any) -> None:
        if name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE") and not _calls.is_inside:
            at = frames_of_user()
            if at:
                channel().say("variable", what=name, at=at)
        original(self, name, value)

    kind.__setitem__ = set_item


def _backend(given: Any) -> tuple[str, str]:
    """The backend that the script asked for, and the one that is used."""
    asked = str(given).lower() if given is not None else ""
    if not asked or asked == "undefined":
        return "cuda:nccl,cpu:gloo" if torch.cuda.is_available() else "gloo", "gloo"
    return asked, "gloo" if "nccl" in asked or "gloo" in asked else asked


def _init_process_group(original: Any) -> Any:
    signature = inspect.signature(original)

    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        given = _bound(signature, args, kwargs)
        at = place()
        if not given or dist.is_initialized() or _calls.is_inside:
            if dist.is_initialized():
                channel().say("second_init", at=at)
            return original(*args, **kwargs)
        if channel().is_watch:
            return _join(original, given, at)
        asked, used = _backend(given.get("backend"))
        timeout = given.get("timeout")
        device_id = given.get("device_id")
        if isinstance(device_id, torch.device) and device_id.type == "cuda" and device_id.index is not None:
            devices.as_device(device_id)
        method = given.get("init_method")
        fields = {
            "backend": asked,
            "method": method,
            "device_id": None if device_id is None else str(device_id),
            "timeout": timeout.total_seconds() if isinstance(timeout, timedelta) else None,
            "bad_timeout": None if timeout is None or isinstance(timeout, timedelta) else type(timeout).__name__,
            "rank_given": given.get("rank"),
            "world_given": given.get("world_size"),
            "master": os.environ.get("MASTER_ADDR"),
            "port": os.environ.get("MASTER_PORT"),
            "library": is_called_by_library(),
        }
        channel().say("joining", at=at, **fields)
        changed: dict[str, Any] = {**given, "backend": used}
        if timeout is None or isinstance(timeout, timedelta):
            changed["timeout"] = LONG
        if "device_id" in changed:
            changed["device_id"] = None
        if "pg_options" in changed:
            changed["pg_options"] = None
        if isinstance(method, str) and method.startswith("tcp://"):
            changed["init_method"] = HOST_OF_METHOD.sub("tcp://127.0.0.1", method, count=1)
        if os.environ.get("MASTER_ADDR"):
            os.environ["MASTER_ADDR"] = "127.0.0.1"
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        _calls.enter()
        try:
            result = original(**changed)
        finally:
            _calls.leave()
        _calls.backends["world"] = _calls.world_backend = "nccl" if asked == "nccl" else asked
        current = devices.current() if torch.cuda.is_available() else None
        origins.begin(dist.get_world_size())
        _calls.kept.append(dist.group.WORLD)
        channel().say(
            "joined",
            rank=dist.get_rank(),
            world=dist.get_world_size(),
            backend=asked,
            device=current,
            at=at,
            device_id=fields["device_id"],
        )
        return result

    return init_process_group


def _join(original: Any, given: dict[str, Any], at: list[Place]) -> Any:
    """Join a real job."""
    asked = str(given.get("backend") or "").lower()
    channel().say("joining", at=at, backend=asked)
    _calls.enter()
    try:
        result = original(**given)
    finally:
        _calls.leave()
    _calls.world_backend = asked
    channel().say("joined", rank=dist.get_rank(), world=dist.get_world_size(), backend=asked, at=at)
    return result


def _new_group(original: Any) -> Any:
    signature = inspect.signature(original)

    def new_group(*args: Any, **kwargs: Any) -> Any:
        if _calls.is_inside or channel().is_off or not dist.is_initialized():
            return original(*args, **kwargs)
        given = _bound(signature, args, kwargs)
        if not given:
            return original(*args, **kwargs)
        ranks = given.get("ranks")
        if channel().is_watch:
            listed = list(range(dist.get_world_size())) if ranks is None else [int(rank) for rank in ranks]
            if given.get("use_local_synchronization"):
                return original(*args, **kwargs)
            return record("new_group", None, lambda: original(*args, **kwargs), at=place(), ranks=listed)
        asked, used = (
            _backend(given.get("backend")) if given.get("backend") is not None else (_calls.world_backend, "gloo")
        )
        changed: dict[str, Any] = {**given, "backend": used, "timeout": LONG}
        if "pg_options" in changed:
            changed["pg_options"] = None
        if "device_id" in changed:
            changed["device_id"] = None
        listed = list(range(dist.get_world_size())) if ranks is None else [int(rank) for rank in ranks]
        is_local = bool(given.get("use_local_synchronization"))
        at = place()
        if is_local:
            group = original(**changed)
        else:
            group = record("new_group", None, lambda: original(**changed), at=at, ranks=listed)
        name = None if group is None else _calls.name_of(group) if group is not dist.group.WORLD else None
        if name is not None:
            _calls.backends[name] = asked
            channel().say("group_backend", g=name, backend=asked)
        return group

    return new_group


def _split_group(original: Any) -> Any:
    """gloo cannot split: the group is made by new_group."""

    def split_group(parent_pg: Any = None, split_ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if channel().is_watch:
            return original(parent_pg, split_ranks, *args, **kwargs)
        own = None
        for ranks in split_ranks or ():
            group = dist.new_group(list(ranks))
            own = group if dist.get_rank() in ranks else own
        return own

    return split_group


def _destroy(original: Any) -> Any:
    def destroy_process_group(group: Any = None) -> Any:
        if dist.is_initialized():
            channel().say("destroy", g=_calls.name_of(group) or "", at=place())
        _calls.enter()
        try:
            return original(group)
        finally:
            _calls.leave()

    return destroy_process_group
