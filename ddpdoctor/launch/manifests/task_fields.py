"""The settings of Compose files, SkyPilot tasks and configurations of accelerate, with their types.

Sources: compose-spec/compose-spec, schema/compose-spec.json; skypilot 0.14, sky/utils/schemas.py; accelerate 1.15,
commands/config/config_args.py (`ClusterConfig`, and what its `process_config` still reads).
"""

from __future__ import annotations

from ddpdoctor.launch.manifests.schema import FieldTable

__all__ = ["ACCELERATE_CONFIG", "COMPOSE", "SKYPILOT"]


def _fields(text: str) -> dict[str, str]:
    """`name:type` or `name`, whose type is then anything."""
    pairs = (word.partition(":") for word in text.split())
    return {name: kind or "*" for name, _, kind in pairs}


_COMPOSE = {
    "compose": _fields("version name include services:{service} networks volumes secrets configs models"),
    "service": _fields(
        "annotations attach build blkio_config cap_add:[*] cap_drop:[*] cgroup cgroup_parent command configs container_name:s"
        " cpu_count cpu_percent cpu_shares cpu_quota cpu_period cpu_rt_period cpu_rt_runtime cpus cpuset credential_spec"
        " depends_on deploy:deployment develop device_cgroup_rules devices:[*] dns dns_opt dns_search domainname entrypoint"
        " env_file environment expose:[*] extends external_links extra_hosts gpus group_add healthcheck hostname:s image:s"
        " init ipc:s isolation label_file labels links logging mac_address mem_limit mem_reservation mem_swappiness"
        " memswap_limit models network_mode:s networks oom_kill_disable oom_score_adj pid pids_limit platform ports:[*]"
        " post_start pre_start pre_stop privileged profiles provider pull_policy pull_refresh_after read_only restart"
        " runtime scale secrets"
        " security_opt:[*] shm_size stdin_open stop_grace_period stop_signal storage_opt sysctls tmpfs tty ulimits"
        " use_api_socket user userns_mode uts volumes:[*] volumes_from working_dir:s"
    ),
    "deployment": _fields(
        "mode endpoint_mode replicas labels rollback_config update_config resources:deploy_resources restart_policy placement"
    ),
    "deploy_resources": _fields("limits:reserved reservations:reserved"),
    "reserved": _fields("cpus memory pids generic_resources devices:[device]"),
    "device": _fields("capabilities:[*] count device_ids:[*] driver options"),
}
_OF_COMPOSE = {
    "compose": "the Compose file",
    "service": "the service",
    "deployment": "deploy",
    "deploy_resources": "deploy.resources",
    "reserved": "deploy.resources",
    "device": "the device",
}
COMPOSE = FieldTable(
    _COMPOSE,
    frozenset(name for fields in _COMPOSE.values() for name in fields),
    ("x-",),
    named=lambda name: _OF_COMPOSE[name],
)
_SKYPILOT = {
    "task": _fields(
        "name:s workdir event_callback num_nodes:i resources:resources file_mounts service pool setup:s run:s envs secrets"
        " managed_secrets inputs outputs file_mounts_mapping config volumes volume_mounts experimental api_server"
    ),
    "resources": _fields(
        "cloud region zone infra cpus memory accelerators instance_type use_spot:b spot_recovery job_recovery volumes"
        " disk_size ephemeral_storage disk_tier network_tier local_disk max_hourly_cost ports labels accelerator_args"
        " image_id autostop priority priority_class any_of ordered"
    ),
}
SKYPILOT = FieldTable(
    _SKYPILOT,
    frozenset(name for fields in _SKYPILOT.values() for name in fields) | {"num_gpus", "gpus", "nodes", "env"},
    ("_",),
    is_lenient=True,
    named=lambda name: {"task": "the task"}.get(name, name),
)
ACCELERATE_CONFIG = FieldTable(
    {
        "config": _fields(
            "compute_environment distributed_type mixed_precision use_cpu:b debug num_processes:i machine_rank:i num_machines:i"
            " gpu_ids main_process_ip main_process_port rdzv_backend same_network:b main_training_function enable_cpu_affinity:b"
            " fp8_config deepspeed_config:deepspeed fsdp_config:fsdp parallelism_config megatron_lm_config"
            " mpirun_config downcast_bf16"
            " tpu_name tpu_zone tpu_use_cluster tpu_use_sudo command_file commands tpu_vm tpu_env dynamo_config dynamo_backend"
            " ipex_config use_xpu fp16 num_cpu_threads_per_process max_restarts"
        ),
        "deepspeed": _fields(
            "deepspeed_config_file zero_stage gradient_accumulation_steps gradient_clipping offload_optimizer_device"
            " offload_param_device offload_optimizer_nvme_path offload_param_nvme_path zero3_init_flag zero3_save_16bit_model"
            " deepspeed_hostfile deepspeed_exclusion_filter deepspeed_inclusion_filter deepspeed_multinode_launcher"
            " deepspeed_moe_layer_cls_names"
        ),
        "fsdp": _fields(
            "fsdp_version fsdp_offload_params fsdp_min_num_params fsdp_sharding_strategy fsdp_reshard_after_forward"
            " fsdp_auto_wrap_policy fsdp_transformer_layer_cls_to_wrap fsdp_backward_prefetch fsdp_backward_prefetch_policy"
            " fsdp_state_dict_type fsdp_forward_prefetch fsdp_use_orig_params fsdp_cpu_ram_efficient_loading"
            " fsdp_sync_module_states fsdp_activation_checkpointing fsdp_mixed_precision_policy fsdp_limit_all_gathers"
            " fsdp_activation_checkpointing_offload"
        ),
    },
    named=lambda name: {"config": "accelerate's configuration"}.get(name, f"{name}_config"),
)
