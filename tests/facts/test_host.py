"""What the facts of `host` and `versions` derive."""

from __future__ import annotations

import pytest

from ddpdoctor.facts.device import Device
from ddpdoctor.facts.environ import Environ
from ddpdoctor.facts.gpu import Gpu
from ddpdoctor.facts.host import Limit, count_cpus, local_ranks, readable, visible_gpus, world_ranks
from ddpdoctor.facts.job import Job
from ddpdoctor.facts.versions import NcclLibrary, Versions, numbers

FOUR = Gpu(devices=tuple(Device(i, uuid=f"GPU-{i}") for i in range(4)))


@pytest.mark.parametrize(
    ("text", "count"), [("0-3,8", 5), ("0", 1), ("", 0), ("0-31,64-95\n", 64), ("x", 0), ("3-1", 0), ("1-x", 0)]
)
def test_cpus_are_counted(text: str, count: int) -> None:
    assert count_cpus(text) == count


@pytest.mark.parametrize(("given", "count"), [(None, 4), ("", 0), ("-1", 0), ("1,3", 2), ("0,-1,1", 1), ("0,9", 1)])
def test_visible_gpus_are_those_that_cuda_would_show(given: str | None, count: int) -> None:
    environ = Environ({} if given is None else {"CUDA_VISIBLE_DEVICES": given})
    assert visible_gpus(environ, FOUR) == count


def test_the_launcher_says_how_many_ranks_run_here_before_the_gpus_do() -> None:
    torchrun = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "h",
        "MASTER_PORT": "1",
    }
    assert local_ranks(Environ(torchrun), FOUR, None) == 2
    assert local_ranks(Environ({}), FOUR, None) == 4
    assert local_ranks(Environ({}), None, None) is None


def test_the_launch_line_says_how_many_ranks_run_here_before_all_others() -> None:
    stale = Environ({"RANK": "0", "WORLD_SIZE": "512", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"})
    assert local_ranks(stale, FOUR, Job(ranks_per_node=2)) == 2
    assert local_ranks(stale, FOUR, Job()) == 8
    assert world_ranks(stale, FOUR, Job(ranks_per_node=2, world_size=6)) == 6
    assert world_ranks(stale, FOUR, Job(ranks_per_node=2)) == 2
    assert world_ranks(stale, FOUR, Job()) == 512
    assert world_ranks(Environ({}), None, None) == 1


@pytest.mark.parametrize(
    ("size", "text"), [(-1, "unlimited"), (0, "0 B"), (1023, "1023 B"), (64 << 20, "64 MiB"), (3 << 39, "1.5 TiB")]
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert readable(size) == text


def test_an_unlimited_limit_is_below_nothing() -> None:
    assert not Limit(-1, -1).is_below(1 << 60)
    assert Limit(16, -1).is_below(17)


def test_versions_compare_by_number() -> None:
    assert numbers("2.9.1+cuda12") < numbers("2.21.5")
    assert numbers("") == ()
    assert numbers("dev") == ()


def test_a_static_nccl_hides_the_libraries_beside_it() -> None:
    library = NcclLibrary("/l/libnccl.so.2", "system", "2.20.5")
    assert Versions(torch="2", nccl_is_static=True, nccl_libraries=(library,)).nccl is None
    assert Versions(torch="2", nccl_is_static=False, nccl_libraries=(library,)).nccl == library


@pytest.mark.parametrize(
    ("versions", "build", "has_nccl"),
    [
        (Versions(), "", None),
        (Versions(torch="2.6.0+cpu"), "CPU", False),
        (Versions(torch="2.6.0", torch_cuda="12.4"), "CUDA 12.4", True),
        (Versions(torch="2.6.0", torch_hip="6.2"), "ROCm 6.2", True),
        (Versions(torch="2.8.0", torch_xpu="20250101"), "XPU 20250101", False),
    ],
)
def test_the_build_says_whether_nccl_is_in_it(versions: Versions, build: str, has_nccl: bool | None) -> None:
    assert (versions.build, versions.has_nccl) == (build, has_nccl)
