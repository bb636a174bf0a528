"""Training state as JSON and named tensors, and back, for checkpoints and for workers that join. No pickle is used.

Nested dicts, lists and tuples of numbers, strings, bytes, tensors and arrays can be encoded; anything else is refused,
with its path.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, TensorSpec
from torch import Tensor

#: The key that marks JSON objects which encode a type that JSON does not have.
MARK = "$"


class CannotSave(TypeError):
    """A part of the state cannot be saved; the sentence names it."""


def encode(value: Any, path: str = "state") -> tuple[Any, dict[str, Tensor]]:
    """A JSON document and the tensors that it refers to by name. The tensors are not copied."""
    tensors: dict[str, Tensor] = {}
    return _encode(value, path, tensors), tensors


def check_saveable(value: Any, path: str = "state") -> None:
    """Check whether a value can be saved: better at the beginning than at the first checkpoint.

    Raises:
        CannotSave: it cannot; the sentence names the part.
    """
    check_tensors(encode(value, path)[1])


def check_tensors(tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that cannot be saved.

    Raises:
        CannotSave: there is one.
    """
    for name, tensor in tensors.items():
        if dtype_code(tensor.dtype) is None:
            raise CannotSave(f"{name} is a tensor of {tensor.dtype}, which cannot be saved")
        if tensor.layout is not torch.strided:
            raise CannotSave(f"{name} is a tensor of layout {tensor.layout}, which cannot be saved")


@cache
def dtype_code(dtype: torch.dtype) -> str | None:
    """The name of a type of tensor in safetensors files; None if such tensors cannot be saved."""
    try:
        return str(TensorSpec(dtype=str(dtype).removeprefix("torch."), shape=[0], data_ptr=0, data_len=0).dtype)
    except SafetensorError:
        return None


def decode(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that was encoded."""
    if isinstance(document, list):
        return [decode(item, tensors) for item in document]
    if not isinstance(document, dict):
        return document
    kind = document.get(MARK)
    if kind is None:
        return {name: decode(item, tensors) for name, item in document.items()}
    return _DECODERS[kind](document, tensors)


def _encode(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {MARK: "float", "value": repr(value)}
    if isinstance(value, Tensor):
        return {MARK: "tensor", "name": _add(tensors, path, value.detach())}
    if isinstance(value, np.ndarray):
        raw = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.size else torch.empty(0)
        name = _add(tensors, path, raw)
        return {MARK: "array", "name": name, "dtype": value.dtype.str, "shape": list(value.shape)}
    if isinstance(value, np.generic):
        return _encode(value.item(), path, tensors)
    if isinstance(value, bytes):
        raw = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0)
        return {MARK: "bytes", "name": _add(tensors, path, raw)}
    if isinstance(value, tuple):
        return {MARK: "tuple", "items": [_encode(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [_encode(item, f"{path}/{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value) and MARK not in value:
            return {key: _encode(item, f"{path}/{key}", tensors) for key, item in value.items()}
        pairs = [
            [_encode(key, f"{path}/key", tensors), _encode(item, f"{path}/{key}", tensors)]
            for key, item in value.items()
        ]
        return {MARK: "dict", "items": pairs}
    raise CannotSave(
        f"{path} is a {type(value).__name__}, which cannot be saved: only numbers, texts, bytes, lists, tuples, dicts, "
        "arrays and tensors can"
    )


def _add(tensors: dict[str, Tensor], path: str, tensor: Tensor) -> str:
    name = path
    while name in tensors:
        name += "'"
    tensors[name] = tensor
    return name


def _array(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    raw = tensors[document["name"]].numpy().tobytes()
    return np.frombuffer(raw, dtype=np.dtype(document["dtype"])).reshape(document["shape"]).copy()


def _dict(document: Any, tensors: Mapping[str, Tensor]) -> Any:
    return {decode(key, tensors): decode(item, tensors) for key, item in document["items"]}


_DECODERS: dict[str, Callable[[Any, Mapping[str, Tensor]], Any]] = {
    "float": lambda document, tensors: float(document["value"]),
    "tensor": lambda document, tensors: tensors[document["name"]],
    "array": _array,
    "bytes": lambda document, tensors: tensors[document["name"]].numpy().tobytes(),
    "tuple": lambda document, tensors: tuple(decode(item, tensors) for item in document["items"]),
    "dict": _dict,
}
