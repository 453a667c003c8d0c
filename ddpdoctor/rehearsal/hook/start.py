"""Starts the ranks of one node and all others: imports torch once, loads the hook, forks each rank, and reports their ends.

Run as `python start.py`, with the settings in the file that DDPDOCTOR_REHEARSAL names.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import faulthandler
import importlib
import os
import random
import runpy
import signal
import socket
import struct
import sys
import threading
from types import ModuleType
from typing import Any

from ddpdoctor.rehearsal.hook.channel import CONFIG_VARIABLE, channel
from ddpdoctor.rehearsal.hook.ending import RehearsalEnd
from ddpdoctor.rehearsal.hook.leftovers import wait_for_end
from ddpdoctor.rehearsal.hook.places import frames_of_user

__all__ = ["main"]

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
MS_REC, MS_PRIVATE, MS_BIND = 0x4000, 0x40000, 0x1000
PR_SET_PDEATHSIG = 1
SIOCSIFFLAGS, IFF_UP_RUNNING = 0x8914, 0x41
STACK_SIGNAL = signal.SIGRTMAX - 3
"""Makes a rank write its Python stack."""
PRELOADED = (
    "numpy",
    "torchvision",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch_lightning",
    "datasets",
    "deepspeed",
    "tqdm",
    "yaml",
    "PIL",
)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def main() -> None:
    """Isolate this process as far as the system allows, import torch, fork the ranks, wait for them."""
    config = channel().config
    _start_cleaner(config)
    isolation = _isolate(config)
    config["isolation"] = isolation
    os.chdir(config["cwd"])
    _import(config)
    channel().say("ready", torch=sys.modules["torch"].__version__, python=sys.version.split()[0], **isolation)
    children: dict[int, int] = {}
    for index, rank in enumerate(config["processes"]):
        child = os.fork()
        if child == 0:
            _become(index, rank, config)
            return
        children[child] = index
        channel().say("started", index=index, pid=child)
    _reap(children)


def _start_cleaner(config: dict[str, Any]) -> None:
    """Fork a small process that cleans up if the supervisor is killed: before torch is imported and namespaces are entered."""
    if os.fork():
        return
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    wait_for_end(
        config["lifeline"], f"{CONFIG_VARIABLE}={os.environ[CONFIG_VARIABLE]}", os.path.dirname(config["socket"])
    )
    os._exit(0)


def _reap(children: dict[int, int]) -> None:
    """Report how each rank ended."""
    while children:
        pid, status = os.wait()
        index = children.pop(pid, None)
        if index is not None:
            code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            channel().say("exit", index=index, pid=pid, code=code)


def _isolate(config: dict[str, Any]) -> dict[str, Any]:
    """Enter namespaces: no network but loopback, an overlay on the working folder, and an end for all descendants."""
    found: dict[str, Any] = {"network": "open", "files": "open", "processes": "groups"}
    libc = _libc()
    uid, gid = os.getuid(), os.getgid()
    if uid != 0:
        try:
            _check(libc.unshare(CLONE_NEWUSER))
            for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
                with open(f"/proc/self/{name}", "w") as file:
                    file.write(text)
        except OSError as error:
            found["reason"] = f"user namespace: {error.strerror}"
            return found
    if config["cuts_network"]:
        try:
            _check(libc.unshare(CLONE_NEWNET))
            _loopback_up()
            found["network"] = "loopback"
        except OSError as error:
            found["network_reason"] = error.strerror
    if config["scratch"]:
        try:
            _overlay(libc, config["cwd"], config["overlay"])
            found["files"] = "overlay"
        except OSError as error:
            found["files_reason"] = error.strerror
    return found


def _loopback_up() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket.fileno(), SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP_RUNNING))


def _overlay(libc: Any, folder: str, upper: str) -> None:
    """A view of the folder in which writes stay in memory. The rehearsal's own folder stays real, also where it is inside."""
    if any(character in folder for character in ":,\\"):
        raise OSError(22, "the folder's name has a character that overlayfs cannot take")
    _check(libc.unshare(CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    own = os.path.dirname(upper)
    kept = os.open(own, os.O_PATH | os.O_CLOEXEC)
    _check(libc.mount(b"tmpfs", os.fsencode(upper), b"tmpfs", 0, b"size=2g"))
    for name in ("upper", "work"):
        os.mkdir(os.path.join(upper, name))
    options = f"lowerdir={folder},upperdir={upper}/upper,workdir={upper}/work"
    _check(libc.mount(b"overlay", os.fsencode(folder), b"overlay", 0, os.fsencode(options)))
    if os.path.commonpath([os.path.realpath(own), os.path.realpath(folder)]) == os.path.realpath(folder):
        _check(libc.mount(f"/proc/self/fd/{kept}".encode(), os.fsencode(own), None, MS_BIND, None))
    os.close(kept)


def _import(config: dict[str, Any]) -> None:
    """Import what the ranks share."""
    from ddpdoctor.rehearsal.hook.install import install

    sys.path[0] = config["first_path"]
    install()
    for name in config["modules"]:
        if name in PRELOADED or name == "torch._dynamo":
            try:
                importlib.import_module(name)
            except Exception:
                continue  # the rank imports it again, and its own traceback says why it fails


def _become(index: int, rank: dict[str, Any], config: dict[str, Any]) -> None:
    """Turn this forked process into the rank: its environment, output and script."""
    _libc().prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    output = os.open(rank["output"], os.O_WRONLY)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(rank["environ"])
    os.environ.pop("PYTHONSAFEPATH", None)
    stacks = open(rank["stacks"], "w")  # noqa: SIM115 - open as long as the process
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=False)
    faulthandler.enable(file=sys.stderr)
    random._inst.seed()  # a process of its own has a seed of its own
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    channel().is_forked = False
    channel().say("rank_process", index=index)
    from ddpdoctor.rehearsal.hook import devices, executed, watching
    from ddpdoctor.rehearsal.hook.reporting import report

    devices.begin_process()
    code = 0
    try:
        _run_script(config, rank["extra"])
    except RehearsalEnd:
        channel().say("left", how="ended")
    except SystemExit as request:
        executed.report()
        code = request.code if isinstance(request.code, int) else 0 if request.code is None else 1
        channel().say("left", how="exit", code=code, at=_raised_at(request))
        if not isinstance(request.code, (int, type(None))):
            print(request.code, file=sys.stderr)
    except BaseException as error:
        report(error)
        code = 1
    else:
        executed.report()
        channel().say("left", how="end", **watching.at_end())
    _finish(code)


def _finish(code: int) -> None:
    """End as the interpreter does: threads, handlers, buffers."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        import atexit

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException as error:
        print(f"at exit: {error!r}", file=sys.__stderr__)
    channel().say("gone")
    os._exit(code)


def _raised_at(error: BaseException) -> Any:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    return [] if last is None else frames_of_user(last.tb_frame)


def _run_script(config: dict[str, Any], extra: list[str]) -> None:
    """The script as `__main__`."""
    sys.argv = [config["argv"][0], *extra, *config["argv"][1:]]
    if config["module"]:
        runpy.run_module(config["module"], run_name="__main__", alter_sys=True)
        return
    from ddpdoctor.rehearsal.hook.rewriting import compiled

    path = config["script"]
    module = ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    with open(path, "rb") as file:
        code = compiled(file.read(), path)
    exec(code, module.__dict__)


if __name__ == "__main__":
    main()
