"""How far apart lines may stand and still belong together: every such distance of logs, with its unit and its reason."""

from __future__ import annotations

__all__ = [
    "CALL_SITE_LINES",
    "CHAIN_LINES",
    "CHAIN_WORDS_LINES",
    "CONTINUED_LINES",
    "EXCEPTION_ABOVE_LINES",
    "EXCERPT_LINES",
    "EXIT_BARRIER_LINES",
    "EXIT_LINES",
    "FAR_LINES",
    "FATAL_STACK_LINES",
    "FEW_PROGRESS_LINES",
    "FRAMES_ABOVE_LINES",
    "GOOD_END_LINES",
    "HANDLER_HEAD_LINES",
    "HANDLER_JSON_LINES",
    "HANDLER_LINES",
    "HINT_LINES",
    "IGNORED_LINES",
    "LAST_WORDS_LINES",
    "LEAD_LINES",
    "LONG_MESSAGE_LINES",
    "MESSAGE_LINES",
    "NAMING_LINES",
    "NEXT_END_LINES",
    "OTHERS_LINES",
    "OWN_MESSAGE_LINES",
    "POD_LINES",
    "PROGRESS_LINES",
    "QUOTED_LINES",
    "RAY_ACTOR_LINES",
    "RAY_MEMORY_LINES",
    "RAY_TASK_LINES",
    "ROOT_CAUSE_LINES",
    "ROW_ABOVE_LINES",
    "ROW_BELOW_LINES",
    "SEQUENCE_GAP",
    "SHM_REASON_LINES",
    "SIBLING_PID_GAP",
    "SPAWN_INDEX_LINES",
    "SUMMARY_JSON_LINES",
    "SUMMARY_LINES",
    "SUMMARY_ROW_LINES",
    "SUMMARY_TRACEBACK_LINES",
    "SYNTAX_ERROR_LINES",
    "TAIL_LINES",
    "TRACEBACK_LINES",
    "XID_FOLLOW_LINES",
    "XID_LINES",
    "Distance",
]


class Distance(int):
    """A number with a unit and the reason why it is not smaller or larger."""

    unit: str
    reason: str

    def __new__(cls, value: int, unit: str, reason: str) -> Distance:
        """The number; it compares and adds as any int."""
        made = super().__new__(cls, value)
        made.unit, made.reason = unit, reason
        return made


# What is kept
TAIL_LINES = Distance(
    30, "lines", "kept of each source's end, whatever is in them: the longest rule looks at 10 of them"
)

GOOD_END_LINES = Distance(
    12,
    "lines",
    "at the end of an output show whether its job ended well or works: launchers print a few after the last step",
)
LAST_WORDS_LINES = Distance(6, "lines", "at the end of an output may say that its process gives up")

# Whether a process continued after an error
FEW_PROGRESS_LINES = Distance(3, "progress lines", "of the process that printed an error show that it continued")
PROGRESS_LINES = Distance(10, "progress lines", "show that a job continued where lines do not name their process")
FAR_LINES = Distance(
    300, "lines", "after an error something else may have ended the job: longer than any dump of one failure"
)
QUOTED_LINES = Distance(80, "lines", "at most in a text about a failure that quotes messages")
EXCERPT_LINES = Distance(30, "lines", "at most in an excerpt, which need not show how the job went")
HANDLER_LINES = Distance(4, "lines", "after an error stands what the code says that caught it")
SUMMARY_LINES = Distance(40, "lines", "torchrun's summary of a job that failed has at most")
EXIT_BARRIER_LINES = Distance(
    120, "lines", "around torchrun's exit barrier are tracebacks of launchers whose workers were done"
)

# Whose line it is
MESSAGE_LINES = Distance(5, "lines", "an exception's message may have: NCCL's has four")
OWN_MESSAGE_LINES = Distance(
    10, "lines", "after its exception are its message's and what a handler adds, not another error's"
)
LONG_MESSAGE_LINES = Distance(
    40, "lines", "after its exception a message may continue: NCCL's and Gloo's quote C++ frames"
)
SUMMARY_ROW_LINES = Distance(
    9, "lines", "from `rank` to `traceback` in a row of torchrun's summary where nodes write at once"
)
ROW_ABOVE_LINES = Distance(4, "lines", "above `rank` stand the time and the host of a row of torchrun's summary")
ROW_BELOW_LINES = Distance(6, "lines", "below `rank` stand the exit code and the traceback of the row")
ROOT_CAUSE_LINES = Distance(5, "lines", "above `rank` stands `Root Cause` in the first row")
SUMMARY_TRACEBACK_LINES = Distance(3, "lines", "from `rank` to `traceback` in a row that no other node interrupts")
RAY_TASK_LINES = Distance(60, "lines", "below `ray::X.method() (pid=…, ip=…)` its error may end")
RAY_ACTOR_LINES = Distance(6, "lines", "below the process id of an actor stands how it died")
RAY_MEMORY_LINES = Distance(
    2, "lines", "above its node, the report of Ray may begin that it killed workers for their memory"
)
POD_LINES = Distance(200, "lines", "`kubectl describe` prints of one pod")
CALL_SITE_LINES = Distance(40, "lines", "before a rank's time-out stands its traceback, which names the call")
HINT_LINES = Distance(
    24, "lines", "after NCCL's warning stand its hints, with those of the other ranks of the node between"
)
SHM_REASON_LINES = Distance(4, "lines", "before NCCL gives up on a segment stands why")

# Tracebacks
TRACEBACK_LINES = Distance(
    2000, "lines", "are read for the end of a traceback, those of other ranks in between included"
)
FATAL_STACK_LINES = Distance(
    600, "lines", "are read for the stack of the thread that failed: others' may stand before it"
)
OTHERS_LINES = Distance(60, "lines", "of processes with the same prefix may stand between two lines of one traceback")
NEXT_END_LINES = Distance(4, "lines", "apart stand the exceptions of processes that wrote their tracebacks at once")
CHAIN_LINES = Distance(
    4, "lines", "an empty line, `During handling of the above exception, …`, an empty line, the next head"
)
CHAIN_WORDS_LINES = Distance(3, "lines", "above a head stands that it was raised over another exception")
IGNORED_LINES = Distance(12, "lines", "above a head stands `Exception ignored in`, where processes wrote at once")
CONTINUED_LINES = Distance(4, "lines", "after an exception whose message begins on the next line")
LEAD_LINES = Distance(4, "lines", "after a head show what a logger puts before each line")
SPAWN_INDEX_LINES = Distance(2, "lines", "above its traceback mp.spawn prints the number of the process")
SYNTAX_ERROR_LINES = Distance(4, "lines", "above a SyntaxError: the file, the code and a caret")
FRAMES_ABOVE_LINES = Distance(60, "lines", "above an exception without a head its frames are looked for")
EXCEPTION_ABOVE_LINES = Distance(
    12, "lines", "above an exception another one shows that this is a part of what that one says"
)
EXIT_LINES = Distance(30, "lines", "at the end of a text may hold what processes print on their way out")
SUMMARY_JSON_LINES = Distance(80, "lines", "of JSON follow `msg:` in a row of torch 1.9's summary")
HANDLER_JSON_LINES = Distance(12, "lines", "of JSON follow the message that torch's error_handler prints")
HANDLER_HEAD_LINES = Distance(4, "lines", "above such a message stands the row or the handler that it belongs to")

# Kernel logs
XID_LINES = Distance(4, "lines", "the kernel writes of one fault of a GPU")
XID_FOLLOW_LINES = Distance(
    20, "lines", "after a program's fault on a GPU, where lines have no times, is its channel's"
)

# Processes
NAMING_LINES = Distance(3, "lines", "next to a decisive line that names no process may name it")

# Not lines
SEQUENCE_GAP = Distance(10, "collectives", "apart two ranks of one group may be; more is another group's count")
SIBLING_PID_GAP = Distance(16, "process ids", "a launcher's loop leaves at most between two ranks")
