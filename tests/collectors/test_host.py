"""The collector of `host` over small file trees and a kernel that answers what a test wants."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ddpdoctor.collectors.container import find_container
from ddpdoctor.collectors.host import collect
from ddpdoctor.collectors.kernel import Kernel, Space
from ddpdoctor.facts.codec import decode, encode
from ddpdoctor.facts.gaps import Why
from ddpdoctor.facts.host import Host, Limit, Limits
from ddpdoctor.system.machine import Deadline, Machine, Root, this_machine
from ddpdoctor.system.timeouts import CallTimeout, call_with_timeout


class FakeKernel(Kernel):
    """A node with four CPUs, an ordinary user, and a file system of 64 MiB."""

    def user(self) -> int:
        return 1000

    def cpus(self) -> tuple[int, ...]:
        return (0, 1, 2, 8)

    def release(self) -> tuple[str, str]:
        return "6.1.0", "x86_64"

    def limits(self) -> Limits:
        return Limits(Limit(1024, 4096), Limit(65536, 65536), Limit(4096, 4096), Limit(-1, -1))

    def space(self, path: str) -> Space:
        return Space(64 << 20, 1 << 20)

    def clock_is_synchronised(self) -> bool | None:
        return None

    def numa_calls_allowed(self) -> bool | None:
        return False


class DeadMount(FakeKernel):
    """statvfs never comes back, as on an NFS server that is gone."""

    def space(self, path: str) -> Space:
        time.sleep(60)
        raise AssertionError


def _machine(base: Path, files: dict[str, str], **environ: str) -> Machine:
    for name, text in files.items():
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Machine(Root(str(base)), environ, Deadline(20))


def test_this_machine_answers_and_survives_the_codec() -> None:
    found = collect(this_machine(20))
    assert found.cpus_allowed == len(os.sched_getaffinity(0))
    assert found.memory_total_bytes
    assert decode(Host, encode(found)) == found


def test_facts_of_a_tree_and_a_kernel(tmp_path: Path) -> None:
    machine = _machine(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:  1024 kB\nMemAvailable: 512 kB\nSwapTotal: 0 kB\n",
            "proc/self/mounts": "tmpfs /dev/shm tmpfs rw 0 0\n",
            "proc/self/status": "Seccomp:\t2\n",
            "dev/shm/torch_4711_1_0": "x",
            "dev/shm/nccl-abc": "x",
            "dev/infiniband/uverbs0": "",
            "sys/devices/system/cpu/online": "0-15\n",
            "sys/devices/system/node/node0/cpulist": "0-15\n",
            "sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:    2048 kB\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        },
    )
    found = collect(machine, FakeKernel())
    assert (found.memory_total_bytes, found.memory_available_bytes, found.swap_total_bytes) == (1 << 20, 1 << 19, 0)
    assert (found.cpus_online, found.cpus_allowed, found.cpus_allowed_list) == (16, 4, "0-2,8")
    assert (found.shm_kind, found.shm_total_bytes, found.shm_free_bytes) == ("tmpfs", 64 << 20, 1 << 20)
    assert [(each.maker, each.owner, each.files) for each in found.shm_leftovers] == [
        ("nccl", "unknown", 1),
        ("torch", "dead", 1),
    ]
    assert found.rdma_devices == ("uverbs0",)
    assert found.numa_nodes[0].memory_bytes == 2048 * 1024
    assert (found.huge_pages, found.numa_calls_allowed) == ("madvise", False)
    clock = found.gap("clock_is_synchronised")
    assert clock is not None
    assert clock.why is Why.NOT_HERE


def test_a_captured_tree_without_a_kernel_has_gaps_and_no_zeros(tmp_path: Path) -> None:
    found = collect(_machine(tmp_path, {"dev/shm/x": ""}))
    assert (found.cpus_allowed, found.shm_free_bytes, found.memory_total_bytes) == (None, None, None)
    assert found.gap("shm_free_bytes")
    assert found.gap("memory_total_bytes")


def test_no_dev_shm_is_a_fact(tmp_path: Path) -> None:
    found = collect(_machine(tmp_path, {}), FakeKernel())
    assert (found.shm_kind, found.shm_total_bytes) == ("missing", 0)


def test_a_dead_mount_costs_its_own_fields_and_no_more(tmp_path: Path) -> None:
    machine = _machine(tmp_path, {"dev/shm/x": "", "proc/meminfo": "MemTotal: 4 kB\n", "tmp/x": ""})
    started = time.monotonic()
    found = collect(machine, DeadMount())
    assert time.monotonic() - started < 6
    assert found.shm_free_bytes is None
    gap = found.gap("shm_free_bytes")
    assert gap is not None
    assert gap.why is Why.UNANSWERED
    assert found.memory_total_bytes == 4096


def test_a_build_lock_is_held_by_the_process_that_has_it_open(tmp_path: Path) -> None:
    folder = tmp_path / "torch_extensions" / "py311_cpu" / "ext"
    folder.mkdir(parents=True)
    lock = folder / "lock"
    machine = Machine(environ={"XDG_CACHE_HOME": str(tmp_path)}, deadline=Deadline(20))
    held = os.open(lock, os.O_CREAT | os.O_EXCL)
    try:
        assert [each.holder_pid for each in collect(machine).extension_locks] == [os.getpid()]
    finally:
        os.close(held)
    assert [(each.path, each.holder_pid) for each in collect(machine).extension_locks] == [(str(lock), None)]


def test_logind_removes_ipc_unless_the_last_word_says_no(tmp_path: Path) -> None:
    files = {"run/systemd/seats/seat0": "", "etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}
    found = collect(_machine(tmp_path, files), FakeKernel()).logind
    assert found is not None
    assert found.removes_ipc
    _machine(tmp_path, {"etc/systemd/logind.conf.d/50.conf": "[Login]\nRemoveIPC=no\n"})
    found = collect(Machine(Root(str(tmp_path)), {}, Deadline(20)), FakeKernel()).logind
    assert found is not None
    assert not found.removes_ipc


@pytest.mark.parametrize(
    ("files", "environ", "runtime"),
    [
        ({}, {}, ""),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {"container": "podman"}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/1/cgroup": "0::/kubepods.slice/pod1/cri-containerd-2.scope\n"}, {}, "kubernetes"),
        ({"proc/self/cgroup": "1:cpu:/docker/0123456789abcdef\n"}, {}, "docker"),
        ({"proc/self/cgroup": "0::/lxc.payload.box\n"}, {}, "lxc"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({"proc/1/environ": "TERM=x\0container=lxc\0"}, {}, "lxc"),
        ({".singularity.d/x": ""}, {}, "apptainer"),
        ({}, {"APPTAINER_CONTAINER": "/i.sif"}, "apptainer"),
        ({}, {"ENROOT_ROOTFS": "/x"}, "enroot"),
        ({"proc/version": "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"}, {}, "gvisor"),
        ({"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2\n"}, {}, "wsl"),
        ({"proc/self/cgroup": "0::/system.slice/docker.service\n"}, {}, ""),
    ],
)
def test_container_runtimes_are_told_apart(
    tmp_path: Path, files: dict[str, str], environ: dict[str, str], runtime: str
) -> None:
    assert find_container(_machine(tmp_path, files, **environ))[0] == runtime


def test_work_that_never_returns_is_left_behind() -> None:
    with pytest.raises(CallTimeout):
        call_with_timeout(lambda: time.sleep(30), 0.05)
    with pytest.raises(ZeroDivisionError):
        call_with_timeout(lambda: 1 // 0, 5)


def test_what_cannot_be_read_has_a_gap_and_is_not_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "dev").write_text("not a folder: nothing below it can be looked at")
    host = collect(Machine(root=Root(str(tmp_path)), environ={}, deadline=Deadline(20.0)))
    assert host.shm_kind is None
    unanswered = {gap.path for gap in host.gaps if gap.why is Why.UNANSWERED}
    assert {"host.cgroup", "host.numa_nodes", "host.memory_total_bytes", "host.cpus_online"} <= unanswered
    (tmp_path / "dev").unlink()
    (tmp_path / "sys/devices/system/cpu").mkdir(parents=True)
    host = collect(Machine(root=Root(str(tmp_path)), environ={}, deadline=Deadline(20.0)))
    gap = host.gap("numa_nodes")
    assert host.shm_kind == "missing"
    assert gap is not None
    assert gap.why is Why.NOT_HERE
