"""Started again with a warm cache, the server answers soon, since it imports what it needs only."""

from __future__ import annotations

import pytest

from tests.show.conftest import FirstAnswer
from tests.show.real_server import RealServer

pytestmark = pytest.mark.model

GENEROUS_SECONDS = 15.0
"""On a quiet machine it is 3. One that runs tests is shared, and is given more time the more tasks
want each of its cores."""


def test_the_first_answer_comes_soon_after_the_command(
    first_answer: FirstAnswer, capsys: pytest.CaptureFixture[str]
) -> None:
    crowd = max(1.0, first_answer.load)
    with capsys.disabled():
        print(
            f"\nfrom the command to the first answer: {first_answer.seconds:.2f} s, "
            f"with {first_answer.load:.1f} tasks for each core"
        )
    assert "Paris" in first_answer.text
    assert first_answer.seconds < GENEROUS_SECONDS * crowd


def test_a_warm_start_does_not_import_transformers(server: RealServer) -> None:
    assert "torch" in server.imported, "the list of imports is not what it should be"
    packages = {module.partition(".")[0] for module in server.imported}
    assert not packages & {"transformers", "gguf", "huggingface_hub"}
