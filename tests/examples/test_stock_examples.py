"""The examples with TorchRL's parts, stock and asynchronous, and the snippets of docs/torchrl.md."""

from __future__ import annotations

import re
import runpy

import pytest
from repository import ROOT


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stock_collector_gives_advantages_and_a_loss() -> None:
    """Six batches complete eight groups of eight, some of them with both successes and failures."""
    advantages, loss = runpy.run_path(str(ROOT / "examples" / "stock_collector.py"))["main"](6)
    groups = [advantages[i : i + 8] for i in range(0, len(advantages), 8)]
    assert len(advantages) % 8 == 0
    assert all(sum(group) == pytest.approx(0.0, abs=1e-4) for group in groups)
    assert any(max(group) > 0.3 for group in groups)
    assert abs(loss) < 10


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stock_replay_buffer_takes_optimiser_steps() -> None:
    path = ROOT / "examples" / "stock_replay_buffer.py"
    assert len(path.read_text().splitlines()) <= 80
    losses = runpy.run_path(str(path))["main"](6)
    assert losses
    assert all(abs(loss) < 10 for loss in losses)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_asynchronous_batches_are_sampled_by_the_weights_that_were_sent() -> None:
    """A batch is admitted at most one update before its own: its rows are of its version or the one before."""
    versions = runpy.run_path(str(ROOT / "examples" / "async_collector.py"))["main"](3)
    assert versions[0] == [0]
    assert set(versions[1]) <= {0, 1}
    assert set(versions[2]) <= {1, 2}


def test_the_pages_snippets_are_lines_of_the_examples() -> None:
    examples = {
        line.strip()
        for name in ("stock_collector", "stock_replay_buffer", "torchrl_collector", "async_collector")
        for line in (ROOT / "examples" / f"{name}.py").read_text().splitlines()
    }
    page = (ROOT / "docs" / "torchrl.md").read_text()
    snippets = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    assert snippets
    missing = [line for text in snippets for line in text.splitlines() if line.strip() and line.strip() not in examples]
    assert not missing
