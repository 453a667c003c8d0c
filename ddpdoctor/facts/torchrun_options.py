"""torchrun's option table, as data: what `torch/distributed/run.py:get_args_parser` of each torch version declares."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from ddpdoctor.light_dataclass import dataclass

__all__ = ["NEWEST", "OLDEST", "Option", "Version", "learn", "torchrun_options", "version_of"]

Version = tuple[int, int]

OLDEST: Version = (1, 10)
"""The first torch that has torchrun with these options."""
NEWEST: Version = (2, 15)
"""The newest torch that the table was compared with. A newer one is read from its own source."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a launcher. `flags` are its spellings in the order of the parser (the order of error messages).

    `kind` is `str`, `int`, `float`, `list` (a comma list), `flag` (takes no value) or `help` (prints and ends the launcher).
    `default` is the parser's value when neither the line nor the environment sets it. `from_env`: PET_<DEST> sets a default.
    """

    dest: str
    flags: tuple[str, ...]
    kind: str = "str"
    default: str | None = None
    from_env: bool = True
    choices: tuple[str, ...] = ()
    since: Version = OLDEST

    @property
    def variable(self) -> str | None:
        """The environment variable that sets its default."""
        return f"PET_{self.dest.upper()}" if self.from_env else None


def _both(name: str, *more: str) -> tuple[str, ...]:
    dashed = name.replace("_", "-")
    return (*more, f"--{dashed}", f"--{name}") if dashed != name else (*more, f"--{name}")


def _option(
    dest: str, kind: str = "str", default: str | None = None, *, short: str = "", since: Version = OLDEST
) -> Option:
    return Option(dest, _both(dest, *([short] if short else [])), kind, default, since=since)


_TABLE = (
    _option("nnodes", default="1:1"),
    _option("nproc_per_node", default="1"),
    _option("rdzv_backend", default="static"),
    _option("rdzv_endpoint", default=""),
    _option("rdzv_id", default="none"),
    _option("rdzv_conf", default=""),
    _option("standalone", "flag"),
    _option("max_restarts", "int", "0"),
    _option("monitor_interval", "float", "0.1"),
    Option("start_method", _both("start_method"), default="spawn", choices=("spawn", "fork", "forkserver")),
    _option("event_log_handler", default="null", since=(2, 8)),
    _option("role", default="default"),
    _option("module", "flag", short="-m"),
    _option("no_python", "flag"),
    _option("run_path", "flag"),
    _option("log_dir"),
    _option("redirects", default="0", short="-r"),
    _option("tee", default="0", short="-t"),
    _option("log_line_prefix_template", default="", since=(2, 14)),
    _option("local_ranks_filter", default="", since=(2, 3)),
    _option("duplicate_stdout_filters", "list", since=(2, 10)),
    _option("duplicate_stderr_filters", "list", since=(2, 10)),
    _option("node_rank", "int", "0"),
    _option("master_addr", default="127.0.0.1"),
    _option("master_port", "int"),
    _option("local_addr", since=(2, 0)),
    Option("logs_specs", _both("logs_specs"), from_env=False, since=(2, 3)),
    Option(
        "numa_binding",
        _both("numa_binding"),
        from_env=False,
        choices=("node", "socket", "exclusive", "core-complex"),
        since=(2, 9),
    ),
    _option("signals_to_handle", default="SIGTERM,SIGINT,SIGHUP,SIGQUIT", since=(2, 10)),
    _option("shutdown_timeout", "int", since=(2, 12)),
    _option("virtual_local_rank", "flag", since=(2, 10)),
    Option("print_completion", _both("print_completion"), "help", from_env=False, since=(2, 14)),
)
_USE_ENV = Option("use_env", _both("use_env"), "flag", from_env=False)


_newer: dict[Version, tuple[Option, ...]] = {}


def learn(version: Version, options: Iterable[Option]) -> None:
    """Store the options of a torch that is newer than the table; `since` of known options is kept."""
    known = {option.dest: option for option in _TABLE}
    _newer[version] = tuple(
        replace(o, since=known[o.dest].since if o.dest in known else version) for o in options if version > NEWEST
    )
    torchrun_options.cache_clear()


@lru_cache(maxsize=64)
def torchrun_options(version: Version, *, legacy: bool = False) -> tuple[Option, ...]:
    """The options of torchrun in this version of torch. `legacy` adds those of `torch.distributed.launch`."""
    table = _newer.get(version) or tuple(_as_of(option, version) for option in _TABLE if option.since <= version)
    return (*table, _as_of(_USE_ENV, version)) if legacy else table


def _as_of(option: Option, version: Version) -> Option:
    flags, default = option.flags, option.default
    if version < (2, 0):  # spellings with dashes are new in 2.0
        flags = tuple(f for f in flags if "-" not in f[2:])
    if option.dest == "master_port" and version < (2, 12):
        default = "29500"
    if option.dest == "monitor_interval" and version < (2, 4):
        default = "5"
    return Option(option.dest, flags, option.kind, default, option.from_env, option.choices, option.since)


def version_of(text: str) -> Version | None:
    """Major and minor of `2.15.0+cu130` or `2.9`, None when it is not a version."""
    match = re.match(r"v?(\d+)\.(\d+)(?![\d])", text.strip())
    return (int(match[1]), int(match[2])) if match else None
