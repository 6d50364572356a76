"""The rollout side with scripted episodes: ``python lamp_rollouts.py URL TOKEN_FILE``; ends with the run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from bepa_torchrl.scale.rollouts.remote.gateway import RolloutGateway
from bepa_torchrl.scale.rollouts.remote.plans import decode_plan
from bepa_torchrl.scale.rollouts.remote.rollout_side import play_in_threads
from bepa_torchrl.scale.wire.access import Access, read_token
from bepa_torchrl.testing import ScriptedPolicy, SeedKey, lamp_vector


class Learner(ScriptedPolicy):
    """A scripted policy without weights that a trainer can publish."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(())


def wins(key: SeedKey) -> bool:
    """About half of the episodes, determined by the seed key."""
    return hash(key) % 2 == 0


def play(access: Access, *, desktops: int = 3, wait: float = 60.0) -> None:
    """Plays a run until it ends."""
    gateway = RolloutGateway(access, wait=wait, note=print)
    try:
        plan = decode_plan(gateway.run()["plan"])
        play_in_threads(
            gateway,
            plan,
            sampler=Learner(wins),
            make_vector=lambda: lamp_vector(1),
            desktops=desktops,
            max_rows=8,
            note=print,
        )
    finally:
        gateway.close()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    play(Access(sys.argv[1], read_token(Path(sys.argv[2]))))
