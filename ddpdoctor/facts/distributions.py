"""The distributions of modules: what pip installs for `import cv2`."""

from __future__ import annotations

__all__ = ["DISTRIBUTIONS", "distribution_of"]


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


def _same(names: str) -> dict[str, str]:
    return {name: name for name in names.split()}


DISTRIBUTIONS = {
    **_pairs(
        "Crypto=pycryptodome MinkowskiEngine=MinkowskiEngine OpenSSL=pyOpenSSL PIL=Pillow absl=absl-py attr=attrs"
        " bs4=beautifulsoup4 composer=mosaicml cv2=opencv-python dateutil=python-dateutil deepspeed=deepspeed"
        " docx=python-docx dotenv=python-dotenv faiss=faiss-cpu fitz=PyMuPDF flash_attn=flash-attn git=GitPython"
        " google.protobuf=protobuf grpc=grpcio huggingface_hub=huggingface-hub hydra=hydra-core jwt=PyJWT"
        " lightning_fabric=lightning-fabric magic=python-magic megatron=megatron-core mpl_toolkits=matplotlib"
        " pkg_resources=setuptools pl_bolts=lightning-bolts pycocotools=pycocotools pynvml=nvidia-ml-py"
        " pytorch_lightning=pytorch-lightning ruamel=ruamel.yaml sentence_transformers=sentence-transformers"
        " serial=pyserial skimage=scikit-image sklearn=scikit-learn streaming=mosaicml-streaming"
        " torch_geometric=torch-geometric torch_scatter=torch-scatter torch_sparse=torch-sparse"
        " transformer_engine=transformer-engine[pytorch] win32api=pywin32 yaml=PyYAML zmq=pyzmq"
    ),
    **_same(
        "accelerate aiohttp albumentations av bitsandbytes boto3 click colossalai cupy datasets decord diffusers dill"
        " einops evaluate fire flax fsspec ftfy fvcore gradio gymnasium h5py horovod imageio importlib_metadata jax joblib"
        " jsonargparse jsonlines kornia librosa lightning lmdb loguru matplotlib mlflow mmcv mmengine monai mpi4py"
        " msgpack mup ninja nltk numba numpy omegaconf onnx onnxruntime open_clip openai optuna orjson packaging pandas"
        " peft plotly polars psutil pyarrow pydantic pytest ray regex requests rich rouge_score sacrebleu safetensors"
        " scipy seaborn sentencepiece sentry_sdk setproctitle simplejson six soundfile spacy submitit sympy tabulate"
        " tensorboard tensorboardX tensorflow termcolor tiktoken timm tokenizers toml torch torchaudio torchdata"
        " torchmetrics torchvision tqdm transformers triton trl typer ujson wandb webdataset xformers xxhash yacs zarr"
        " zstandard"
    ),
}
"""The distribution of a module, for those that training scripts import; the name alone proves nothing for others."""


def distribution_of(module: str) -> str | None:
    """The distribution of a top-level module; None if unknown."""
    found = DISTRIBUTIONS.get(module)
    return None if found is None else found if found != module else found.replace("_", "-")
