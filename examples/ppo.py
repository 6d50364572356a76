"""PPO on the simulated desktop with stock TorchRL: ``python examples/ppo.py [batches] [seed]``, minutes on one core.

No language model: a small network gets the screen's 8 × 8 tiles and selects one to click, or to finish. Two transforms
connect it to :class:`OSWorldEnv`: one turns the selected tile into the response text, the other turns the screenshot
into tiles of strokes (where a pixel differs from its left neighbour), so that colour themes do not matter. The task is
always the same (open "sound", perhaps another tab, close pop-ups, choose a device); layout, colours and pop-ups vary
between episodes. The reward is 1 at the end of a successful episode, otherwise 0.
"""

from __future__ import annotations

import argparse

import torch
from tensordict import NonTensorStack, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.data import Bounded, Categorical, Composite
from torchrl.envs import Compose, ExcludeTransform, ObservationTransform, Transform, TransformedEnv
from torchrl.modules import ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks import Suite, load_suite
from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.types import Action
from osworld_gym.uitars import format_response

TILE, SIDE = 16, 8  # pixels of a tile, tiles of a side of the screen
TILES = SIDE * SIDE
DONE = TILES  # the action after the last tile
TASK, MAX_STEPS, DESKTOPS = "sim-choose-00", 8, 64
BATCH, EPOCHS, ROWS = 2048, 3, 512  # steps of a batch, passes over it, rows of an update
LEARNED = ("strokes", "tile", "tile_log_prob", "advantage", "value_target", "state_value")


class TileClicks(Transform):
    """Converts the policy's ``tile``, int64 ``[N]`` in 0..64, to the environment's ``action`` text."""

    def __init__(self) -> None:
        super().__init__(in_keys_inv=["action"], out_keys_inv=["tile"])

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.set("action", NonTensorStack(*map(response_text, tensordict["tile"].tolist())))

    def transform_input_spec(self, input_spec: Composite) -> Composite:
        n = input_spec["full_action_spec"].shape
        input_spec["full_action_spec"] = Composite(tile=Categorical(TILES + 1, shape=n, dtype=torch.int64), shape=n)
        return input_spec


def response_text(tile: int) -> str:
    """A response that clicks the middle of the tile, or ``finished``."""
    if tile == DONE:
        return format_response("done", [Action("finished", content="")])
    row, column = divmod(tile, SIDE)
    return format_response("click", [Action("click", start=((column + 0.5) * TILE, (row + 0.5) * TILE))])


class Strokes(ObservationTransform):
    """``screenshot`` uint8 ``[N, 3, 128, 128]`` → ``strokes`` uint8 ``[N, 64, 256]``, 0 or 1, one row per tile."""

    def __init__(self) -> None:
        super().__init__(in_keys=["screenshot"], out_keys=["strokes"])

    def _apply_transform(self, screenshot: Tensor) -> Tensor:
        green = screenshot[..., 1, :, :]
        strokes = (green != green.roll(1, -1)).to(torch.uint8)
        return strokes.unfold(-2, TILE, TILE).unfold(-2, TILE, TILE).flatten(-2).flatten(-3, -2)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        del tensordict  # from before the reset
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        shape = (*observation_spec.shape, TILES, TILE * TILE)
        observation_spec["strokes"] = Bounded(0, 1, shape=shape, dtype=torch.uint8)
        return observation_spec


class Looker(nn.Module):
    """Maps ``strokes`` ``[..., 64, 256]`` to logits ``[..., 65]`` (weights shared by tiles) or a value ``[..., 1]``."""

    def __init__(self, value: bool, width: int = 32) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.Linear(TILE * TILE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.whole = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
        self.tile = None if value else nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, strokes: Tensor) -> Tensor:
        seen = self.look(strokes.float())  # [..., 64, width]
        anywhere = seen.amax(-2)
        out = self.whole(anywhere)
        if self.tile is None:
            return out
        each = torch.cat([seen, anywhere.unsqueeze(-2).expand_as(seen)], -1)
        return torch.cat([self.tile(each).squeeze(-1), out], -1)


def make_env(desktops: int, seed: int) -> TransformedEnv:
    """An environment with one task, the observation ``strokes`` and the action ``tile``."""
    suite = Suite("one", (load_suite("sim").task(TASK),), {})
    env = OSWorldEnv("sim", desktops, suite=suite, options=EpisodeOptions(max_steps=MAX_STEPS), seed=seed)
    unread = ExcludeTransform("screenshot", "instruction", "task_id", "stop_reason")
    return TransformedEnv(env, Compose(TileClicks(), Strokes(), unread))


def main(batches: int = 56, seed: int = 0, desktops: int = DESKTOPS, batch_steps: int = BATCH) -> list[float]:
    """Trains; returns the share of successful episodes in each batch."""
    torch.manual_seed(seed)
    actor = ProbabilisticActor(
        TensorDictModule(Looker(value=False), ["strokes"], ["logits"]),
        in_keys=["logits"],
        out_keys=["tile"],
        distribution_class=torch.distributions.Categorical,
        return_log_prob=True,
    )
    critic = ValueOperator(Looker(value=True), in_keys=["strokes"])
    # advantages are not normalised: in the first batches, which contain no success, that would amplify noise
    loss = ClipPPOLoss(actor, critic, entropy_coeff=0.002)
    loss.set_keys(action="tile", sample_log_prob="tile_log_prob")
    advantage = GAE(gamma=1.0, lmbda=0.95, value_network=critic, shifted=True)
    optimizer = torch.optim.Adam(loss.parameters(), 1e-3)
    collector = Collector(
        make_env(desktops, seed),
        actor,
        frames_per_batch=batch_steps,
        total_frames=batches * batch_steps,
        auto_register_policy_transforms=True,
    )
    shares = []
    for batch in collector:  # [desktops, steps]
        after = batch["next"]
        ends = after["done"] & ~after["env_error"]  # without failed desktops
        shares.append(float((after["success"] & ends).sum() / ends.sum().clamp(min=1)))
        print(f"{len(shares) * batch_steps:7d} steps: {shares[-1]:6.1%} of {int(ends.sum())} episodes", flush=True)
        with torch.no_grad():
            advantage(batch)
        rows = batch.select(*LEARNED).reshape(-1)
        for _ in range(EPOCHS):
            for part in torch.randperm(rows.numel()).split(ROWS):
                losses = loss(rows[part])
                optimizer.zero_grad()
                (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5, error_if_nonfinite=True)
                optimizer.step()
    collector.shutdown()
    return shares


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batches", type=int, nargs="?", default=56)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    main(**vars(parser.parse_args()))
