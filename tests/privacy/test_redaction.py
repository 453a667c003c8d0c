"""What must stay: paths, functions of libraries and host names that look random at first sight; and random keys must not."""

from __future__ import annotations

import random
import string

import pytest

from ddpdoctor.privacy.redaction import REMOVED, redact, redact_variable

NAMES = """
/home/alice/projects/LLaMA-Factory/saves/Qwen2.5-7B-Instruct/lora/train_2024-10-12-08-30-11
/data/checkpoints/2024-05-12_LLaMA7B_FSDP_bs128_lr3e-5/step_0012000/optimizer.pt
/scratch/users/jdoe42/runs/Exp17_ViT-L16_ImageNet1k_AdamW_lr1e-3_wd005/ckpt-0300.pth
/mnt/nfs/datasets/ImageNet-1K/ILSVRC2012_img_train_t3.tar
/mnt/nfs/datasets/ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_10026.JPEG
/opt/conda/envs/Torch24Cuda121/lib/python3.10/site-packages/torch/distributed/run.py
/opt/conda/envs/MyEnv_Py310_Torch24_CUDA12/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so
/root/.cache/huggingface/hub/models--meta-llama--Meta-Llama-3.1-70B-Instruct/snapshots/945c8663693130f8be2ee66210e062158b2a9693/config.json
/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-Coder-32B-Instruct/blobs/model-00001-of-00014.safetensors
/root/.cache/torch_extensions/py310_cu121/cpu_adam/cpu_adam.so
/root/.triton/cache/flash_attention_fwd_SM90_BF16_hdim128/kernel.cubin
/workspace/Megatron-LM/megatron/core/distributed/param_and_grad_buffer.py
/workspace/DeepSpeedExamples/applications/DeepSpeed-Chat/training/step1_supervised_finetuning/main.py
/workspace/NeMo-Megatron-Launcher/launcher_scripts/results/GPT3_5B_BF16_TP4_PP2/checkpoints
/workspace/results/Mixtral8x7B_MoE_EP8_TP2_PP4_Seq4096_GBS1024/tb_logs/events.out.tfevents.1716543210.dgx-a100-07.12345.0
/lustre/fsw/coreai_dlalgo_llm/users/bob/GPT-175B-TP8PP16-mbs2/slurm_12345_gpt175b.out
/lustre/fs2/portfolios/Research/projects/LLM-Pretrain2024/runs/Run0007_Node016
/gpfs/scratch1/shared/TeamVision/COCO2017_Train_Shards/shard-000123.tar
/usr/lib/python3/dist-packages/torch/_C.cpython-312-x86_64-linux-gnu.so
/usr/local/cuda-12.4/targets/x86_64-linux/lib/libcudart.so.12.4.127
/usr/local/nvidia/lib64/libnvidia-ptxjitcompiler.so.535.161.08
/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.550.90.07
/usr/local/lib/python3.11/dist-packages/nvidia/nccl/lib/libnccl.so.2
/usr/local/lib/python3.11/dist-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so
/tmp/torchelastic_ab3k9x_m/none_t8wq2z1a/attempt_0/0/error.json
/tmp/pip-wheel-torch-2.4.0+cu121-cp310-cp310-linux_x86_64/torch-2.4.0+cu121-cp310-cp310-linux_x86_64.whl
/var/lib/kubelet/pods/volumes/kubernetes.io~empty-dir/dshm/NCCL_SharedMem_Rank0
/var/log/slurm/JobComp_Partition_GPU-A100-80GB_2024Q3.log
/var/spool/slurmd/job1234567/slurm_script
/sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/types/0
/sys/devices/pci0000:00/0000:00:01.1/0000:01:00.0/numa_node
/proc/driver/nvidia/gpus/0000:3b:00.0/information
/home/user1/MasterThesis2024/Experiments/ResNet50_Cifar100_AugMix_Seed42/Train_Config_V3.yaml
/home/JDoe/Documents/PhD/Paper3_ICML2025/Code/DistributedTraining_v2Final/train_DDP_4xA100.py
/Users/MaxMuster/PycharmProjects/SpeechRecognition2/src/Wav2Vec2_FineTune_GermanCV15.py
/home/kim/wav2vec2-XLSR53-FineTuned-CommonVoice15-Epoch30/trainer_state.json
/home/kim/whisper-Large-V3-Turbo-CT2-Int8Float16/model.bin
/home/kim/StableDiffusionXL1.0-Base-LoRA-Rank64-Step5000/pytorch_lora_weights.safetensors
/data/models/DeepSeek-R1-Distill-Qwen-32B-GPTQ-Int4-G128/model.safetensors
/data/models/Llama-2-70B-Chat-AWQ4Bit-GroupSize128-GEMM/quant_config.json
/data/models/OpenHermes2.5Mistral7B-GGUF-Q4KM/openhermes-2.5-mistral-7b.Q4_K_M.gguf
/data/tokenized/RedPajamaV2_En_2023-14_Llama3Tok_Seq8192/part-00017.bin
/data/WebText/OpenWebText2_Shard01of64_BPE50k.idx
/data/KITTI360/Velodyne64_Sync_2013_05_28_Drive0007/data_3d_raw
/data/nuScenes/V1.0-Trainval10_Blobs_Camera/sweeps/CAM_FRONT_LEFT
/data/LAION2B-en-Aesthetic6Plus-Res512-WebDataset/00012.tar
/ckpt/GPTNeoX20B_ZeRO3_Offload_NVMe_Sub1e9/global_step5000/mp_rank_00_model_states.pt
/ckpt/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt
/ckpt/epoch=03-step=12000-valLoss=0.1234-valAcc1=76.32.ckpt
/ckpt/T5XXL_Encoder_Only_FP8E4M3FN_Scaled.safetensors
/ckpt/SAM2.1_Hiera_BasePlus_Tuned_Iter120K.pth
/ckpt/2025-01-31T23-59-59Z_Rank0007_OptState.distcp
/ckpt/__0_0.distcp
/ckpt/20241105T101500Z-MyRun3-AttnFlash2-Compile1/last.pt
/code/src/LlamaForCausalLMPipelineStage2Of4.py
/code/tests/test_AllReduceBucketHook2Level_FP16Compress.py
/code/src/ops/FusedAdamMultiTensorL2NormKernel.cu
/code/csrc/SM90FlashAttnFwdHdim128BF16CausalSplit.cu
/code/csrc/xFormersMemEffAttnV2BwdSm80.cu
/code/third_party/cutlass/examples/48_hopper_warp_specialized_gemm/48_hopper_warp_specialized_gemm.cu
/code/build/temp.linux-x86_64-cpython-310/csrc/flash_attn/src/flash_bwd_hdim256_bf16_sm80.o
/code/src/Bert4RecDistributedTrainer2.py
/code/configs/Config_Qwen2VL7B_SFT_Lr2e5_Bs64_Ep3.yaml
/code/notebooks/Analysis2_NCCLBandwidth8xH100_IB400.ipynb
/code/logs/Node01GPU3Rank11Stdout.log
/code/logs/MyJob_20241231_235959_Node07_GPU3_Rank31_Stderr.log
/code/logs/slurm-1234567_4294967294.out
/code/logs/TorchRun_RdzvC10d_Host10GB_Try2.txt
/app/TrainingOperator/PyTorchJob_V1Beta2_Master0/entrypoint.sh
/app/Dataset3DPointCloudS3DISArea5/loader.py
/home/u/WMT14EnDe32kVocabShards/train.en
/home/u/Runs/LR0p001BS256WD0p05EP300SEED1234/model.pth
/home/u/Runs/D20241012T0830LlamaPt8bV3/ckpt
/home/u/sweep/HiddenDim512NumLayers6NumHeads8Dropout01/args.json
/home/u/out/BatchSize32LearningRate3e4Warmup500/log.txt
/home/u/src/EfficientNetB7TrainerV2Impl.py
/home/u/src/PyTorchLightning2Migration.md
/nix/store/zw5g0k1jq8x9c3mmv0hnh2s4rk4nz8yd-python3-3.11.9/lib/python3.11
/nix/store/9v5d40jyvmwgnq1nj8f19ji2rcc5dksd-gcc-12.3.0/bin
/ix/bazel-out/k8-opt/bin/external/com_google_protobuf/_objs/protobuf/arena.o
/home/u/.cache/bazel/_bazel_u/8d9f5c1b3e2a4f60718293a4b5c6d7e8/execroot
/home/u/.vscode-server/cli/servers/Stable-f1e16e1e6214d7c44d078b1f0607b2388f29d729/server
/run/user/1000/systemd/units/invocation:user@1000.service
/dev/shm/nccl-AbC12x
/dev/shm/torch_12345_1234567890_0
/home/u/mlruns/0/4f1c2b3a4d5e6f708192a3b4c5d6e7f8/artifacts/model
/home/u/wandb/run-20241012_083011-3k9x7w2m/files/output.log
/home/u/wandb/offline-run-20241012_083011-a1b2c3d4/run-a1b2c3d4.wandb
/home/u/ray_results/PPO_2024-10-12_08-30-11/PPO_CartPole-v1_4a5b6_00000_0_2024-10-12_08-30-11/result.json
/tmp/ray/session_2024-10-12_08-30-11_123456_7890/logs/raylet.out
/tmp/tmpk3x9_2ab/_remote_module_non_scriptable.py
/tmp/hydra/outputs/2024-10-12/08-30-11/.hydra/config.yaml
nvmlDeviceGetP2PStatus
nvmlDeviceGetNvLinkRemotePciInfo_v2
nvmlDeviceGetMaxPcieLinkGeneration3
cuDeviceGetP2PAttribute
cudaDeviceGetP2PAttributes
ibv_query_gid_ex_Roce2Ipv4Mapped
cudaMallocFromPoolAsync_v11020
cudnnConvolutionBiasActivationForward8
ncclIbGdrSupportP2pNvlsV2
cublasLt3MatmulAlgoGetHeuristicEx2
cuMemcpy3DPeerAsync_v2_ptsz
hipMemcpy2DToArrayAsyncSpt0
torch._C._distributed_c10d.ProcessGroupNCCL2Options
aten::_scaled_dot_product_flash_attention_backward
c10d::ProcessGroupGloo::AsyncAllreduceCUDA2Work
DistributedDataParallel2ndOrderHook
nvidia_A100_SXM4_80GB_Node03Rack12
gpu-A100x8-rack12-node03.CLUSTER2.example.com
DGX-H100-SU01-Node07.hpc.example.edu
ip-10-0-12-34.us-west-2.compute.internal
i-0abcd1234ef567890.us-east-1.compute.internal
ec2-203-0-113-25.eu-central-1.compute.amazonaws.com
gke-cluster1-a3-highgpu-8g-pool-1a2b3c4d-x7zq
aks-nodepool1-12345678-vmss000001
pytorchjob-llama70b-worker-13-7f9c8d6b5f-x2x9z
WIN-K3J8D7F6G5H
DESKTOP-9QK2LM4
Standard_ND96isr_H100_v5-vmss_000003
nid005432-hsn0.perlmutter.nersc.gov
LoginNode1-GPU-Partition2-Rack07
SuperMicro-SYS-421GE-TNHR2-LCC-Node12
HPE-ProLiant-XL675d-Gen10Plus-N03
lambda-hyperplane-8xH100SXM5-01
MosaicML-Inst7-8xA100SXM4-Pod3
HGX-B200-Node17-Row4
ml-ws-RTX4090x2-lab3B
Frontier09876.olcf.ornl.gov
jwb0123.juwels.fzj.de
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_paths_functions_and_host_names_stay(name: str) -> None:
    assert redact(name) == name
    assert redact(["train.py", name]) == ["train.py", name]
    assert redact({"text": f"open {name}: No such file"}) == {"text": f"open {name}: No such file"}


@pytest.mark.parametrize("length", [20, 24, 32, 40, 64])
def test_random_keys_are_removed(length: int) -> None:
    source = random.Random(length)
    keys = ["".join(source.choices(string.ascii_letters + string.digits, k=length)) for _ in range(500)]
    removed = sum(key not in redact(f"before {key} after") for key in keys)
    assert removed >= (0.92 if length < 32 else 0.96) * len(keys)


@pytest.mark.parametrize("length", [8, 10])
def test_random_keys_in_groups_are_removed(length: int) -> None:
    source = random.Random(length)
    alphabet = string.ascii_letters + string.digits
    keys = ["-".join("".join(source.choices(alphabet, k=length)) for _ in range(4)) for _ in range(500)]
    assert sum(key not in redact(f"before {key} after") for key in keys) >= 0.96 * len(keys)


def test_a_variable_is_removed_by_its_name_or_its_value() -> None:
    assert redact_variable("SLURM_JWT", "abc") == REMOVED
    assert redact_variable("NCCL_NOTE", "ghp_16C7e42F292c6912E7710c838347Ae178B4a") == REMOVED
    assert redact_variable("MASTER_ADDR", "http://me:pw@node0") == "http://***@node0"


@pytest.mark.parametrize("name", ["TORCHELASTIC_RUN_ID", "PET_RDZV_ID", "MASTER_ADDR"])
def test_what_names_a_job_or_a_host_stays_to_be_judged(name: str) -> None:
    assert redact_variable(name, "9f8Kq2LmX7vB4nRt6YwZ") == "9f8Kq2LmX7vB4nRt6YwZ"
