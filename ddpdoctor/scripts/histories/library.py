"""What the functions of torch and of Python do to values: tensors, random generators, data, files."""

from __future__ import annotations

import ast
from dataclasses import replace

from ddpdoctor.scripts.histories import quantities
from ddpdoctor.scripts.histories.collectives import collective
from ddpdoctor.scripts.histories.executor import Executor
from ddpdoctor.scripts.histories.file_uses import file_function
from ddpdoctor.scripts.histories.module_uses import autograd_gradient, initialized, parameters_of, wrapped
from ddpdoctor.scripts.histories.process_state import (
    RANDOM_SAMPLERS,
    RANDOM_STATES,
    batches_differ,
    device_chosen,
    opened,
    random_sampler,
    random_state_set,
    seed_workers,
    socket_value,
    worker_seeded,
)
from ddpdoctor.scripts.histories.rank_numbers import number_of_rank
from ddpdoctor.scripts.histories.record import MistakeKind
from ddpdoctor.scripts.histories.values import NOTHING, SAME, UNKNOWN, DiffersBy, Power, Traced, TracedKind, derived

__all__ = ["call_library", "flat", "pure"]

_SAME_LENGTH = ("sorted", "list", "tuple", "reversed", "enumerate", "tqdm.tqdm", "tqdm.auto.tqdm", "tqdm", "iter")
_NUMBERS = (
    "int",
    "float",
    "bool",
    "abs",
    "round",
    "min",
    "max",
    "sum",
    "len",
    "divmod",
    "math.ceil",
    "math.floor",
    "pow",
    "any",
    "all",
)
_DRAWS = (
    "rand",
    "randn",
    "randint",
    "normal",
    "rand_like",
    "randn_like",
    "randint_like",
    "bernoulli",
    "randperm",
    "multinomial",
)
_LINEAR = ("torch.stack", "torch.cat", "torch.tensor", "torch.as_tensor", "torch.sum", "torch.mean", "torch.flatten")
_LIKE = ("torch.zeros_like", "torch.ones_like", "torch.empty_like", "torch.full_like")
_EMPTY = ("torch.zeros", "torch.ones", "torch.empty", "torch.full", "torch.arange", "torch.linspace", "torch.eye")
_SEEDS = {
    "torch.manual_seed": "torch",
    "cuda.manual_seed_all": "cuda",
    "cuda.manual_seed": "cuda",
    "random.seed": "random",
    "numpy.random.seed": "numpy",
}
_STEPS = ("steps_per_epoch", "total_steps", "T_max", "total_iters")
_CLOCKS = (
    "time.time",
    "time.monotonic",
    "time.perf_counter",
    "time.time_ns",
    "time.strftime",
    "time.ctime",
    "datetime.datetime.now",
    "datetime.datetime.utcnow",
    "time.perf_counter_ns",
    "time.monotonic_ns",
)
_UNIQUE = ("uuid.uuid4", "uuid.uuid1", "secrets.token_hex", "os.getpid", "os.urandom")
_ENVIRONMENT = {
    "RANK": Traced(TracedKind.NUMBER, frozenset((DiffersBy.RANK,)), True, ("rank",), "rank"),
    "SLURM_PROCID": Traced(TracedKind.NUMBER, frozenset((DiffersBy.RANK,)), True, ("rank",), "rank"),
    "LOCAL_RANK": Traced(TracedKind.NUMBER, frozenset((DiffersBy.LOCAL_RANK,)), True, ("local rank",), "local rank"),
    "SLURM_LOCALID": Traced(TracedKind.NUMBER, frozenset((DiffersBy.LOCAL_RANK,)), True, ("local rank",), "local rank"),
    "GROUP_RANK": Traced(TracedKind.NUMBER, frozenset((DiffersBy.NODE,)), True, ("node",)),
    "SLURM_NODEID": Traced(TracedKind.NUMBER, frozenset((DiffersBy.NODE,)), True, ("node",)),
    "WORLD_SIZE": replace(SAME, symbol=("world",), marks=frozenset(("world",))),
    "LOCAL_WORLD_SIZE": replace(SAME, symbol=("local world",), marks=frozenset(("local world",))),
}


_ENVIRONMENT |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "PMI_SIZE"), _ENVIRONMENT["WORLD_SIZE"])
_ENVIRONMENT |= {"OMPI_COMM_WORLD_SIZE": _ENVIRONMENT["WORLD_SIZE"], "OMPI_COMM_WORLD_RANK": _ENVIRONMENT["RANK"]}
_ENVIRONMENT |= {"OMPI_COMM_WORLD_LOCAL_RANK": _ENVIRONMENT["LOCAL_RANK"], "PMI_RANK": _ENVIRONMENT["RANK"]}


def call_library(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    """The result of a function that the project does not define; None if it is unknown what it does."""
    for value in (*args, *kw.values()):
        if value.kind is TracedKind.SAMPLER and value.ref:
            ex.change(value, marks=ex.now(value).marks | {"used"})
    for look in (_identity, _python, _random, _data, collective, wrapped, file_function, _training, _torch):
        result = look(ex, node, name, args, kw)
        if result is not None:
            return result
    return None


def flat(ex: Executor, values: list[Traced]) -> list[Traced]:
    """The values, with the elements of lists instead of the lists."""
    result: list[Traced] = []
    for value in values:
        present = ex.now(value)
        result.append(ex.item_of(present) if present.kind is TracedKind.LIST else present)
    return result


def pure(ex: Executor, node: ast.AST, kind: TracedKind, values: list[Traced], symbol: object = None) -> Traced:
    """The result of a function without side effects."""
    result = derived(kind, *flat(ex, values), symbol=symbol)
    if any(ex.now(v).has("gathered") for v in values):
        result = result.marked("gathered")
    if "no_grad" in ex.contexts:
        result = replace(result, trains=frozenset())
    return ex.new(result, node) if kind is TracedKind.TENSOR else result


def _identity(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    known = number_of_rank(ex, name, args, kw)
    if known is not None:
        return known
    if name == "dist.init_process_group":
        given = kw.get("rank")
        size = kw.get("world_size")
        if (given is not None and given.origins == {DiffersBy.LOCAL_RANK}) or (
            size is not None and size.has("local world")
        ):
            ex.is_one_node = True
        return UNKNOWN
    if name == "dist.get_rank":
        return _ENVIRONMENT["RANK"]
    if name == "dist.get_world_size":
        return _ENVIRONMENT["WORLD_SIZE"]
    if name == "dist.get_node_local_rank":
        return _ENVIRONMENT["LOCAL_RANK"]
    if name == "cuda.device_count":
        return _ENVIRONMENT["LOCAL_WORLD_SIZE"]
    if name == "os.getenv" and args and isinstance(args[0].constant, str):
        return environment(args[0].constant)
    if name in ("dist.is_initialized", "dist.is_available", "cuda.is_available"):
        return Traced(TracedKind.CONSTANT, certain=True, constant=True)
    if name == "isinstance" and len(args) == 2:
        is_wrapper = args[0].kind is TracedKind.WRAPPER and args[1].constant in ("DDP", "FSDP")
        if is_wrapper or (args[0].kind is TracedKind.MODULE and args[1].constant in ("DDP", "FSDP")):
            return Traced(TracedKind.CONSTANT, certain=True, constant=is_wrapper and args[0].has(str(args[1].constant)))
        return SAME if args[0].certain and not args[0].origins else UNKNOWN
    return None


def environment(name: str) -> Traced:
    """A variable of the environment."""
    known = _ENVIRONMENT.get(name)
    return known if known is not None else Traced(TracedKind.TEXT, certain=True, symbol=("variable", name))


def _python(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    if name == "setattr" and len(args) == 3:
        ex.set_field(args[0], str(args[1].constant or "(unknown)"), args[2], node)
        return NOTHING
    if name == "getattr" and len(args) >= 2 and isinstance(args[1].constant, str):
        return ex.attribute(args[0], args[1].constant, node)
    if name == "getattr" and args and args[0].kind is TracedKind.MODULE:
        return next((ex.now(v) for v in args[0].fields.values() if v.kind is TracedKind.MODULE), UNKNOWN)
    if name == "hash" and args:
        text = args[0].kind is TracedKind.TEXT or isinstance(args[0].constant, str)
        hashed = derived(TracedKind.NUMBER, args[0])
        return hashed.marked("hashed") if text else hashed
    if name == "hasattr":
        return SAME
    if name == "len" and args:
        return _length(args[0])
    if name == "range":
        return _range(ex, node, args)
    if name == "zip":
        items = tuple(ex.item_of(a) for a in args)
        marks = frozenset(m for a in args for m in ex.now(a).marks if m in ("uneven", "own-keys"))
        return Traced(
            TracedKind.LIST,
            certain=True,
            fields={"item": Traced(TracedKind.LIST, certain=True, items=items)},
            marks=marks,
        )
    if name == "enumerate" and args:
        index = replace(SAME, symbol=("index", id(node)))
        pair = Traced(TracedKind.LIST, certain=True, items=(index, ex.item_of(args[0])))
        return Traced(
            TracedKind.LIST,
            args[0].origins & {DiffersBy.SET_ORDER},
            args[0].certain,
            fields={"item": pair},
            marks=args[0].marks & {"uneven", "own-keys", "of-loader"},
        )
    if name == "sorted" and args:
        return ex.new(
            replace(args[0], kind=TracedKind.LIST, origins=args[0].origins - {DiffersBy.SET_ORDER}, ref=0), node
        )
    if name in ("set", "frozenset") and args:
        items = args[0].items or ()
        texts = bool(items) and all(isinstance(v.constant, str) for v in items)
        return Traced(TracedKind.SET, frozenset((DiffersBy.SET_ORDER,)) if texts else frozenset(), texts, made=node)
    if name == "next" and args:
        return ex.item_of(args[0])
    if name == "iter" and args:
        opened(ex, node, args[0])
    if name in _SAME_LENGTH and args:
        return (
            ex.now(args[0])
            if name != "list" or args[0].kind is not TracedKind.LIST
            else ex.new(replace(args[0], ref=0), node)
        )
    if name == "itertools.cycle" and args:
        sampler = args[0].fields.get("sampler") if args[0].kind is TracedKind.LOADER else None
        if sampler is not None and sampler.kind is TracedKind.SAMPLER and not ex.now(sampler).has("in order"):
            ex.mistake(MistakeKind.LOADER_CYCLED, node, sampler.made)
        return args[0].without("uneven")
    if name in ("itertools.islice", "itertools.count"):
        return Traced(
            TracedKind.LIST,
            certain=True,
            fields={"item": ex.item_of(args[0]) if args and name.endswith("islice") else SAME},
        )
    if name in ("dict", "collections.defaultdict", "collections.OrderedDict", "list", "collections.deque"):
        kind = TracedKind.LIST if name in ("list", "collections.deque") else TracedKind.DICT
        fields = {f"[{k}]": v for k, v in kw.items()}
        return ex.new(Traced(kind, certain=True, fields=fields), node)
    if name in ("int", "float", "bool", "str", "os.fspath") and args:
        kind = TracedKind.TEXT if name in ("str", "os.fspath") else TracedKind.NUMBER
        marks = (
            args[0].marks
            if name == "int"
            else args[0].marks
            & (
                {"agreed", "uneven", "end", "ragged", "multiple", "world", "local world", "summed", "group-rank"}
                | quantities.QUANTITIES
            )
        )
        kept = args[0].kind is TracedKind.NUMBER or (
            args[0].kind is TracedKind.CONSTANT and name != "bool" and not isinstance(args[0].constant, str)
        )
        return (
            args[0]
            if kept and name != "str"
            else Traced(
                kind,
                args[0].origins,
                args[0].certain,
                args[0].symbol,
                args[0].constant if kept else None,
                marks=marks,
                power=args[0].power,
            )
        )
    if name in _NUMBERS:
        return pure(ex, node, TracedKind.NUMBER, [*args, *kw.values()])
    if name in ("print", "super", "warnings.warn") or name.startswith("logging."):
        for value in (*args, *kw.values()) if not any(a.constant == "rank" for a in args) else ():
            quantities.shown(ex, value)
        return UNKNOWN
    if name.startswith(("argparse.", "logging.", "contextlib.nullcontext", "gc.", "math.")):
        return (
            Traced(TracedKind.CONTEXT, certain=True)
            if "nullcontext" in name
            else pure(ex, node, TracedKind.NUMBER, args)
            if name.startswith("math.")
            else Traced(TracedKind.UNKNOWN, certain=True, symbol=("made", name))
        )
    if name == "copy.deepcopy" and args and args[0].kind is TracedKind.MODULE:
        return ex.new(replace(args[0], ref=0, of=0, marks=args[0].marks - {"wrapped"}), node)
    if name in ("copy.deepcopy", "copy.copy") and args:
        return replace(args[0], ref=0)
    if name in _CLOCKS:
        return Traced(TracedKind.NUMBER, frozenset((DiffersBy.CLOCK,)), True, made=node)
    made = socket_value(ex, node, name, args)
    if made is not None:
        return made
    if name in _UNIQUE:
        return Traced(TracedKind.TEXT, frozenset((DiffersBy.RANDOM,)), True, made=node)
    return None


def _length(value: Traced) -> Traced:
    if "length" in value.fields:
        return value.fields["length"]
    if value.items is not None and value.kind is TracedKind.LIST:
        return Traced(
            TracedKind.CONSTANT, certain=True, constant=len(value.items), symbol=("constant", len(value.items))
        )
    own = value.certain and value.has("uneven")
    marks = (
        {"length-of-data"}
        | ({"uneven"} if own else set())
        | (value.marks & {"ragged"})
        | ({"end"} if value.kind is TracedKind.LOADER else set())
    )
    if (value.kind is TracedKind.DATASET or value.has("whole-dataset")) and not value.has("own-slice"):
        marks.add("dataset-length")
    marks |= value.marks & {"of-part", "of-whole"}
    origins = frozenset((DiffersBy.DATA,)) if own else frozenset[DiffersBy]()
    symbol = ("len", value.symbol) if value.symbol is not None else ("len", value.ref) if value.ref else None
    known = own or value.kind in (TracedKind.LOADER, TracedKind.DATASET) or not value.has("own-slice")
    return Traced(TracedKind.NUMBER, origins, known, symbol, marks=frozenset(marks))


def _range(ex: Executor, node: ast.Call, args: list[Traced]) -> Traced:
    marks: set[str] = set()
    own = [
        a
        for a in args
        if a.certain
        and a.origins & {DiffersBy.RANK, DiffersBy.LOCAL_RANK, DiffersBy.DATA, DiffersBy.CLOCK, DiffersBy.RANDOM}
    ]
    by_rank = len(args) == 3 and args[2].has("world") and bool(args[0].origins & {DiffersBy.RANK})
    if own and not by_rank and (len(args) == 1 or not _is_block(args)):
        marks.add("uneven")
    if by_rank:
        marks |= {"own-slice"} if args[1].has("multiple") else {"own-slice", "ragged"}
    if any(a.has("ragged") for a in args):
        marks.add("ragged")
    length = {"length": args[0]} if len(args) == 1 else {}
    item = replace(SAME, symbol=("index", id(node)), origins=frozenset((DiffersBy.DATA,)) if by_rank else frozenset())
    symbol = ("range", *(a.symbol for a in args)) if all(a.symbol is not None for a in args) else None
    return Traced(
        TracedKind.LIST,
        certain=all(a.certain for a in args),
        symbol=symbol,
        fields={"item": item, **length},
        marks=frozenset(marks),
    )


def _is_block(args: list[Traced]) -> bool:
    """`range(rank * n, (rank + 1) * n)`: both ends depend on the rank."""
    return len(args) >= 2 and bool(args[0].origins) and bool(args[1].origins) and not args[1].has("uneven")


def _random(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    generators = ex.state.generators
    if name in _SEEDS:
        seed = args[0] if args else kw.get("seed", UNKNOWN)
        own = (
            frozenset((DiffersBy.DATA,))
            if seed.origins & {DiffersBy.RANK, DiffersBy.LOCAL_RANK}
            else frozenset[DiffersBy]()
        )
        generators[_SEEDS[name]] = own
        worker_seeded(ex, node, seed)
        if name == "torch.manual_seed":
            generators["seeded alike"] = frozenset() if own or not seed.certain else frozenset((DiffersBy.RANDOM,))
        return ex.new(Traced(TracedKind.GENERATOR, own, True), node)
    if name in ("torch.Generator", "random.Random", "numpy.random.default_rng", "numpy.random.RandomState"):
        given = args[0] if args and name != "torch.Generator" else None
        own = (
            frozenset((DiffersBy.DATA,))
            if given is not None and given.origins & {DiffersBy.RANK, DiffersBy.LOCAL_RANK}
            else frozenset[DiffersBy]()
        )
        unseeded = given is None and name != "torch.Generator"
        return ex.new(Traced(TracedKind.GENERATOR, frozenset((DiffersBy.RANDOM,)) if unseeded else own, True), node)
    if name.startswith(("random.", "numpy.random.")):
        library = "random" if name.startswith("random.") else "numpy"
        if name.endswith("shuffle"):
            _shuffled(ex, node, args, generators.get(library, frozenset((DiffersBy.RANDOM,))))
            return UNKNOWN
        if name == "numpy.random.permutation":
            drawn = generators.get(library, frozenset((DiffersBy.RANDOM,)))
            order = frozenset(("own-order",)) if drawn else frozenset[str]()
            return ex.new(Traced(TracedKind.LIST, certain=True, marks=order), node)
        origins = generators.get(library, frozenset((DiffersBy.RANDOM,)))
        changed = frozenset((DiffersBy.RANDOM,)) if origins else origins
        return Traced(TracedKind.NUMBER, changed, True)
    word = name.removeprefix("torch.")
    if name.startswith("torch.") and word in _DRAWS:
        generator = kw.get("generator")
        own = generator.origins if generator is not None else generators.get("torch", frozenset())
        if generator is None and generators.get("seeded alike"):
            drawn_alike(ex, node, args)
        operands = [a for a in args if word in ("multinomial", "bernoulli")]
        result = derived(TracedKind.TENSOR, *operands)
        known = generator is None or generator.certain
        return ex.new(replace(result, origins=result.origins | own, certain=result.certain and known), node)
    return None


def _shuffled(ex: Executor, node: ast.Call, args: list[Traced], drawn: frozenset[DiffersBy]) -> None:
    """A list is shuffled in place: without a common seed each rank has its own order."""
    if args and args[0].ref and drawn:
        ex.change(args[0], marks=ex.now(args[0]).marks | {"own-order"}, items=None, made=node)


def drawn_alike(ex: Executor, node: ast.Call, args: list[Traced]) -> None:
    """Random numbers are drawn for a batch of the rank, and all ranks draw the same ones."""
    if "no_grad" not in ex.contexts and ex.in_training_loop():
        ex.mistake(MistakeKind.SAME_DRAWS, node)


def _data(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    if name == "DistributedSampler":
        return _sampler(ex, node, args, kw)
    if name in RANDOM_SAMPLERS:
        return random_sampler(ex, node, args, kw)
    if name == "DataLoader":
        return _loader(ex, node, args, kw)
    if name.startswith("torch.utils.data.") and name.endswith(("TensorDataset", "Subset", "ConcatDataset")):
        result = derived(TracedKind.DATASET, *flat(ex, args))
        marks = frozenset(m for a in args for m in ex.now(a).marks if m in ("uneven", "own-slice"))
        return ex.new(replace(result, marks=result.marks - {"ragged"} | marks, certain=True), node)
    if name == "torch.utils.data.random_split":
        if "generator" not in kw and len(args) < 3 and ex.state.generators.get("torch") and not ex.differs_here():
            ex.mistake(MistakeKind.SPLIT_DIFFERS, node)
        part = ex.new(Traced(TracedKind.DATASET, certain=True), node)
        return Traced(TracedKind.LIST, certain=True, fields={"item": part})
    if name == "torch.utils.data.get_worker_info":
        ex.reads.add("worker")
        return Traced(TracedKind.OBJECT, certain=False)
    return None


def _sampler(ex: Executor, node: ast.Call, args: list[Traced], kw: dict[str, Traced]) -> Traced:
    replicas = kw.get("num_replicas") or (args[1] if len(args) > 1 else None)
    rank = kw.get("rank") or (args[2] if len(args) > 2 else None)
    of_node = replicas is not None and replicas.has("local world") and ex.knows_rank
    if of_node or (rank is not None and rank.certain and rank.origins == {DiffersBy.LOCAL_RANK} and ex.knows_rank):
        ex.mistake(MistakeKind.SAMPLER_OF_NODE, node)
    is_global = rank is None or (rank.certain and rank.constant == "rank")
    if is_global and ex.tensor_mesh is not None:
        ex.mistake(MistakeKind.SAMPLER_OF_TENSOR_PEERS, node, ex.tensor_mesh)
    seed = kw.get("seed")
    if seed is not None and seed.certain and seed.origins & {DiffersBy.RANK, DiffersBy.RANDOM, DiffersBy.CLOCK}:
        given = next((k.value for k in node.keywords if k.arg == "seed"), node)
        ex.mistake(MistakeKind.SAMPLER_SEED_DIFFERS, given)
    shuffle = kw.get("shuffle")
    in_order = shuffle is not None and shuffle.constant is False
    dataset = args[0] if args else kw.get("dataset", UNKNOWN)
    if is_global and ex.now(dataset).has("own-slice") and ex.now(dataset).certain:
        ex.mistake(MistakeKind.SPLIT_TWICE, node)
    marks = frozenset(("in order",)) if in_order else frozenset[str]()
    sampler = ex.new(Traced(TracedKind.SAMPLER, certain=True, fields={"dataset": dataset}, marks=marks), node)
    ex.samplers.append((sampler.ref, ex.module, node))
    return sampler


def _loader(ex: Executor, node: ast.Call, args: list[Traced], kw: dict[str, Traced]) -> Traced:
    dataset = ex.now(args[0] if args else kw.get("dataset", UNKNOWN))
    sampler = kw.get("sampler") or kw.get("batch_sampler")
    is_split = sampler is not None and sampler.kind is TracedKind.SAMPLER
    own = is_split or dataset.has("own-slice") or bool(dataset.origins & {DiffersBy.DATA, DiffersBy.RANK})
    marks = {m for m in ("uneven",) if dataset.has(m)} | {"of-loader"} | ({"own-data"} if own else set())
    fields = {"dataset": dataset} | ({"sampler": sampler} if sampler is not None else {})
    if sampler is not None and batches_differ(ex, sampler):
        marks |= {"uneven", "own-data"}
        own = True
    is_whole = sampler is None and not own and dataset.kind is TracedKind.DATASET and dataset.certain
    quantity = quantities.batch_marks(is_split=own, is_whole=is_whole)
    batch = Traced(TracedKind.TENSOR, frozenset((DiffersBy.DATA,)) if own else frozenset(), own, marks=quantity)
    loader = ex.new(
        Traced(TracedKind.LOADER, certain=True, fields={**fields, "item": batch}, marks=frozenset(marks)), node
    )
    ex.loaders.append((ex.module, node, dataset, sampler, any(k.arg is None for k in node.keywords)))
    if is_split and "worker_init_fn" in kw:
        seed_workers(ex, node, kw["worker_init_fn"])
    workers = kw.get("num_workers")
    ex.stream(dataset, node, workers)
    return loader


def _training(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    if name.startswith("torch.optim.lr_scheduler."):
        for keyword in node.keywords:
            steps = kw.get(str(keyword.arg)) if keyword.arg in _STEPS else None
            if steps is not None and steps.has("dataset-length") and any(s for _, _, _, s, _ in ex.loaders):
                ex.mistake(MistakeKind.SCHEDULE_TOO_LONG, keyword.value, node)
        plateau = frozenset(("plateau",)) if name.endswith("ReduceLROnPlateau") else frozenset[str]()
        optimizer = ex.now(args[0] if args else kw.get("optimizer", UNKNOWN))
        of = ex.root(optimizer.of) if optimizer.of else 0
        return ex.new(Traced(TracedKind.OBJECT, certain=False, marks=plateau | {"scheduler"}, of=of), node)
    if name.startswith("torch.optim."):
        given = flat(ex, args[:1])[0] if args else kw.get("params", UNKNOWN)
        whole = ex.now(args[0]) if args else kw.get("params", UNKNOWN)
        of = whole.of or given.of
        root = ex.state.heap.get(ex.root(of))
        marks = frozenset(("sharded",)) if root is not None and root.has("sharded") else frozenset[str]()
        return ex.new(Traced(TracedKind.OPTIMIZER, certain=bool(of), marks=marks, of=of), node)
    if name.endswith("GradScaler"):
        return ex.new(Traced(TracedKind.SCALER, certain=not name.endswith("ShardedGradScaler")), node)
    if name in ("mp.spawn", "mp.start_processes") and args:
        _spawn(ex, node, args, kw)
        return UNKNOWN
    if name.endswith(("clip_grad_norm_", "clip_grad_value_")) and name.startswith("nn.utils") and args:
        root = parameters_of(ex, args[0])
        if root is not None and root.has("FSDP") and name.endswith("norm_"):
            ex.mistake(MistakeKind.CLIPPED_SHARD, node)
        gradient = root.fields.get("(gradient)") if root is not None else None
        if gradient is not None and ex.now(gradient).has("scaled"):
            ex.mistake(MistakeKind.CLIPPED_SCALED, node)
        return UNKNOWN
    return None


def _spawn(ex: Executor, node: ast.Call, args: list[Traced], kw: dict[str, Traced]) -> None:
    """mp.spawn calls a function with the rank and the other arguments."""
    rest = kw.get("args") or (args[1] if len(args) > 1 else None)
    given = list(rest.items) if rest is not None and rest.items is not None else []
    count = kw.get("nprocs")
    world = replace(SAME, symbol=("world",), marks=frozenset(("world",)))
    given = [world if count is not None and value == count else value for value in given]
    given = [replace(v, origins=v.origins - {DiffersBy.RANDOM, DiffersBy.CLOCK}) for v in given]  # one value for all
    ex.is_child = True
    ex.call(node, args[0], [_ENVIRONMENT["RANK"], *given], {})
    ex.is_child = False


def _torch(ex: Executor, node: ast.Call, name: str, args: list[Traced], kw: dict[str, Traced]) -> Traced | None:
    if name.rpartition(".")[2] in ("Replicate", "Shard", "Partial"):
        return replace(SAME, symbol=(name.rpartition(".")[2],))
    if name in ("torch.no_grad", "torch.inference_mode"):
        return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(("no_grad",)))
    if name.rpartition(".")[2] == "Join":
        throws = kw.get("throw_on_early_termination")
        marks = {"join"} | ({"throws"} if throws is not None and throws.constant is not False else set())
        return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(marks))
    if name in ("torch.autocast", "cuda.amp.autocast", "torch.amp.autocast"):
        return Traced(TracedKind.CONTEXT, certain=True)
    if name == "torch.device":
        text = ast.unparse(node)
        marks = (
            {"cuda"}
            if "cuda" in text and "cpu" not in text
            else {"cpu"}
            if "cpu" in text and "cuda" not in text
            else set()
        )
        if args and args[0].constant == "meta":
            return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(("meta",)))
        device_chosen(ex, node, args)
        return Traced(TracedKind.TEXT, certain=True, marks=frozenset(marks))
    if name == "accelerate.init_empty_weights":
        return Traced(TracedKind.CONTEXT, certain=True, marks=frozenset(("meta",)))
    if name == "cuda.set_device":
        device_chosen(ex, node, args)
        return NOTHING
    if name == "torch.autograd.grad":
        return autograd_gradient(ex, node, args)
    if name in ("torch.initial_seed", "torch.seed"):
        return UNKNOWN
    if name in RANDOM_STATES and args:
        random_state_set(ex, node, args[0])
        return NOTHING
    if name in _EMPTY:
        return ex.new(Traced(TracedKind.TENSOR, certain=True, fields={"rows": args[0]} if args else {}), node)
    if name in _LIKE:
        return ex.new(Traced(TracedKind.TENSOR, certain=True), node)
    if name in ("torch.isfinite", "torch.isnan", "torch.isinf"):
        return pure(ex, node, TracedKind.TENSOR, args).marked("mask")
    if name == "torch.compile" and args:
        return args[0]
    if name.startswith("nn.init."):
        for value in args[:1]:
            initialized(ex, value.of or value.ref)
        return UNKNOWN
    if name.startswith("nn.functional.") or name in _LINEAR or _is_pure_torch(name):
        result = pure(ex, node, TracedKind.TENSOR, [*args, *kw.values()])
        operands = [v for v in flat(ex, args) if v.kind in (TracedKind.TENSOR, TracedKind.NUMBER, TracedKind.GRADIENT)]
        if name in _LINEAR and operands and all(o.power == operands[0].power for o in operands):
            result = ex.change(result, power=operands[0].power)
        elif name not in _LINEAR:
            result = ex.change(result, power=Power())
        if quantities.is_mean_loss(name, kw) or name == "torch.mean":
            result = ex.change(result, marks=result.marks | {"mean"})
        return result
    if name.startswith("numpy."):
        return pure(ex, node, TracedKind.TENSOR, [*args, *kw.values()])
    return None


def _is_pure_torch(name: str) -> bool:
    base, _, word = name.rpartition(".")
    return (
        base == "torch"
        and word.islower()
        and word not in ("load", "save", "compile", "set_grad_enabled")
        and not word.startswith(("set_", "use_"))
    )
