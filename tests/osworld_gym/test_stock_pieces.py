"""Stock storages, transforms and collectors with OSWorldEnv: what docs/torchrl.md says of each, as it is now."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import torch
from gymnasium.vector import AutoresetMode
from tensordict import NonTensorData, NonTensorStack, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule
from torchrl.collectors import AsyncBatchedCollector, Collector, MultiSyncCollector
from torchrl.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    SamplerWithoutReplacement,
)
from torchrl.data.replay_buffers.storages import CompressedListStorage
from torchrl.envs import (
    AsyncEnvPool,
    CatFrames,
    Compose,
    FrameSkipTransform,
    GymWrapper,
    InitTracker,
    PermuteTransform,
    RewardClipping,
    RewardScaling,
    RewardSum,
    StepCounter,
    ToTensorImage,
    TransformedEnv,
    UnsqueezeTransform,
    check_env_specs,
    default_info_dict_reader,
)

from osworld_gym.episode import EpisodeOptions
from osworld_gym.tasks.suite import Suite
from osworld_gym.testing import FINISHED, ScriptedDesktop, count_task
from osworld_gym.torchrl_env import OSWorldEnv
from osworld_gym.types import Screenshot

STORAGES = [LazyStackStorage, ListStorage, CompressedListStorage, LazyTensorStorage, LazyMemmapStorage]
TEXTS = ("instruction", "task_id", "stop_reason", "action", "screenshot_png")


def make(observation: str = "array", n: int = 2, **options: Any) -> OSWorldEnv:
    return OSWorldEnv("sim", n, observation=observation, **options)  # type: ignore[arg-type]


def wait(td: TensorDictBase) -> TensorDictBase:
    """A policy whose response does nothing."""
    return td.set("action", NonTensorData("Action: wait()", batch_size=td.batch_size))


def think(td: TensorDictBase) -> TensorDictBase:
    """A policy whose responses all differ."""
    return td.set("action", NonTensorStack(*[f"Thought: {next(NUMBERS)}\nAction: wait()" for _ in range(len(td))]))


NUMBERS = count()


@pytest.fixture(scope="module")
def rows() -> TensorDictBase:
    """Six steps of two tasks, ``[6]``."""
    env = make("png", options=EpisodeOptions(max_steps=3))
    found = env.rollout(3, think).reshape(-1)
    env.close()
    assert [len({*found[key]}) for key in ("instruction", "action")] == [2, 6]
    return found


def texts(rows: TensorDictBase) -> dict[Any, list[Any]]:
    keys = [*TEXTS, *(("next", key) for key in TEXTS if key != "action")]
    return {key: list(rows[key]) for key in keys}


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_every_storage_returns_the_texts_that_were_stored(
    storage: type, one_by_one: bool, rows: TensorDictBase
) -> None:
    """Also after overwriting, and when rows have entries that the storage has not."""
    sampler = SamplerWithoutReplacement(shuffle=False)
    buffer: Any = ReplayBuffer(storage=storage(6), sampler=sampler, batch_size=6, collate_fn=torch.stack)
    for given in (rows, rows[torch.arange(5, -1, -1)]):
        for row in given.unbind(0) if one_by_one else ():
            buffer.add(row)
        if not one_by_one:
            buffer.extend(given)
        for read in (buffer[:], buffer.sample()):
            found = torch.stack(read) if isinstance(read, list) else read
            assert texts(found) == texts(given)
            assert found["step_count"].equal(given["step_count"])
            assert all(Screenshot(png=png).pixels.shape == (128, 128, 3) for png in found["screenshot_png"])


def test_memmap_storages_still_leave_out_unknown_entries(rows: TensorDictBase) -> None:
    """TorchRL's reason for the list of keys, also in nested rows."""
    buffer = ReplayBuffer(storage=LazyMemmapStorage(12), batch_size=6)
    buffer.extend(rows)
    buffer.extend(rows.copy().set("more", torch.zeros(6)).set(("next", "more"), NonTensorStack(*"abcdef")))
    assert "more" not in buffer[:].keys(True)
    assert texts(buffer[6:12]) == texts(rows)


@pytest.mark.slow
def test_torchrl_still_drops_text_from_memmap_storages() -> None:
    """In a process without osworld_gym. If this fails, TorchRL is corrected: see the message."""
    code = """
from tensordict import NonTensorStack, TensorDict
from torchrl.data import LazyMemmapStorage, ReplayBuffer
buffer = ReplayBuffer(storage=LazyMemmapStorage(3), batch_size=3)
buffer.extend(TensorDict({"text": NonTensorStack("a", "b", "c")}, [3]))
print("texts:", *buffer[:]["text"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert "texts: a a a" in done.stdout, (
        "TorchRL's memory-mapped storage now keeps text: delete osworld_gym/torchrl_env/memmap_text.py, its call and "
        "its tests, and the sentence about it in docs/torchrl.md"
    )


@pytest.mark.parametrize("storage", [LazyStackStorage, ListStorage, LazyTensorStorage, LazyMemmapStorage])
def test_whole_rollouts_are_stored_but_in_memory_mapped_storages(storage: type) -> None:
    """Elements ``[T]`` in the place of rows, as of ``buffer.extend(env.rollout(...))``."""
    env = make("png")
    given = [env.rollout(2, think) for _ in range(2)]
    buffer: Any = ReplayBuffer(storage=storage(4), collate_fn=torch.stack)
    if storage is LazyMemmapStorage:
        with pytest.raises(RuntimeError, match="update a leaf in-place with a shared tensordict"):
            buffer.extend(given[0])
        return
    for rollouts in given:
        buffer.extend(rollouts)
    found = buffer[:]
    found = torch.stack(found) if isinstance(found, list) else found
    assert texts(found.reshape(-1)) == texts(torch.cat(given).reshape(-1))


def by_state_dict(saved: ReplayBuffer, loaded: ReplayBuffer, _: Path) -> None:
    loaded.load_state_dict(saved.state_dict())


def by_folder(saved: ReplayBuffer, loaded: ReplayBuffer, path: Path) -> None:
    saved.dumps(path)
    loaded.loads(path)


LOSSES = [
    *[(storage, by_state_dict) for storage in STORAGES if storage is not CompressedListStorage],
    *[(storage, by_folder) for storage in (LazyTensorStorage, LazyMemmapStorage)],
]


@pytest.mark.filterwarnings("ignore")  # some storages warn that loading is unusual, none that text is lost
@pytest.mark.parametrize(("storage", "copy"), LOSSES)
def test_the_storages_own_saving_loses_text(storage: type, copy: Any, rows: TensorDictBase, tmp_path: Path) -> None:
    """Present behaviour of TorchRL 0.14.1, named in docs/torchrl.md; if one is corrected, say so there."""
    saved, loaded = (ReplayBuffer(storage=storage(6), batch_size=6, collate_fn=torch.stack) for _ in range(2))
    saved.extend(rows)
    copy(saved, loaded, tmp_path / "buffer")
    found: Any = loaded[:]
    found = torch.stack(found) if isinstance(found, list) else found
    assert not (isinstance(found.get("action"), NonTensorStack) and list(found["action"]) == list(rows["action"]))


@pytest.mark.parametrize("storage", [LazyStackStorage, LazyTensorStorage, LazyMemmapStorage])
def test_rows_are_saved_by_tensordicts_memmap(storage: type, rows: TensorDictBase, tmp_path: Path) -> None:
    buffer = ReplayBuffer(storage=storage(6), batch_size=6)
    buffer.extend(rows)
    buffer[:].memmap(tmp_path / "rows")
    assert texts(TensorDict.load_memmap(tmp_path / "rows", allow_pickle=True)) == texts(rows)


def rollout(transform: Any, steps: int = 3, **options: Any) -> TensorDictBase:
    """``[2, steps]``."""
    env = TransformedEnv(make(**options), transform)
    out: TensorDictBase = env.rollout(steps, wait, break_when_any_done=False)
    env.close()
    return out


def test_to_tensor_image_takes_the_screenshot_for_hwc_unless_it_is_told() -> None:
    keys = {"in_keys": ["screenshot"]}
    assert rollout(ToTensorImage(**keys))["screenshot"].shape == (2, 3, 128, 3, 128)  # W and C exchanged: wrong
    right = rollout(ToTensorImage(**keys, shape_tolerant=True))
    permuted = rollout(Compose(PermuteTransform((-2, -1, -3), **keys), ToTensorImage(**keys)))
    pixels = rollout(None)["screenshot"] / 255
    for found in (right, permuted):
        assert found["screenshot"].dtype == torch.float32
        torch.testing.assert_close(found["screenshot"], pixels)


def test_step_counter_needs_a_key_of_its_own_and_ends_episodes_unverified() -> None:
    """With its default key it replaces the environment's ``step_count``."""
    own = rollout(StepCounter(step_count_key="counted"), steps=4)
    assert own["step_count"].equal(own["counted"])
    cut = rollout(StepCounter(max_steps=2), steps=4)
    assert cut["next", "truncated"][0, :, 0].tolist() == [False, True, False, True]
    assert set(cut[0]["next", "stop_reason"]) == {""}
    limited = rollout(None, steps=4, options=EpisodeOptions(max_steps=2))
    assert limited["next", "truncated"][0, :, 0].tolist() == [False, True, False, True]
    assert list(limited[0]["next", "stop_reason"]) == ["", "max_steps"] * 2


def test_transforms_that_work_as_they_are() -> None:
    assert rollout(CatFrames(N=2, dim=-3, in_keys=["screenshot"]))["screenshot"].shape == (2, 3, 6, 128, 128)
    stacked = Compose(UnsqueezeTransform(-4, in_keys=["screenshot"]), CatFrames(N=2, dim=-4, in_keys=["screenshot"]))
    assert rollout(stacked)["screenshot"].shape == (2, 3, 2, 3, 128, 128)
    assert rollout(InitTracker())["is_init"][..., 0].tolist() == [[True, False, False]] * 2
    assert rollout(RewardSum())["next", "episode_reward"].tolist() == [[[0.0]] * 3] * 2
    assert rollout(FrameSkipTransform(2))["step_count"][0, :, 0].tolist() == [0, 2, 4]  # performs each response twice


def test_rewards_can_be_scaled_and_clipped() -> None:
    solved = OSWorldEnv(ScriptedDesktop, 1, suite=Suite("solved", (count_task(0),), {}))
    env = TransformedEnv(solved, Compose(RewardScaling(loc=0.0, scale=4.0), RewardClipping(-1.0, 2.0)))
    check_env_specs(env)
    step = env.step(env.reset().set("action", NonTensorStack(FINISHED)))
    assert step["next", "reward"].item() == 2.0


def test_a_collectors_own_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="'step_count' key is already present"):
        Collector(make(), wait, frames_per_batch=8, total_frames=8, max_frames_per_traj=2)


def test_cat_frames_of_png_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="repeats must be"):
        rollout(CatFrames(N=2, dim=-1, in_keys=["screenshot_png"]), observation="png")


def test_a_collector_fills_a_buffer_of_flat_rows() -> None:
    buffer = ReplayBuffer(storage=LazyMemmapStorage(16), batch_size=4)
    collector = Collector(
        lambda: make("png"), wait, frames_per_batch=8, total_frames=16, postproc=lambda batch: batch.reshape(-1)
    )
    found = []
    for batch in collector:
        buffer.extend(batch)
        found.append(batch)
    collector.shutdown()
    assert texts(buffer[:]) == texts(torch.cat(found))


def test_a_collectors_own_buffer_gets_rows_if_it_flattens_them() -> None:
    for postproc, shape in ((None, (2, 4)), (lambda batch: batch.reshape(-1), (8,))):
        buffer = ReplayBuffer(storage=LazyTensorStorage(8))
        collector = Collector(make, think, frames_per_batch=8, total_frames=8, replay_buffer=buffer, postproc=postproc)
        for _ in collector:
            pass
        collector.shutdown()
        found = buffer[:]
        assert found.shape == shape
        assert len(set(found.reshape(-1)["action"])) == 8


@pytest.mark.slow
def test_a_multi_collectors_own_buffer_takes_no_batched_environments() -> None:
    """TorchRL makes the buffer of elements of one step, and its workers write as many as a batch has."""
    buffer = ReplayBuffer(storage=LazyTensorStorage(16), shared=True)
    collector = MultiSyncCollector([make] * 2, wait, frames_per_batch=8, total_frames=16, replay_buffer=buffer)
    with pytest.raises((RuntimeError, ValueError), match=r"At least one process failed|Cannot close a process"):
        next(iter(collector))
    with suppress(RuntimeError, ValueError):  # the workers are still exiting
        collector.shutdown()


@pytest.mark.filterwarnings("ignore")  # the policies have no parameters, and one requires InitTracker
def test_a_policy_on_another_device_must_name_its_text() -> None:
    def collect(policy: Any) -> TensorDictBase:
        collector = Collector(make, policy, frames_per_batch=4, total_frames=4, policy_device="cpu")
        try:
            return next(iter(collector))
        finally:
            collector.shutdown()

    with pytest.raises(ValueError, match=r"does not have out_keys=\[.action.\]"):
        collect(wait)
    named = TensorDictModule(lambda steps: ["Action: wait()"] * len(steps), ["step_count"], ["action"])
    assert set(collect(named).reshape(-1)["action"]) == {"Action: wait()"}


def test_an_async_pool_takes_environments_of_one_desktop() -> None:
    """TorchRL reads an environment's number from each of its rows: with two rows, the first is reset for the second."""
    single = AsyncEnvPool([lambda: make(n=1)] * 3, backend="threading")
    td = single.reset()
    single.async_step_send(td.set("action", NonTensorData("Action: wait()", batch_size=td.batch_size)))
    assert single.async_step_recv(min_get=3)["next", "step_count"].flatten().tolist() == [1, 1, 1]
    with pytest.raises(RuntimeError, match="batch dimension mismatch"):
        single.rollout(2, wait)
    single.close()
    double = AsyncEnvPool([make] * 2, backend="threading")
    with suppress(RuntimeError):  # two threads at once in the first environment
        double.reset()
    assert double.envs[1]._rows[0] is None
    double.close()


def test_a_reset_of_some_rows_needs_the_others_observations() -> None:
    env = make()
    last = env.step(wait(env.reset()))["next"]
    mask = torch.tensor([[True], [False]])
    assert env.reset(last.clone().set("_reset", mask.clone()))["step_count"].tolist() == [[0], [1]]
    bare = env.reset(TensorDict({"_reset": mask.clone()}, [2]))
    assert bare["step_count"].tolist() == [[0], [0]]
    assert not bare["screenshot"][1].any()
    env.close()


def test_gym_wrapper_runs_one_desktop_without_its_info() -> None:
    def gym(**options: Any) -> GymWrapper:
        return GymWrapper(gymnasium.make("osworld_gym:OSWorld-v0", **options))

    env = gym(options=EpisodeOptions(max_steps=2))
    env.set_seed(0)
    out = env.rollout(4, wait, break_when_any_done=False)
    assert out["next", "truncated"].flatten().tolist() == [False, True, False, True]
    assert len({*out["instruction"]}) == 2
    assert "env_error" not in out["next"]
    env.set_info_dict_reader(default_info_dict_reader(["env_error"]))
    with pytest.raises(AttributeError, match="no attribute 'dtype'"):
        env.reset()
    env.close()
    modes = {AutoresetMode.NEXT_STEP: "auto-reset mode must be", AutoresetMode.SAME_STEP: "index 0 is out of bounds"}
    for mode, message in modes.items():
        several = gymnasium.make_vec(
            "osworld_gym:OSWorld-v0", 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
        )
        with pytest.raises((IndexError, RuntimeError), match=message):
            GymWrapper(several)
        several.close()


@pytest.mark.filterwarnings("ignore:AsyncBatchedCollector runs environment workers in threads")
def test_an_async_batched_collector_takes_no_rows() -> None:
    collector = AsyncBatchedCollector(
        [lambda: make(n=1)] * 2, policy=wait, frames_per_batch=4, total_frames=4, env_backend="threading"
    )
    with pytest.raises(RuntimeError, match="worker thread raised"):
        next(iter(collector))
    collector.shutdown()


@pytest.mark.slow
def test_workers_of_a_multi_collector_repeat_each_other_without_a_seed() -> None:
    def groups(seed: int | None) -> list[set[int]]:
        makers = [lambda: make("png", 1, group_size=2)] * 2
        collector = MultiSyncCollector(makers, wait, frames_per_batch=8, total_frames=8)
        if seed is not None:
            collector.set_seed(seed)
        batch = next(iter(collector))
        collector.shutdown()
        return [set(worker["group_id"].flatten().tolist()) for worker in batch]

    first, second = groups(None)
    assert first == second
    first, second = groups(0)
    assert not first & second
