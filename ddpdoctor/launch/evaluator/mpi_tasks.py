"""The tasks that mpirun, mpiexec and horovodrun start: hosts, slots, and variables of the ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from ddpdoctor.facts.launch.layer import Layer
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.launch.evaluator.cluster import MOST_NODES, Allocation, number_of, option
from ddpdoctor.launch.evaluator.imagined_run import Withheld
from ddpdoctor.launch.evaluator.slurm_steps import MOST_TASKS
from ddpdoctor.launch.evaluator.started_launchers import LaunchedTask, StartedLauncher, TaskLayout, of_task
from ddpdoctor.launch.evaluator.values import Origin, Value
from ddpdoctor.launch.hostfiles import slots_of_hosts

__all__ = ["MpiTasks"]


class MpiTasks:
    """MPI launchers in one allocation; `read` gives the text of a file of the job, by its path and the working directory."""

    def __init__(self, allocation: Allocation, read: Callable[[str, str | None], str | None]) -> None:
        self._allocation, self._read = allocation, read

    def layout(self, what: StartedLauncher) -> TaskLayout:
        """MPI ranks. Open MPI that reaches other hosts by ssh gives them only the variables that `-x` names; Hydra (MPICH,
        Intel MPI) passes all on, as Open MPI does where a scheduler starts its daemons.
        """
        layer, environ = what.layer, what.environ
        count = number_of(option(layer, "-np", "-n", "--np", "-c"))
        slots_of = self._mpi_slots(layer, what.folder)
        hosts = tuple(slots_of)
        per_node = _per_node(layer)
        slots = None if self._allocation.is_slurm else self._allocation.tasks_per_node
        per_host = per_node or slots
        sizes = {host: per_host or slots_of[host] for host in hosts}
        known = None if None in sizes.values() else sum(size or 0 for size in sizes.values())
        count = known if count is None and known else count or len(hosts)
        named = [given for given in layer.reading.given if given.flag == "-x"]
        forwarded = {
            name: what.value_of(given.value_word, text) if sign else environ.get(name, Value(UNKNOWN))
            for given in named
            for name, sign, text in ((given.value or "").partition("="),)
        }
        even = max(1, -(-count // len(hosts)))
        variables = _VARIABLES[_library(layer)]
        tasks = []
        for rank, node, local in _placed(count, [sizes[host] or even for host in hosts]):
            numbers = {"rank": of_task(rank), "local": of_task(local), "size": Value(str(count))}
            own = {name: numbers[which] for name, which in variables.items()}
            gpus = self._allocation.gpus_per_node
            tasks.append(LaunchedTask(hosts[node], node, rank, local, gpus, {**forwarded, **own}))
        flags = {given.flag for given in layer.reading.given}
        is_open = bool(flags & _OPEN_MPI) or environ.get(_ROLE, Value()).text == "launcher"
        is_by_ssh = not self._allocation.scheduler and is_open and not flags & _HYDRA
        is_by_ssh &= layer.name != "horovodrun"  # it exports the whole environment
        at = what.argv[0].origins[0] if what.argv[0].origins else Origin("", 0, 0)
        gone = {
            name: Withheld(value, "mpirun without -x", at)
            for name, value in environ.items()
            if name not in forwarded and value.origins
        }
        return tasks, dict(environ), gone if is_by_ssh else {}

    def slots(self, what: StartedLauncher) -> int | None:
        """How many processes the hosts of Open MPI or horovodrun take: a host of a list without a count takes one."""
        layer = what.layer
        flags = {given.flag for given in layer.reading.given}
        is_open_mpi = bool(flags & (_OPEN_MPI - {"--host"})) and not flags & _HYDRA
        is_horovod = layer.name == "horovodrun"
        if (self._allocation.scheduler and not is_horovod) or any(_MORE_ALLOWED.search(w.text) for w in layer.own):
            return None
        slots_of = self._mpi_slots(layer, what.folder)
        listed = option(layer, "-H", "--host", "-host", "-hosts", "--hosts")
        if UNKNOWN in (listed or ""):
            return None
        if listed is None and option(layer, "--hostfile", "-hostfile") is None:
            default = what.environ.get(_DEFAULT_HOSTS)
            text = None if default is None else self._read(default.text, what.folder)
            slots_of = slots_of_hosts(text) if text is not None else {"": None}
        if None in slots_of.values() and (listed is None or not is_open_mpi):
            return None
        if not is_open_mpi and not is_horovod:
            return None
        most = _mapped(layer)  # of the slots of a host, Open MPI fills only as many
        return sum(slots or 1 if most is None else min(slots or 1, most) for slots in slots_of.values())

    def refused_row(self, layer: Layer, folder: str | None) -> str:
        """The first row of Hydra's host file with `slots=`, which is Open MPI's word; "" for another MPI."""
        flags = {given.flag for given in layer.reading.given}
        path = option(layer, "-f", "-hostfile", "-machinefile")
        if path is None or not (layer.name.endswith(".hydra") or flags & _HYDRA):
            return ""
        rows = (row.partition("#")[0].strip() for row in (self._read(path, folder) or "").splitlines())
        return next((row for row in rows if re.search(r"\s(?:max_)?slots\s*=", row)), "")

    def _mpi_slots(self, layer: Layer, folder: str | None) -> dict[str, int | None]:
        """The hosts of an MPI launcher, and the slots that its options give each."""
        listed = option(layer, "-H", "--host", "-host", "-hosts", "--hosts")
        if listed is not None and UNKNOWN not in listed:
            pairs = [name.partition(":") for name in listed.split(",") if name]
            if pairs:
                return {name: number_of(slots) for name, _, slots in pairs[:MOST_NODES]}
        path = option(layer, "--hostfile", "-hostfile", "-machinefile", "--machinefile", "-f")
        text = self._read(path, folder) if path is not None else None
        if text is not None and (rows := slots_of_hosts(text)):
            return dict(list(rows.items())[:MOST_NODES])
        return dict.fromkeys(self._allocation.hosts)


def _mapped(layer: Layer) -> int | None:
    """N of `--map-by ppr:N:node`: Open MPI puts no more than N ranks on a host."""
    mapped = re.match(r"ppr:(\d{1,4}):node", option(layer, "--map-by", "-map-by") or "")
    return int(mapped[1]) if mapped else None


def _per_node(layer: Layer) -> int | None:
    """Ranks per node: `-ppn N`, `-npernode N`, `--map-by ppr:N:node`."""
    mapped = _mapped(layer)
    if mapped is not None:
        return mapped
    return number_of(option(layer, "-ppn", "--ppn", "-npernode", "--npernode", "-N", "-perhost"))


def _placed(count: int, sizes: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Rank, node and local rank: the hosts are filled one after the other, and again from the first one if more are left."""
    used = [0] * len(sizes)
    node, room = 0, sizes[0]
    for rank in range(min(count, MOST_TASKS)):
        if room < 1:
            node = (node + 1) % len(sizes)
            room = max(1, sizes[node])
        yield rank, node, used[node]
        used[node], room = used[node] + 1, room - 1


def _library(layer: Layer) -> str:
    """Whose launcher it is, as far as its options say: `open`, `hydra` (MPICH, Intel MPI), `pals` (Cray), `horovod`, or ""."""
    flags = {given.flag for given in layer.reading.given}
    if layer.name == "horovodrun":
        return "horovod"
    if flags & _PALS:
        return "pals"
    if layer.name.endswith(".hydra") or flags & _HYDRA:
        return "hydra"
    return "open" if flags & (_OPEN_MPI - {"--host"}) else ""


_ROLE = "K_MPI_JOB_ROLE"
"""Set in the launcher of an MPIJob, whose mpirun is Open MPI's unless the object says otherwise."""
_OF_OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "rank",
    "OMPI_COMM_WORLD_LOCAL_RANK": "local",
    "OMPI_COMM_WORLD_SIZE": "size",
    "PMIX_RANK": "rank",
}
_OF_HYDRA = {"PMI_RANK": "rank", "PMI_SIZE": "size", "MPI_LOCALRANKID": "local"}
_VARIABLES: Mapping[str, Mapping[str, str]] = {
    "open": _OF_OPEN_MPI,
    "hydra": _OF_HYDRA,
    "pals": {
        "PMI_RANK": "rank",
        "PMI_SIZE": "size",
        "PMI_LOCAL_RANK": "local",
        "PALS_RANKID": "rank",
        "PALS_LOCAL_RANKID": "local",
    },
    "horovod": {"HOROVOD_RANK": "rank", "HOROVOD_LOCAL_RANK": "local", "HOROVOD_SIZE": "size"},
    "": {**_OF_OPEN_MPI, **_OF_HYDRA},
}
"""The variables of each task. A launcher whose library is not known sets those of Open MPI and of Hydra."""
_DEFAULT_HOSTS = "OMPI_MCA_orte_default_hostfile"
_PALS = frozenset(("--cpu-bind", "--mem-bind", "--gpu-bind", "--depth", "--hostlist"))
"""Options that only the mpiexec of HPE Cray's PALS has (mpiexec(1) of cray-pals)."""
_MORE_ALLOWED = re.compile(r"oversubscribe|overload", re.IGNORECASE)


_OPEN_MPI = frozenset(
    ("-x", "-H", "--host", "--mca", "-mca", "--allow-run-as-root", "-npernode", "--npernode", "--map-by")
)


_HYDRA = frozenset(
    ("-genv", "-genvall", "-genvlist", "-genvnone", "-ppn", "-hosts", "-f", "-iface", "-launcher", "-perhost")
)
