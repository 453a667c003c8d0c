"""What to do after a Python exception: by its class, its message, and the place where it was raised."""

from __future__ import annotations

import re
from collections.abc import Callable

from ddpdoctor.facts.log import Traceback
from ddpdoctor.light_dataclass import dataclass

__all__ = ["ExceptionFix", "fix_of"]


@dataclass(frozen=True, slots=True)
class ExceptionFix:
    """What to do, and a command to paste if one does it."""

    text: str
    command: str | None = None


PACKAGES = {
    "Bio": "biopython",
    "OpenSSL": "pyopenssl",
    "PIL": "pillow",
    "accelerate": "accelerate",
    "attr": "attrs",
    "bitsandbytes": "bitsandbytes",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "datasets": "datasets",
    "dateutil": "python-dateutil",
    "deepspeed": "deepspeed",
    "diffusers": "diffusers",
    "dotenv": "python-dotenv",
    "einops": "einops",
    "etcd3": "etcd3",
    "fire": "fire",
    "flash_attn": "flash-attn --no-build-isolation",
    "git": "gitpython",
    "h5py": "h5py",
    "hydra": "hydra-core",
    "lightning": "lightning",
    "matplotlib": "matplotlib",
    "ml_collections": "ml-collections",
    "mpi4py": "mpi4py",
    "nltk": "nltk",
    "numpy": "numpy",
    "omegaconf": "omegaconf",
    "pandas": "pandas",
    "peft": "peft",
    "pkg_resources": "'setuptools<81'",
    "psutil": "psutil",
    "pytorch_lightning": "pytorch-lightning",
    "regex": "regex",
    "requests": "requests",
    "rich": "rich",
    "safetensors": "safetensors",
    "scipy": "scipy",
    "sentencepiece": "sentencepiece",
    "setuptools": "setuptools",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "tensorboard": "tensorboard",
    "tensorboardX": "tensorboardX",
    "tiktoken": "tiktoken",
    "timm": "timm",
    "tokenizers": "tokenizers",
    "torch": "torch",
    "torchaudio": "torchaudio",
    "torchvision": "torchvision",
    "tqdm": "tqdm",
    "transformer_engine": "'transformer-engine[pytorch]' --no-build-isolation",
    "transformers": "transformers",
    "triton": "triton",
    "trl": "trl",
    "vllm": "vllm",
    "wandb": "wandb",
    "webdataset": "webdataset",
    "wheel": "wheel",
    "xformers": "xformers",
    "yaml": "PyYAML",
}
"""Modules whose package is known, and the argument for pip."""

_MODULE = re.compile(r"No module named '?(?P<name>\w[\w.]*)")
_NAME_FROM = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")
_PATH = re.compile(r"\[Errno \d+\] [^:]{1,60}: '?(?P<path>[^'\n]{1,300})'?")
_KEY = re.compile(r"^['\"]?(?P<key>[^'\"]{1,100})['\"]?$")
_OF_CHECKPOINT = re.compile(r"load|resume|restore|checkpoint|ckpt", re.IGNORECASE)


def fix_of(raised: Traceback) -> ExceptionFix | None:
    """What to do after this exception; None if its class does not determine it."""
    name = raised.exception.rpartition(".")[2]
    for names, fix in _FIXES:
        if name in names:
            return fix(raised)
    return None


def _at(raised: Traceback) -> str:
    return f"at {raised.place.file}:{raised.place.line}" if raised.place is not None else "at the innermost line"


def _module(raised: Traceback) -> ExceptionFix | None:
    missing = _MODULE.search(raised.message)
    if missing is None:
        return None
    name = missing["name"].rstrip(".")
    top = name.partition(".")[0]
    if top in PACKAGES and top == name:
        text = f"Install {name} on every node, in the Python that starts the ranks"
        return ExceptionFix(text, f"python -m pip install {PACKAGES[top]}")
    if top in PACKAGES:
        text = f"Install the version of {top} that this code was written for: the installed one has no {name}"
        return ExceptionFix(text, f"python -m pip show {top}")
    text = (
        f"Install the package that provides {top} on every node (often python -m pip install {top}), or start in the folder that "
        f"contains {top} if it is part of your project (PYTHONPATH=$PWD)"
    )
    return ExceptionFix(text)


def _import(raised: Traceback) -> ExceptionFix | None:
    wrong = _NAME_FROM.search(raised.message)
    if wrong is None:
        return _module(raised)
    top = wrong["module"].partition(".")[0]
    text = (
        f"Install the version of {top} that the importing code was written for: the installed one has no {wrong['name']}. "
        f"Check that no file of the job is named {top}.py"
    )
    return ExceptionFix(text, f"python -m pip show {PACKAGES.get(top, top).partition(' ')[0]}")


def _file(raised: Traceback) -> ExceptionFix:
    path = _PATH.search(raised.message)
    if path is None:
        return ExceptionFix(f"Use the absolute path of a file that exists on every node, {_at(raised)}")
    text = f"Create {path['path']} on every node, or use its absolute path. Relative paths start in the folder of the launch"
    return ExceptionFix(text, f"ls -ld {_quoted(path['path'])}")


def _permission(raised: Traceback) -> ExceptionFix:
    path = _PATH.search(raised.message)
    if path is None:
        return ExceptionFix(f"Give the user that starts the ranks access to the file that is opened {_at(raised)}")
    text = f"Give the user that starts the ranks access to {path['path']} on every node, or use a path that they own"
    return ExceptionFix(text, f"id; ls -ld {_quoted(path['path'])}")


def _quoted(path: str) -> str:
    return path if re.fullmatch(r"[\w./@%+=:,-]+", path) else "'" + path.replace("'", "'\\''") + "'"


def _assertion(raised: Traceback) -> ExceptionFix:
    if raised.message:
        return ExceptionFix(f"Make the condition {_at(raised)} true: {raised.message[:120].rstrip('.')}")
    return ExceptionFix(f"Print both sides of the condition {_at(raised)}: the assertion has no message")


def _division(raised: Traceback) -> ExceptionFix:
    text = (
        f"Print the divisor {_at(raised)}: it is 0. Often a rank has no batch, because len(dataset) is below world size x batch "
        "size and drop_last=True"
    )
    return ExceptionFix(text)


def _key(raised: Traceback) -> ExceptionFix | None:
    key = _KEY.match(raised.message.strip())
    if key is None or not any(_OF_CHECKPOINT.search(frame.function) for frame in raised.frames):
        return None  # the code that reads the mapping is what to correct
    return ExceptionFix(
        f"Print the checkpoint's keys {_at(raised)} and load one that exists: it has no key {key['key']}"
    )


def _index(raised: Traceback) -> ExceptionFix:
    return ExceptionFix(f"Print the index and the length {_at(raised)}: the index is not below the length")


def _attribute(raised: Traceback) -> ExceptionFix:
    text = f"Check the name {_at(raised)}: it is misspelled, the object is None, or its package has another version (pip show)"
    return ExceptionFix(text)


def _type(raised: Traceback) -> ExceptionFix:
    text = f"Compare the call {_at(raised)} with the signature in the installed version (pip show, help())"
    return ExceptionFix(text)


def _name(raised: Traceback) -> ExceptionFix:
    return ExceptionFix(f"Define or import the name before it is used {_at(raised)}")


def _end_of_file(raised: Traceback) -> ExceptionFix:
    text = f"Delete the file that is read {_at(raised)} and write it again: it is empty or incomplete"
    return ExceptionFix(text)


def _exhausted(raised: Traceback) -> ExceptionFix:
    text = (
        f"Give every rank the same number of batches: the iterator {_at(raised)} had none left. Use DistributedSampler or "
        "drop_last=True, or start a new iterator when one ends"
    )
    return ExceptionFix(text)


def _recursion(raised: Traceback) -> ExceptionFix:
    return ExceptionFix(f"Find the call that repeats in the traceback above {_at(raised).removeprefix('at ')}")


_FIXES: tuple[tuple[tuple[str, ...], Callable[[Traceback], ExceptionFix | None]], ...] = (
    (("ModuleNotFoundError",), _module),
    (("ImportError",), _import),
    (("FileNotFoundError", "NotADirectoryError", "IsADirectoryError"), _file),
    (("PermissionError",), _permission),
    (("AssertionError",), _assertion),
    (("ZeroDivisionError",), _division),
    (("KeyError",), _key),
    (("IndexError",), _index),
    (("AttributeError",), _attribute),
    (("TypeError",), _type),
    (("NameError", "UnboundLocalError"), _name),
    (("EOFError", "UnpicklingError", "JSONDecodeError"), _end_of_file),
    (("RecursionError",), _recursion),
    (("StopIteration", "StopAsyncIteration"), _exhausted),
)
"""Classes of exceptions, and the functions that know what to do after them."""
