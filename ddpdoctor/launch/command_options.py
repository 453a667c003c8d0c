"""The options of programs that start tasks and containers: unknown ones, and values that they refuse.

Sources: slurm, src/common/slurm_opt.c (srun, sbatch, salloc; getopt_long takes a beginning that is unique) and parse_time.c;
docker/cli, cli/command/container/opts.go; podman-run(1); mpirun(1) of Open MPI 4 and 5, and of MPICH (Hydra).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from ddpdoctor.facts.launch.programs import MPIRUN, SRUN, WRAPPERS
from ddpdoctor.facts.launch.words import UNKNOWN
from ddpdoctor.light_dataclass import dataclass

__all__ = ["OptionFault", "faults_of_batch_row", "faults_of_command"]


@dataclass(frozen=True, slots=True)
class OptionFault:
    """A word that a program refuses: `index` is the word's, `seen` what is written, `expected` what may stand there."""

    index: int
    seen: str
    expected: str
    is_unknown: bool = False
    says: str = ""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SLURM_FLAGS = _words(
    "--accel-bind --acctg-freq --bb --bbf --bell --cluster --compress --consolidate-segments --container --container-id"
    " --contiguous --cores-per-socket --cpu-bind --cpu_bind --cpu-freq --debugger-test --delay-boot --disable-status"
    " --disable-stdout-job-summary --epilog --exact --exclusive --export-file --external --external-launcher --extra"
    " --get-user-env --gid --gpu-freq --gres-flags --help --hold --ignore-pbs --immediate --interactive --kill-command"
    " --kill-on-bad-exit --kill-on-invalid-dep --label --launch-cmd --launcher-opts --mcs-label --mem_bind --mincores"
    " --mincpus --minsockets --minthreads --mpi-combine --msg-timeout --multi-prog --no-allocate --no-bell --no-kill"
    " --no-requeue --no-shell --ntasks-per-tres --nv --oom-kill-step --overcommit --overlap --oversubscribe --pack-group"
    " --parsable --power --prefer --preserve-env --priority --prolog --propagate --pty --quiet --quit-on-interrupt"
    " --reboot --requeue --resv-ports --resv --segment --send-libs --share --slurmd-debug --spread-job --spread-segments"
    " --stepmgr --switches --task-prolog --tasks-per-node --test-only --thread-spec --treewidth --uid --umask --unbuffered"
    " --usage --use-min-nodes --verbose --version --wait-all-nodes --wait-for-children --whole --x11 --no-x11"
    " --container-mount-home --no-container-mount-home --container-remap-root --no-container-remap-root --container-save"
    " --container-writable --container-readonly --container-entrypoint --no-container-entrypoint --container-entrypoint-log"
    " --licenses --export --extern --sbcast --threads-per-core --core-spec"
)
_SLURM = frozenset(flag for flag in (*SRUN.values, *_SLURM_FLAGS) if flag.startswith("--"))
_DOCKER_FLAGS = _words(
    "--rm --interactive --tty --detach --privileged --init --read-only --no-healthcheck --publish-all --sig-proxy"
    " --oom-kill-disable --quiet --disable-content-trust --help --blkio-weight --blkio-weight-device --cgroup-parent"
    " --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime --cpuset-mems"
    " --detach-keys --device-read-bps --device-read-iops --device-write-bps --device-write-iops --dns --dns-option --dns-opt"
    " --dns-search --domainname --health-cmd --health-interval --health-retries --health-start-period --health-timeout"
    " --health-start-interval --ip6 --kernel-memory --label-file --link --link-local-ip --memory-reservation"
    " --memory-swappiness --oom-score-adj --stop-timeout --storage-opt --volume-driver --annotation --attach --net-alias"
    " --use-api-socket --log-opt --security-opt --add-host --cpus --expose --group-add"
)
_PODMAN_FLAGS = _words(
    "--arch --authfile --cgroup-conf --cgroups --chrootdirs --conmon-pidfile --creds --decryption-key --env-host --env-merge"
    " --gidmap --gpu --hooks-dir --hostuser --http-proxy --image-volume --init-path --no-hostname --no-hosts --os --passwd"
    " --passwd-entry --personality --pidfile --pod --pod-id-file --preserve-fd --preserve-fds --rdt-class --replace"
    " --requires --retry --retry-delay --rootfs --sdnotify --seccomp-policy --secret --shm-size-systemd --subgidname"
    " --subuidname --systemd --timeout --tls-verify --tz --uidmap --umask --unsetenv --unsetenv-all --variant --rmi"
)
_OMPI_ONLY = _words(
    "-x --mca -mca --allow-run-as-root --oversubscribe --map-by -map-by --bind-to --rank-by --report-bindings --npernode"
    " -npernode --npersocket --tag-output --nooversubscribe --use-hwthread-cpus --display-map --display-allocation --tune"
    " --gmca --pmixmca --prtemca"
)
_HYDRA_ONLY = _words(
    "-genv -genvall -genvlist -genvnone -envall -envlist -envnone -ppn -iface -bootstrap -launcher -launcher-exec -rmk"
    " -print-rank-map -prepend-rank -binding -genvexcl"
)
_OMPI_FLAGS = _words(
    "--allow-run-as-root --oversubscribe --nooversubscribe --overload --tag-output --timestamp-output --report-bindings"
    " --display-map --display-allocation --use-hwthread-cpus --use-hwthreads --quiet --verbose --version --help --hetero-nodes"
    " --bycore --byslot --bynode --bind-to-core --bind-to-socket --bind-to-none --cpu-set --cpus-per-proc --cpus-per-rank"
    " --do-not-launch --do-not-resolve --debug-daemons --disable-recovery --enable-recovery --forward-signals --launch-agent"
    " --leave-session-attached --merge-stderr-to-stdout --nolocal --novm --output-proctable --preload-binary --preload-files"
    " --personality --pernode --ppr --noprefix --report-events --report-child-jobs-separately --report-state-on-timeout"
    " --get-stack-traces --show-progress --set-cwd-to-session-dir --start-daemon --tv --xml --xterm --with-ft --stream-buffering"
    " --output --display --runtime-options --prtemca --dvm --pset --parsable --parseable --host-file --cpu-list --max-restarts"
)
_OMPI = frozenset(flag for flag in (*MPIRUN.values, *MPIRUN.doubles, *_OMPI_FLAGS) if flag.startswith("--"))
_DOCKER = frozenset(flag for flag in (*WRAPPERS["docker"].values, *_DOCKER_FLAGS) if flag.startswith("--"))
_CONTAINER_NAMES = ("docker", "podman", "nerdctl")
_SLURM_NAMES = ("srun", "sbatch", "salloc")
CLOSE = 0.82
"""How alike a misspelt option and the one that is meant are."""
_COUNT = r"\d+[kKmM]?"
_TYPED = rf"(?:[\w.-]+:)*{_COUNT}(?:\([\w:,-]*\))?"
_TIME = (
    r"\d+|\d+:\d+|\d+:\d+:\d+|\d+-\d+|\d+-\d+:\d+|\d+-\d+:\d+:\d+"
    r"|(?i:unlimited|infinite|partition_limit|-1)"
)
_VALUES = {
    "--time": (_TIME, "d-hh:mm:ss"),
    "--nodes": (rf"{_COUNT}(?:-{_COUNT})?(?:[,:-]{_COUNT})*", "a number"),
    "--ntasks": (_COUNT, "a number"),
    "--ntasks-per-node": (_COUNT, "a number"),
    "--ntasks-per-gpu": (_COUNT, "a number"),
    "--cpus-per-task": (_COUNT, "a number"),
    "--cpus-per-gpu": (_COUNT, "a number"),
    "--gpus-per-node": (rf"{_TYPED}(?:,{_TYPED})*", "a number"),
    "--gpus-per-task": (rf"{_TYPED}(?:,{_TYPED})*", "a number"),
    "--gpus": (rf"{_TYPED}(?:,{_TYPED})*", "a number"),
    "--mem": (r"\d+(?:\.\d+)?[kKmMgGtT]?(?:i?[bB])?", "a number with K, M, G or T"),
    "--mem-per-gpu": (r"\d+(?:\.\d+)?[kKmMgGtT]?(?:i?[bB])?", "a number with K, M, G or T"),
    "--mem-per-cpu": (r"\d+(?:\.\d+)?[kKmMgGtT]?(?:i?[bB])?", "a number with K, M, G or T"),
    "--signal": (r"(?:[RB]{1,2}:)?(?:SIG)?\w+(?:@\d+)?", "[B:]SIGNAL[@SECONDS]"),
    "--array": (r"\d[\d,:-]*(?:%\d+)?(?:,\d[\d:-]*(?:%\d+)?)*", "0-9%2"),
}
_LONG = {
    "-t": "--time", "-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-G": "--gpus", "-a": "--array",
}  # fmt: skip
_COMMENTS = ("--comment", "--wrap", "--job-name", "-J", "--mail-user", "--extra")
_SINGLE = re.compile(r"-([a-z]+(?:-[a-z]+)+|nodes|ntasks|time|partition|output|error|gres|mem|account|array)(=.*)?")
_SET_BY_SHELL = re.compile(r"\$(?:\{[A-Za-z_]|\(|[A-Za-z_])|`")


def faults_of_batch_row(words: Sequence[str]) -> Iterator[OptionFault]:
    """The mistakes in the words of one `#SBATCH` line: sbatch expands no variables in it."""
    flag = words[0].partition("=")[0] if words else ""
    text = " ".join(words)
    if _SET_BY_SHELL.search(text) and flag not in _COMMENTS:
        says = "sbatch does not expand variables in #SBATCH lines"
        yield OptionFault(0, text[:40], "the value itself", says=says)
        return
    single = _SINGLE.fullmatch(words[0])
    if single and f"--{single[1]}" in _SLURM:
        yield OptionFault(0, words[0], f"-{words[0]}", is_unknown=True)
        return
    yield from _slurm(["sbatch", *words], is_row=True)


def faults_of_command(words: Sequence[str]) -> Iterator[OptionFault]:
    """The mistakes in the options of a command; nothing for programs without a table."""
    name = words[0].rpartition("/")[2] if words else ""
    if name in _SLURM_NAMES:
        yield from _slurm(words, is_row=False)
    elif name in _CONTAINER_NAMES and len(words) > 1 and words[1] == "run":
        yield from _container(name, words)
    elif name in ("mpirun", "mpiexec", "orterun", "prterun"):
        yield from _mpi(words)


def _slurm(words: Sequence[str], *, is_row: bool) -> Iterator[OptionFault]:
    at = 1
    while at < len(words):
        word = words[at]
        if not word.startswith("-") or word in ("-", "--"):
            if is_row:
                at += 1
                continue
            return
        flag, joined, value = word.partition("=")
        index = at - is_row
        at += 1
        if UNKNOWN in flag:
            return
        if flag.startswith("--"):
            known = flag if flag in _SLURM else _unique(flag, _SLURM)
            if known is None:
                near = _near(flag, _SLURM)
                if near:
                    yield OptionFault(index, flag, near, is_unknown=True)
                continue
            takes = known in SRUN.values
        else:
            known, takes = _LONG.get(flag[:2], flag[:2]), flag[:2] in SRUN.values
            if takes and len(flag) > 2:
                value, joined = word[2:], "="
        if takes and not joined:
            if at >= len(words):
                return
            value = words[at]
            at += 1
        elif not takes:
            continue
        rule = _VALUES.get(known)
        if (
            rule is not None
            and UNKNOWN not in value
            and "$" not in value
            and not re.fullmatch(rule[0], value.strip("'\""))
        ):
            yield OptionFault(index, f"{known}={value}", rule[1])
        if known == "--gres" and UNKNOWN not in value:
            yield from _gres(index, value)


def _gres(index: int, value: str) -> Iterator[OptionFault]:
    for each in value.split(","):
        if re.match(r"gpus?(?:=|$)", each) and each != "gpu" and "$" not in each:
            yield OptionFault(index, f"--gres={value}", "gpu:N")
        elif each.startswith("gpus:"):
            yield OptionFault(index, f"--gres={value}", f"gpu:{each[5:]}")


def _container(name: str, words: Sequence[str]) -> Iterator[OptionFault]:
    values = WRAPPERS["docker"].values | _VALUED
    known = _DOCKER if name == "docker" else _DOCKER | _PODMAN_FLAGS
    at = 2
    while at < len(words) and words[at].startswith("-"):
        flag, joined, value = words[at].partition("=")
        if UNKNOWN in words[at].partition("=")[0]:
            return
        index = at
        if flag.startswith("--") and flag not in known:
            near = _near(flag, known)
            if near:
                yield OptionFault(index, flag, near, is_unknown=True)
            at += 1 if joined or near not in values else 2
            continue
        takes = flag in values or (not flag.startswith("--") and flag[-1:] in "eupvwhlmca")
        if takes and not joined:
            value = words[at + 1] if at + 1 < len(words) else ""
            at += 1
        at += 1
        if flag == "--gpus" and re.fullmatch(r"device=\d+(?:,\d+)+", value):
            expected = f"'\"{value}\"'"
            says = f"the shell removes the quotes of --gpus {value}: docker needs {expected}"
            yield OptionFault(index, value, expected, says=says)
    after = words[at + 1] if at + 1 < len(words) else ""
    flag = after.partition("=")[0]
    if flag in known | {"-e", "-v", "-p", "-w", "-u"} and any(_STARTS.search(word) for word in words[at + 1 :]):
        says = f"{flag:.24} stands after the image: {name} passes it to the container"
        yield OptionFault(at + 1, after, f"{flag} before the image", says=says)


_VALUED = _words(
    "--blkio-weight --cgroup-parent --cidfile --cpu-period --cpu-quota --dns-option --dns-opt --dns-search --domainname"
    " --health-cmd --ip6 --label-file --link --memory-reservation --memory-swappiness --oom-score-adj --stop-timeout"
    " --storage-opt --volume-driver --annotation --attach --detach-keys"
)
_STARTS = re.compile(r"torchrun|accelerate|deepspeed|torch\.distributed|python|mpirun|bash|\bsh\b")


def _mpi(words: Sequence[str]) -> Iterator[OptionFault]:
    given, at = [], 1
    while at < len(words) and words[at].startswith("-"):
        flag, joined, _ = words[at].partition("=")
        given.append((at, flag))
        at += 1 + (0 if joined else 2 if flag in MPIRUN.doubles else flag in MPIRUN.values)
    flags = {flag for _, flag in given}
    own, other = flags & _OMPI_ONLY, [(index, flag) for index, flag in given if flag in _HYDRA_ONLY]
    if own and other:
        index, flag = other[0]
        expected = "-x NAME=VALUE" if flag.startswith("-genv") else "an option of Open MPI"
        says = f"{flag:.24} is an option of MPICH; {sorted(own)[0]:.24} is one of Open MPI"
        yield OptionFault(index, flag, expected, says=says)
    for index, flag in given:
        if flag.startswith("--") and flag not in _OMPI and f"-{flag[2:]}" not in MPIRUN.values:
            near = _near(flag, _OMPI)
            if near:
                yield OptionFault(index, flag, near, is_unknown=True)


def _unique(flag: str, known: frozenset[str]) -> str | None:
    """What a beginning of an option stands for; getopt takes it if it is that of one only."""
    found = [each for each in known if each.startswith(flag)]
    return min(found, key=len) if found else None


def _near(flag: str, known: frozenset[str]) -> str:
    """The option that is meant; "" where none is close, or where the word is one of a plugin of the site."""
    near = difflib.get_close_matches(flag.replace("_", "-"), sorted(known), n=1, cutoff=CLOSE)
    return near[0] if near else ""
