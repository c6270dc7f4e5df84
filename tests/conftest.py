"""Models that any test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from ds4trio.models.load import LoadedModel, load_model
from ds4trio.models.resolve import resolve
from tests.tiny import make_tiny_model

# The models of most tests are tiny: sharing an operation among threads costs more than it saves,
# and far more where other processes want the cores.
torch.set_num_threads(1)

# Without a GPU, Triton's kernels are interpreted. It asks when it is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


class ByFile(LoadFileScheduling):
    """A file's tests share a process, and so do all of the families': the last of those looks at
    what the ones before it have shown."""

    def _split_scope(self, nodeid: str) -> str:
        families = "tests/families"
        return families if nodeid.startswith(f"{families}/") else super()._split_scope(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder with a random model of two small layers (see ``tests.tiny``)."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def default_model() -> LoadedModel:
    """The real default model; a test that asks for it is marked ``model``."""
    return load_model(resolve())
