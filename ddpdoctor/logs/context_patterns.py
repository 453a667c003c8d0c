"""Lines that show no cause by themselves but say where the job stood: its size, its collectives, who joined, who left.

Each is a regular expression over one line, with a literal of six characters or more, as signatures are. The collector
keeps the lines that match; rules take them apart with the same expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from ddpdoctor.facts.log import Log, LogLine
from ddpdoctor.facts.nccl_line import without_function

__all__ = ["CONTEXT_PATTERNS", "context_lines"]

CONTEXT_PATTERNS: dict[str, str] = {
    "clients": r"\b(?P<joined>\d+)/(?P<expected>\d+) clients joined",
    "tries": r"client socket has failed to connect to \[(?P<host>[^\][]{1,255})\]:(?P<port>\d+) \(errno: (?P<number>110|113) - ",
    "keys": r"wait timeout after \d+ms, keys: (?P<keys>.*)",
    "communicator": r"comm 0x[0-9a-f]+ rank (?P<rank>\d+) n?[Rr]anks (?P<ranks>\d+)",
    "member": r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: (?P<member>\d+)/(?P<members>\d+)",
    "barrier": r"\(world_size=(?P<world>\d+), worker_count=(?P<workers>\d+)",
    "worlds": r"(?:global_world_sizes=\[|[^_]world_size[=:] ?)(?P<world>\d+)",
    "restart": r"attempts left; will restart worker group|Restarting worker group|Restart worker group",
    "progress": r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)",
    "watched": r"(?:detected by watchdog at work(?: sequence id)?|Exception hit in NCCL work): (?P<seq>\d+)",
    "xid": r"NVRM: Xid \(",
    "gpu_of_kernel": r"NVRM: The NVIDIA GPU (?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\.\d",
    "sxid": r": SXid \(PCI:",
    "boot": r"Linux version \d",
    "boot_of_journal": r"^-- Boot [0-9a-f]{32} --",
    "reboot_of_journal": r"^-- Reboot --",
    "lagging": r"but didn't join collective #|are the lagging rank|failed to pass monitoredBarrier",
    "failed": r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)",
    "task_ended": r"srun: error: (?P<host>\S+): tasks? (?P<tasks>\d[\d,-]*): (?:Exited with exit code (?P<code>\d+)"
    r"|(?P<signal>Killed|Terminated|Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception"
    r"|Out Of Memory))",
    "process_rank_ended": r"process rank (?P<rank>\d+) with PID \S+ on node (?P<host>\S+) exited on signal (?P<signal>\d+)",
    "first_process": r"Process name: (?:(?:\[(?:\[\d+,\d+\]|\S+@\d+),)?(?P<rank>\d+)(?:\]|$)"
    r"|(?P<host>[A-Za-z][\w.-]*)\[(?P<index>\d+)\])",
    "nccl_version": r"NCCL version (?P<version>\d+\.\d+\.\d+)\+cuda",
    "stalled_ranks": r"\[missing ranks: ?(?P<ranks>[\d, ]+)\]",
    "ready_ranks": r"\[ready ranks: ?(?P<ranks>\d[\d, ]*)\]",
    "exit_code": r"^\s*Exit code: +(?P<code>\d+)$",
    "first_of_intel": r"=\s+RANK (?P<rank>\d+) PID (?P<pid>\d+) RUNNING AT (?P<host>\S+)",
    "abort_of_intel": r"Abort\((?P<code>\d+)\) on node \d+ \(rank (?P<rank>\d+) in comm",
    "signal_of_intel": r"KILLED BY SIGNAL: (?P<signal>\d+) ",
    "no_number": r"Unexpected result -?(?:nan|inf) on rank (?P<rank>\d+) at"
    r"|[Ll]oss is -?(?:nan|NaN|inf)\b[^\n]{0,20}(?:[Ss]topp|[Aa]bort|[Ee]xit)"
    r"|(?:NaN|nan|Inf|inf)s? (?:was |were )?(?:detected|found|encountered)[^\n]{0,60}"
    r"(?:[Ss]topp|[Aa]borting|[Ee]xiting|[Tt]erminat)"
    r"|(?:[Aa]borting|[Ss]topping|[Ee]xiting)[^\n]{0,40}(?:loss|gradients?|grad_norm)[^\n]{0,20} "
    r"(?:is|are|was|became) (?:NaN|nan|inf)",
    "compiler": r":\d+:\d+: (?:fatal )?error: |\bfatal error: [^\s:]{1,200}: No such file|nvcc fatal {1,3}: "
    r"|unsupported GNU version",
    "back_off": r"Back-off restarting failed container(?: (?P<container>[\w.-]+) in pod (?P<pod>[\w.-]+?)_)?",
    "nccl_warns": r"\bNCCL (?:WARN|ATTN) ",
    "channel": r"\bChannel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[(?:send|receive)\] )?via "
    r"(?P<via>(?:NET|SHM|direct shared)\b[^\n]{0,80}?)(?: comm 0x|$)",
    "transport_offer": r"NVLS multicast support is available on dev|, type NVL/[A-Z]"
    r"|(?P<rdma>NET/IB : Using \[0\]\S{1,80}:\d{1,3}/(?:IB|RoCE))",
    "nccl_hint": r"\bHINT: (?:In many|To confirm|See https|Default)",
    "nccl_diag": r"\bNCCL DIAG ",
    "nccl_reasons": r"Cuda failure (?:\d+ )?'|Proxy Call to rank \d+ failed",
    "spawned_ended": r"process (?P<index>\d+) terminated with (?:signal (?P<signal>SIG[A-Z]+)|exit code (?P<code>\d+))",
    "child_of_lightning": r"(?:\[rank: (?P<local>\d+)\] )?Child process with PID (?P<pid>\d+) terminated with "
    r"code (?P<code>-?\d+)",
    "died_with": r"died with <Signals\.(?P<signal>SIG[A-Z]+): \d+>",
    "process_ended": r"Process (?P<rank>\d+) exit with status code (?P<code>\d+)",
    "rank_crashed": r"launcher:(?:Rank|Global rank) (?P<rank>\d+) (?:\(PID \d+\) )?(?:crashed with exit|exited with) code "
    r"(?P<code>-?\d+)",
    "return_code": r"(?:--local_rank=(?P<local>\d+)\b[^\n]{0,700})?exits with return code = (?P<code>-?\d+)",
    "event": r'"torchelastic\.worker\.status\.FAILED", "source": "WORKER".{0,200}?"global_rank": (?P<rank>\d+)'
    r'(?:.{0,99}?"worker_id": "(?P<pid>\d+)")?(?:.{0,99}?"hostname": "(?P<host>[^"]+)")?'
    r"(?:.{0,300}?Signal (?P<signal>\d+) \(SIG)?",
    "pod_ended": r"\bPod: [\w-]+\.(?P<host>[a-z0-9][a-z0-9-]*) exited with code (?P<code>[1-9]\d*)",
    "replica": r"The replica (?P<host>[\w-]+(?: \d+)?) exited with a non-zero status of (?P<code>\d+)",
    "sagemaker": r"(?:Algorithm|ExecuteUserScript)Error: [^\n]{0,80}?\b[Ee]xit ?[Cc]ode:? ?(?P<code>[1-9]\d{0,2})\b",
    "kernel_note": r"CUDA kernel errors might be asynchronously reported",
    "mpi_abort": r"MPI_ABORT was invoked on rank (?P<rank>\d+)",
    "step_ended": r"_step_signal: Terminating|srun: (?:Force )?Terminat(?:ing|ed) ",
    "roce": r"NET/IB : Using [^\n]{0,400}/RoCE",
    "size": r"rank=(?P<rank>\d+), size=(?P<size>\d+), local=",
    "oom_killed": r"Killed process (?P<pid>\d+) \(",
    "lost_rank": r"\b[Tt]he missing ranks?: (?P<ranks>[\d, ]+)|\bRank (?P<rank>\d+) -- (?:GPU \d|\[process information)",
    "lost_process": r"[Pp]rocess \d+ on node (?P<host>[^\s,]+)(?: managing GPU|$)",
    "ray_worker": r"ip=(?P<host>[\d.]+), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d+)",
    "ray_task": r"ray::\S{1,120} \(pid=(?P<pid>\d+), ip=(?P<host>[\d.]+)",
    "ray_dead": r"Worker IP address: (?P<host>[\w.:-]+) Worker port: \d+ Worker PID: (?P<pid>\d+)",
    "ray_actor": r"^\s+pid: (?P<pid>\d+)$",
    "ray_address": r"^(?:\s* ip: |\tip: )\[?(?P<host>\d+(?:\.\d+){3})",
    "ray_memory": r"(?:Memory on the node \(|\bnode \(ID: [0-9a-f]+, )IP: (?P<host>\d+(?:\.\d+){3})"
    r"(?:.*?\bpid=(?P<pid>\d+), memory used=)?",
    "pod": r"^Name: {2,}(?P<pod>[a-z0-9][a-z0-9.-]*)$",
    "pod_row": r"^(?P<pod>[a-z0-9][a-z0-9.-]*-[a-z0-9.-]+) +\d+/\d+ +(?:Init:)?(?:OOMKilled|Evicted|CrashLoopBackOff) ",
    "group_finished": r"worker group successfully finished|launch\.py:\d+:main\] Process \d+ exits successfully",
    "finished": r"[Tt]raining (?:is |has )?(?:finished|completed?|done|ended)\b|[Ff]inished training|[Dd]one training"
    r"|Trainer\.fit` stopped: `max_|exits successfully|exit code:? 0\b|[Ee]xited with code 0\b",
    "handled": r"attempting to recover|(?:^|[,;.:] )going on\b|[Gg]oing on with"
    r"|[Cc]ontinuing (?:with|without|anyway|training|to|at)\b"
    r"|[Ii]gnoring (?:it|this|that|the|and|batch|sample|error|exception)\b|[Rr]ecovered from"
    r"|[Ss]kipping (?:it|this|that|the|over|bad|corrupt\w*|broken|invalid|batch|sample|image|file|step|record|example|video)\b"
    r"|[Ss]kip (?:this|bad|corrupt|broken|invalid|sample|batch)|[Ee]rror resolved|[Rr]esuming normal operation"
    r"|[Ff]alling back to |[Rr]an out of memory with exception"
    r"|(?:[Rr]educing|[Dd]ecreasing|[Hh]alving|[Ll]owering) (?:the |to )?(?:micro[- ]?|train(?:ing)? )?batch",
    "init_file": r"(?:init_method|dist_url|distributed init|init-method)[^\n]{0,40}file:/",
    "left_file": r"(?:init_?file|_init|rdzv\S{0,120}|rendezvous\S{0,120}|shared_?file)\W{0,3} (?:file )?already exists"
    r"|already exists[^\n]{0,200}(?:_init|init_?file|rdzv|rendezvous|shared_?file)",
    "collective": r"(?:SeqNum|SequenceNumber)=(?P<seq>\d+), OpType=(?P<op>\w+)",
}


def context_lines(log: Log, name: str) -> Iterator[tuple[LogLine, re.Match[str]]]:
    """The lines of the log that carry this mark, taken apart."""
    known = re.compile(CONTEXT_PATTERNS[name])
    for line in log.lines:
        found = known.search(without_function(line.text))
        if found is not None:
            yield line, found
