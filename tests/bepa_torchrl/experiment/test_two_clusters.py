"""Two Ray clusters, for training and for rollouts: whatever happens between them, every group is trained once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from async_runs import ALGO, ASYNC, rollout_side, timeless, work
from compared_runs import trained_episodes
from cut_relay import CutRelay
from listening_ports import free_ports
from polling import until
from ray_heads import ray_head

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("default"),
]
ITERATIONS = 4


@pytest.fixture(scope="module")
def clusters() -> Iterator[tuple[str, str]]:
    """The addresses of the training cluster and of the rollout cluster."""
    with ray_head(range(21000, 21500)) as training, ray_head(range(21500, 22000)) as rollouts:
        yield training, rollouts


def iterations_of(folder: Path) -> int:
    path = folder / "iterations.jsonl"
    return path.read_text().count('"phase":"rl"') if path.exists() else 0


def test_groups_are_trained_once_though_the_connection_is_cut_and_the_rollout_side_is_killed(
    folder: Path, overrides: tuple[str, ...], clusters: tuple[str, str], tmp_path: Path
) -> None:
    training, rollouts = clusters
    settings = (*overrides, ALGO, f"train.iterations={ITERATIONS}", "record.every=1", "record.images=false")
    straight = work(folder, "sync", *settings, "eval.every=0")
    token = tmp_path / "token"
    token.write_text("a token of this test")
    (port,) = free_ports(1)
    relay = CutRelay(("127.0.0.1", port))
    places = (f"cluster.address={rollouts}", "cluster.workers=1", "env.desktops=4")
    run = folder / "two"

    with ExitStack() as stack:
        stack.callback(relay.close)
        first = stack.enter_context(rollout_side(relay.address[1], token, tmp_path / "first", *places))

        def disturb() -> None:
            until(lambda: iterations_of(run) >= 1, "no iteration", 1200.0)
            relay.cut()
            until(lambda: iterations_of(run) >= 2, "no second iteration", 1200.0)
            first.send_signal(signal.SIGKILL)
            stack.enter_context(rollout_side(relay.address[1], token, tmp_path / "second", *places))

        threading.Thread(target=disturb, daemon=True).start()
        served = (f"cluster.listen=127.0.0.1:{port}", f"cluster.token_file={token}", f"cluster.address={training}")
        found = work(folder, "two", *settings, *ASYNC, *served)
        until(lambda: "\nthe training has ended\n" in (tmp_path / "second").read_text(), "the end was not told")

    assert relay.cuts >= 1
    assert "weights of version" in (tmp_path / "second").read_text()
    for one, other in zip(straight, found, strict=True):
        assert timeless(other) == pytest.approx(timeless(one), abs=1e-4)
        assert other["collect/staleness_max"] == 0.0
    assert trained_episodes(run) == trained_episodes(folder / "sync")
    assert set(trained_episodes(run).values()) == {1}
    assert len({group for _, group, _ in trained_episodes(run)}) == 2 * ITERATIONS
