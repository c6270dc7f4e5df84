"""Which device a model runs on, and in which number format."""

from __future__ import annotations

import torch

from ds4trio.errors import ModelUnavailable

__all__ = ["find_device", "find_dtype"]


def find_device(name: str) -> torch.device:
    """``auto``, or one of torch's. Raises ModelUnavailable when it cannot be used."""
    if name == "auto":
        if torch.cuda.is_available():
            name = "cuda"
        else:
            name = "mps" if torch.backends.mps.is_available() else "cpu"
    if name == "mps" and not torch.backends.mps.is_available():
        raise ModelUnavailable(
            "--device: 'mps' cannot be used: this machine or this torch has none"
        )
    try:  # a tensor's device has a number, which a name may lack
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelUnavailable(f"--device: {name!r} cannot be used: {reason}") from error


def find_dtype(name: str, device: torch.device) -> str:
    """A number format by name; ``auto`` becomes the one that is fastest on the device."""
    if name != "auto":
        return name
    if device.type == "cpu":
        from ds4trio.engine.native.groups import FORM

        return "w8a16" if FORM is not None and FORM.dots else "float32"
    return {"cuda": "bfloat16", "mps": "float16"}.get(device.type, "float32")
