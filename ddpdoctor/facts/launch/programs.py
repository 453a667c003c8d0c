"""Launchers and the programs before them, as data: how each reads its own options."""

from __future__ import annotations

from enum import Enum

from ddpdoctor.facts.torchrun_options import Option
from ddpdoctor.light_dataclass import dataclass

__all__ = [
    "ACCELERATE",
    "DEEPSPEED",
    "HOROVOD",
    "MPIRUN",
    "REMOTE",
    "SHELL_TEXT",
    "SRUN",
    "UNJUDGED",
    "WRAPPERS",
    "LauncherKind",
    "Syntax",
]


class LauncherKind(str, Enum):
    """What a layer of a launch line is."""

    TORCHRUN = "torchrun"
    LEGACY = "torch.distributed.launch"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"
    SRUN = "srun"
    SBATCH = "sbatch"
    SALLOC = "salloc"
    MPIRUN = "mpirun"
    JSRUN = "jsrun"
    RAY = "ray"
    FLUX = "flux"
    PYTHON = "python"
    WRAPPER = "wrapper"
    SHELL = "shell"
    CONTAINER = "container"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a wrapper reads its words before the command.

    `values` are options that use the next word, `subcommands` words that must follow the name, `operands` the number
    of words between the options and the command, `doubles` options that use two words.
    """

    values: frozenset[str] = frozenset()
    subcommands: tuple[str, ...] = ()
    operands: int = 0
    doubles: frozenset[str] = frozenset()
    launcher: LauncherKind = LauncherKind.WRAPPER


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_DOCKER = _words(
    "-a --add-host -c --cpu-shares --cap-add --cap-drop --cgroupns --cpus --cpuset-cpus --cpuset-mems --device --dns"
    " -e --env --env-file --entrypoint --expose --gpus --group-add -h --hostname --ip --ipc --isolation -l --label"
    " --log-driver --log-opt --mac-address -m --memory --memory-swap --mount --name --net --network --network-alias"
    " --pid --pids-limit --platform -p --publish --pull --restart --runtime --security-opt --shm-size --stop-signal"
    " --sysctl --tmpfs -u --user --ulimit --userns --uts -v --volume --volumes-from -w --workdir --device-cgroup-rule"
)
_APPTAINER = _words(
    "-B --bind -H --home --pwd --cwd -S --scratch --env --env-file --overlay -W --workdir --network --mount --nvccli"
)
_KUBECTL = _words("-c --container -n --namespace --context --kubeconfig --cluster --pod-running-timeout")
WRAPPERS: dict[str, Syntax] = {
    "env": Syntax(_words("-u --unset -C --chdir")),
    "nohup": Syntax(),
    "setsid": Syntax(),
    "exec": Syntax(_words("-a")),
    "command": Syntax(),
    "eval": Syntax(),
    "time": Syntax(_words("-f --format -o --output")),
    "nice": Syntax(_words("-n --adjustment")),
    "ionice": Syntax(_words("-c --class -n --classdata")),
    "timeout": Syntax(_words("-s --signal -k --kill-after"), operands=1),
    "stdbuf": Syntax(_words("-i -o -e --input --output --error")),
    "unbuffer": Syntax(),
    "sudo": Syntax(_words("-u --user -g --group -h --host -p --prompt -C -D --chdir")),
    "numactl": Syntax(_words("-i -p -P -m -N -C -w -b --interleave --membind --cpunodebind --physcpubind --preferred")),
    "taskset": Syntax(_words("-c --cpu-list"), operands=0),
    "strace": Syntax(_words("-o -e -s -p -E -a -I -O -S -u -P -b -X")),
    "nsys": Syntax(
        _words(
            "-o -t -s -w -x -f -c -d -y -e -p -n -b --output --trace --sample --capture-range --env-var --cudabacktrace"
        ),
        ("profile", "launch"),
    ),
    "ncu": Syntax(
        _words("-o -f -k -c -s --export --kernel-name --launch-count --launch-skip --set --section --metrics")
    ),
    "py-spy": Syntax(_words("-o --output -d --duration -r --rate -f --format -p --pid"), ("record",)),
    "uv": Syntax(
        _words("--with --extra --group -p --python --package --project --directory --env-file --index-url"), ("run",)
    ),
    "poetry": Syntax(_words("-C --directory -P --project"), ("run",)),
    "pipenv": Syntax(frozenset(), ("run",)),
    "pdm": Syntax(_words("-p --project"), ("run",)),
    "pixi": Syntax(_words("-e --environment --manifest-path"), ("run",)),
    "conda": Syntax(_words("-n --name -p --prefix --cwd"), ("run",)),
    "mamba": Syntax(_words("-n --name -p --prefix --cwd"), ("run",)),
    "micromamba": Syntax(_words("-n --name -p --prefix --cwd"), ("run",)),
    "docker": Syntax(_DOCKER, ("run", "exec"), 1, launcher=LauncherKind.CONTAINER),
    "podman": Syntax(_DOCKER, ("run", "exec"), 1, launcher=LauncherKind.CONTAINER),
    "podman-hpc": Syntax(_DOCKER, ("run", "exec"), 1, launcher=LauncherKind.CONTAINER),
    "nerdctl": Syntax(_DOCKER, ("run", "exec"), 1, launcher=LauncherKind.CONTAINER),
    "kubectl": Syntax(_KUBECTL, ("exec",), 1, launcher=LauncherKind.CONTAINER),
    "oc": Syntax(_KUBECTL, ("exec", "rsh"), 1, launcher=LauncherKind.CONTAINER),
    "shifter": Syntax(
        _words("--image --volume --module --workdir --entrypoint --user -i -V -m -w -u -e --env"),
        launcher=LauncherKind.CONTAINER,
    ),
    "singularity": Syntax(_APPTAINER, ("exec", "run"), 1, launcher=LauncherKind.CONTAINER),
    "apptainer": Syntax(_APPTAINER, ("exec", "run"), 1, launcher=LauncherKind.CONTAINER),
    "enroot": Syntax(_words("-c --conf -e --env -m --mount --rc"), ("start",), 1, launcher=LauncherKind.CONTAINER),
    "ssh": Syntax(_words("-p -i -l -o -F -J -L -R -D -E -b -c -m -S -W -w"), operands=1),
    "pdsh": Syntax(_words("-w -x -g -X -f -R -l -t -u -n")),
    "clush": Syntax(_words("-w -x -g -X -f -l -t -u -o")),
    "qrsh": Syntax(_words("-pe -l -q -N -P -v -wd -p -h"), operands=1),
    "blaunch": Syntax(_words("-u -z -i")),
    "pbsdsh": Syntax(_words("-n -c -h")),
    "tmux": Syntax(_words("-s -n -c -t -x -y -e -F -L -S -f"), ("new-session", "new", "new-window", "neww")),
    "screen": Syntax(_words("-S -dmS -dm -t -c -h -p -T -s -Logfile")),
    "bsub": Syntax(_words("-n -q -W -J -o -e -oo -eo -R -P -gpu -G -U -M -m -cwd -env -L -sp -alloc_flags -nnodes -w")),
    "systemd-run": Syntax(_words("-p --property -u --unit -M --machine --uid --gid -E --setenv --slice -d")),
    "gdb": Syntax(_words("-ex -x -iex -ix -cd -d")),
    "cuda-gdb": Syntax(_words("-ex -x -iex -ix -cd -d")),
    "compute-sanitizer": Syntax(_words("-o --tool --log-file --target-processes-filter --launch-count")),
    "valgrind": Syntax(),
    "xvfb-run": Syntax(_words("-e -f -n -p -s -w --error-file --auth-file --server-num --server-args")),
    "chrt": Syntax(_words("-T -P -D"), operands=1),
    "flock": Syntax(_words("-w --timeout -E"), operands=1),
    "perf": Syntax(_words("-o -e -F -c -g -C -p --call-graph"), ("record", "stat", "trace")),
    "rocprof": Syntax(_words("-o -i -d -t -m")),
    "rocprofv3": Syntax(_words("-o -i -d --output-file --output-directory --input --kernel-include-regex")),
    "viztracer": Syntax(_words("-o --output_file --max_stack_depth --min_duration --tracer_entries")),
    "hatch": Syntax(_words("-e --env -p --project"), ("run",)),
    "rye": Syntax(_words("--pyproject"), ("run",)),
    "uvx": Syntax(_words("--from --with -p --python --index-url --with-editable")),
    "pipx": Syntax(_words("--spec --python --pip-args"), ("run",)),
    "dotenv": Syntax(_words("-f --file"), ("run",)),
    "gosu": Syntax(operands=1),
    "chroot": Syntax(operands=1),
    "tini": Syntax(_words("-e -p")),
    "dumb-init": Syntax(_words("-r --rewrite")),
    "ddpdoctor": Syntax(
        _words("--format --output --select --ignore --fail-on --timeout --join-timeout"), ("run", "check")
    ),
}
"""Programs that run another program."""
REMOTE = ("ssh", "pdsh", "clush", "qrsh", "blaunch", "pbsdsh")
"""Those that run it on another machine."""
SHELL_TEXT = ("ssh", "pdsh", "clush", "qrsh", "eval", "tmux", "screen", "bsub")
"""Those that pass their last word to a shell if it contains blanks."""

SRUN = Syntax(
    _words(
        "-A -b -B -c -C -d -D -e -G -i -J -L -m -M -n -N -o -p -q -r -S -t -T -w -W -x -Z --account --begin --bcast --chdir"
        " --constraint --container-image --container-mounts --container-name --container-workdir --container-env"
        " --cpus-per-gpu --cpus-per-task --dependency --error --exclude --export --gpu-bind --gpus --gpus-per-node"
        " --gpus-per-socket --gpus-per-task --gres --hint --input --job-name --jobid --licenses --mem --mem-per-cpu"
        " --mem-per-gpu --mem-bind --mpi --network --nice --nodefile --nodelist --nodes --ntasks --ntasks-per-core"
        " --ntasks-per-gpu --ntasks-per-node --ntasks-per-socket --open-mode --output --partition --profile --qos"
        " --relative --reservation --signal --sockets-per-node --task-epilog --task-prolog --threads --time --tmp"
        " --tres-per-task --tres-bind --wait --wckey --distribution --array --mail-type --mail-user --wrap --het-group"
        " --slurmd-debug --comment --cluster-constraint --clusters --deadline --time-min --core-spec --extra-node-info"
    ),
    launcher=LauncherKind.SRUN,
)
"""srun, sbatch and salloc: the value of a short option is joined (`-N2`) or the next word."""

MPIRUN = Syntax(
    _words(
        "-n -np --np -c -N --npernode -npernode --npersocket -npersocket -ppn --ppn -perhost -H -host --host --hosts -hosts"
        " -hostfile --hostfile -machinefile --machinefile -f -x --bind-to -bind-to --map-by -map-by --rank-by -rank-by"
        " --report-uri --wdir -wdir --output-filename -launcher -launcher-exec -iface -genvlist -envlist --prefix -prefix"
        " --path -path --rankfile -rankfile --timeout --stdin --tune -am -wd"
        " --cpu-bind --mem-bind --gpu-bind --depth -d --hostlist"
    ),
    doubles=_words("--mca -mca --gmca --pmixmca --prtemca -genv -env --genv --env"),
    launcher=LauncherKind.MPIRUN,
)

HOROVOD = Syntax(
    _words(
        "-np --num-proc --min-np --min-num-proc --max-np --max-num-proc -H --hosts -hostfile --hostfile -p --ssh-port"
        " -i --ssh-identity-file --start-timeout --elastic-timeout --network-interfaces --network-interface"
        " --output-filename --config-file --slots-per-host --slots --host-discovery-script --reset-limit --mpi-args"
        " --fusion-threshold-mb --cycle-time-ms --cache-capacity --timeline-filename --log-level --binding-args"
        " --blacklist-cooldown-range --prefix-output-with-timestamp --gloo-timeout-seconds --num-nccl-streams"
    ),
    launcher=LauncherKind.MPIRUN,
)
"""horovodrun: horovod/runner/launch.py."""


def _flags(
    names: str, *, takes: str = "str", short: dict[str, str] | None = None, has_dashes: bool = True
) -> tuple[Option, ...]:
    """The options of a program that has no spelling with dashes unless `has_dashes`."""
    letters = short or {}
    return tuple(
        Option(name, (*_letter(name, letters), *_spellings(name, has_dashes=has_dashes)), takes, from_env=False)
        for name in names.split()
    )


def _letter(name: str, letters: dict[str, str]) -> tuple[str, ...]:
    return (letters[name],) if name in letters else ()


def _spellings(name: str, *, has_dashes: bool) -> tuple[str, ...]:
    dashed = "--" + name.replace("_", "-")
    return (f"--{name}", dashed) if has_dashes and dashed != f"--{name}" else (f"--{name}",)


ACCELERATE = (
    *_flags(
        "quiet cpu multi_gpu tpu enable_cpu_affinity dynamo_use_fullgraph dynamo_use_dynamic use_parallelism_config"
        " dynamo_use_regional_compilation use_deepspeed use_fsdp use_megatron_lm same_network module no_python"
        " tpu_cluster no_tpu_cluster tpu_use_sudo downcast_bf16 debug use_xpu",
        takes="flag",
        short={"module": "-m", "quiet": "-q"},
    ),
    *_flags("num_processes num_machines machine_rank main_process_port max_restarts", takes="int"),
    *_flags(
        "config_file mixed_precision num_cpu_threads_per_process dynamo_backend dynamo_mode gpu_ids main_process_ip tee"
        " log_dir role rdzv_backend rdzv_conf monitor_interval vm env main_training_function deepspeed_config_file"
        " zero_stage offload_optimizer_device offload_param_device offload_optimizer_nvme_path"
        " offload_param_nvme_path gradient_accumulation_steps gradient_clipping zero3_init_flag zero3_save_16bit_model"
        " deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher"
        " deepspeed_moe_layer_cls_names fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy"
        " fsdp_reshard_after_forward fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch"
        " fsdp_state_dict_type fsdp_forward_prefetch fsdp_use_orig_params fsdp_cpu_ram_efficient_loading"
        " fsdp_sync_module_states fsdp_activation_checkpointing fsdp_activation_checkpointing_offload mpirun_hostfile"
        " mpirun_ccl aws_access_key_id aws_secret_access_key",
        short={"tee": "-t"},
    ),
)
"""`accelerate launch`, without the tables of Megatron, FP8 and the parallelism config: those begin with a prefix."""

ACCELERATE_PREFIXES = ("--megatron", "--fp8", "--parallelism", "--dynamo", "--fsdp", "--deepspeed")

DEEPSPEED = (
    *_flags(
        "module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid elastic_training",
        takes="flag",
        has_dashes=False,
    ),
    *_flags("bind_cores_to_rank", takes="flag", has_dashes=False),
    *_flags("num_nodes num_gpus num_accelerators master_port node_rank ssh_port", takes="int", has_dashes=False),
    *_flags("min_elastic_nodes max_elastic_nodes", takes="int", has_dashes=False),
    *_flags(
        "hostfile include exclude master_addr launcher launcher_args enable_each_rank_log autotuning bind_core_list venv_script",
        short={"hostfile": "-H", "include": "-i", "exclude": "-e"},
        has_dashes=False,
    ),
)

ELSEWHERE = (LauncherKind.CONTAINER, LauncherKind.RAY)
"""Launchers whose programs have another environment and other files."""
UNREAD = (LauncherKind.JSRUN, LauncherKind.RAY, LauncherKind.FLUX)
"""Launchers whose own options have no table here: only the programs that they start are judged."""
UNJUDGED = {
    "colossalai": "ColossalAI's launcher",
    "composer": "MosaicML Composer's launcher",
    "ft_launcher": "the launcher of NVIDIA's resiliency extension",
    "lightning": "Lightning's launcher",
    "sky": "SkyPilot",
    "torchx": "TorchX",
    "ipexrun": "the launcher of Intel's extension",
    "tune": "torchtune's launcher",
    "axolotl": "Axolotl's launcher",
    "llamafactory-cli": "LLaMA-Factory's launcher",
    "swift": "ms-swift's launcher",
}
"""Programs that start ranks and whose options have no table here: their lines are reported as not judged."""
