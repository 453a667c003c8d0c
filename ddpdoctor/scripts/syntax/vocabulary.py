"""Names of torch.distributed and of the frameworks around it: what communicates, and which variables hold the rank."""

from __future__ import annotations

__all__ = [
    "COLLECTIVES",
    "FRAMEWORKS",
    "GROUP_POSITION",
    "MAKERS",
    "METHODS",
    "P2P",
    "VARIABLES",
    "words",
]


def words(text: str) -> tuple[str, ...]:
    """The words of a text: the tables of this module are written as text."""
    return tuple(text.split())


COLLECTIVES = frozenset(
    words("""
    dist._all_gather_base dist._reduce_scatter_base dist.all_gather dist.all_gather_coalesced dist.all_gather_into_tensor
    dist.all_gather_object dist.all_gather_single dist.all_reduce dist.all_reduce_coalesced dist.all_to_all
    dist.all_to_all_single dist.barrier dist.broadcast dist.broadcast_object_list dist.gather dist.gather_into_tensor
    dist.gather_object dist.gather_single dist.monitored_barrier dist.new_group dist.new_subgroups
    dist.new_subgroups_by_enumeration dist.reduce dist.reduce_scatter dist.reduce_scatter_single dist.reduce_scatter_tensor
    dist.scatter dist.scatter_object_list
    dist.nn.functional.all_gather dist.nn.functional.all_reduce dist.nn.functional.broadcast dist.nn.functional.gather
    dist.nn.functional.reduce dist.nn.functional.reduce_scatter dist.nn.functional.scatter dist.nn.functional.all_to_all
    dist.nn.all_reduce dist.nn.all_gather dist.nn.broadcast
    dcp.save dcp.load dcp.state_dict_saver.save dcp.state_dict_loader.load dcp.save_state_dict dcp.load_state_dict
    dcp.async_save dcp.state_dict.get_model_state_dict dcp.state_dict.get_state_dict dcp.state_dict.get_optimizer_state_dict
    dist.fsdp.FullyShardedDataParallel.optim_state_dict dist.fsdp.FullyShardedDataParallel.full_optim_state_dict
    dist.init_device_mesh dist.device_mesh.init_device_mesh DDP FSDP
    horovod.torch.allreduce horovod.torch.allgather horovod.torch.broadcast horovod.torch.broadcast_parameters
    horovod.torch.broadcast_object horovod.torch.barrier
    """)
)
"""Short names of the functions that all ranks of the default group must call together, in one order."""

GROUP_POSITION = {
    "dist.barrier": 0,
    "dist.monitored_barrier": 0,
    "dist.all_reduce": 2,
    "dist.broadcast": 2,
    "dist.reduce": 3,
    "dist.all_gather": 2,
    "dist.all_gather_into_tensor": 2,
    "dist.all_gather_single": 2,
    "dist.gather": 3,
    "dist.gather_into_tensor": 3,
    "dist.gather_single": 3,
    "dist.scatter": 3,
    "dist.reduce_scatter": 3,
    "dist.reduce_scatter_single": 3,
    "dist.reduce_scatter_tensor": 3,
    "dist.all_to_all": 2,
    "dist.all_to_all_single": 4,
    "dist.all_gather_object": 2,
    "dist.broadcast_object_list": 2,
    "dist.gather_object": 3,
    "dist.scatter_object_list": 3,
    "dist.send": 2,
    "dist.recv": 2,
    "dist.isend": 2,
    "dist.irecv": 2,
}
"""The position of `group` among positional arguments."""

P2P = frozenset(("dist.send", "dist.recv", "dist.isend", "dist.irecv", "dist.P2POp"))

METHODS = {
    "wait_for_everyone": "accelerator",
    "barrier": "strategy",
    "full_tensor": "any",
    "gather": "accelerator",
    "gather_object": "accelerator",
    "reduce": "accelerator",
    "save_state": "sharding accelerator",
    "load_state": "sharding accelerator",
    "gather_for_metrics": "accelerator",
    "pad_across_processes": "accelerator",
    "save_checkpoint": "engine",
    "save_16bit_model": "engine",
    "consolidate_state_dict": "any",
    "all_gather": "lightning",
    "all_reduce": "fabric",
    "broadcast": "fabric",
    "train": "transformers trainer",
    "evaluate": "transformers trainer",
    "predict": "trainer",
    "fit": "lightning trainer",
    "validate": "lightning trainer",
    "test": "lightning trainer",
}
"""Methods that are collectives, with the kind of object: `any` for all, otherwise an Accelerator, a LightningModule or Fabric, a
DeepSpeed engine, or a Trainer."""

VARIABLES = {
    "RANK": "rank",
    "LOCAL_RANK": "local_rank",
    "WORLD_SIZE": "world_size",
    "LOCAL_WORLD_SIZE": "local_world_size",
    "GROUP_RANK": "node_rank",
    "NODE_RANK": "node_rank",
    "SLURM_PROCID": "rank",
    "SLURM_LOCALID": "local_rank",
    "SLURM_NODEID": "node_rank",
    "SLURM_NTASKS": "world_size",
    "SLURM_NPROCS": "world_size",
    "OMPI_COMM_WORLD_RANK": "rank",
    "OMPI_COMM_WORLD_LOCAL_RANK": "local_rank",
    "OMPI_COMM_WORLD_SIZE": "world_size",
    "PMI_RANK": "rank",
    "PMI_SIZE": "world_size",
}
"""Environment variables of launchers, with the property of the rank that they hold."""

FRAMEWORKS = frozenset(
    (
        "accelerate",
        "colossalai",
        "composer",
        "deepspeed",
        "fastai",
        "horovod",
        "ignite",
        "lightning",
        "megatron",
        "mmengine",
        "nemo",
        "pytorch_lightning",
        "lightning_fabric",
        "ray",
        "torchtitan",
        "torchtune",
        "transformers",
        "trl",
    )
)
"""Packages that start, wrap or drive distributed training themselves."""

MAKERS = frozenset(
    (
        "DDP",
        "FSDP",
        "DataLoader",
        "DistributedSampler",
        "Accelerator",
        "dist.init_process_group",
        "dist.TCPStore",
        "dist.FileStore",
        "dist.HashStore",
        "dist.PrefixStore",
        "dist.new_group",
        "dist.isend",
        "dist.irecv",
        "timedelta",
        "mp.get_context",
        "mp.Process",
        "deepspeed.initialize",
        "argparse.ArgumentParser",
        "argparse.Namespace",
        "types.SimpleNamespace",
    )
)
"""Functions whose result is traced back to the call that returned it."""
