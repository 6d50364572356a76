"""Where an injected trace is from stays with it: self-rollout, cache, checkpoint, record, manifest."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys as K
from bepa_torchrl.data.provenance import Provenance, mark, provenance_of
from bepa_torchrl.data.seeding import Stream, desktop_seed, episode_key
from bepa_torchrl.experiment.run_record import RunRecord, read_lines
from bepa_torchrl.experts import Manifest, load_trace, record_expert, save_trace, self_roll
from bepa_torchrl.experts.plan import plan_hash
from bepa_torchrl.experts.sources import read_source
from bepa_torchrl.rollout.episodes import EpisodeJob, run_episodes
from bepa_torchrl.rollout.group_collector import GroupRolloutCollector
from bepa_torchrl.rollout.trace_replacement import TraceReplacement
from bepa_torchrl.testing import LampEnv, ScriptedPolicy, lamp_task, lamp_vector
from osworld_gym.desktops.sim import SimDesktop
from osworld_gym.tasks.suites.sim.suite import sim_suite

PLAN = Provenance("agent_s2", "agent_s2:/logs/x", plan_hash("Press it."), 2)


def seeded(provenance: Provenance) -> TaskTraceCache:
    """A cache with one success of the scripted policy for task 0, which stands for a self-rollout."""
    winner = ScriptedPolicy(lambda _: True)
    cache = TaskTraceCache()
    with lamp_vector(1) as vector:
        (result,) = run_episodes(winner, vector, [EpisodeJob(lamp_task(0), (0, 0, 0, 0), 3)])
    assert result.rows is not None
    cache.put("lamp-0", mark(result.rows, provenance))
    return cache


def test_a_plans_hash_by_hand() -> None:
    assert plan_hash("Press it.") == hashlib.sha256(b"Press it.").hexdigest()[:16]


def test_it_survives_the_cache_its_state_and_its_folder(tmp_path: Path) -> None:
    cache = seeded(PLAN)
    text = cache.metadata("lamp-0").provenance
    assert Provenance(**json.loads(text)) == PLAN
    cache.dumps(tmp_path / "cache")
    loaded, restored = TaskTraceCache(), TaskTraceCache()
    loaded.loads(tmp_path / "cache")
    restored.load_state_dict(cache.state_dict())
    for each in (loaded, restored):
        assert each.metadata("lamp-0").provenance == text
        assert [provenance_of(row) for row in each.get_trace("lamp-0").unbind(0)] == [PLAN] * each.metadata(
            "lamp-0"
        ).steps


def test_a_cache_of_an_earlier_version_loads() -> None:
    state = seeded(PLAN).state_dict()
    for metadata in state["index"]["metadata"]:
        del metadata["provenance"]
    state["traces"] = [[[entry for entry in row if entry[0] != (K.PROVENANCE,)] for row in t] for t in state["traces"]]
    cache = TaskTraceCache()
    cache.load_state_dict(state)
    assert cache.metadata("lamp-0").provenance == ""
    assert provenance_of(cache.get_trace("lamp-0")[0]) is None


def test_every_injection_is_recorded_with_its_source(tmp_path: Path) -> None:
    """All rollouts fail in both iterations, of which only the first is recorded whole."""
    replacement = TraceReplacement(seeded(PLAN), refresh=False)
    tasks = [lamp_task(0), lamp_task(1)]
    loser = ScriptedPolicy(lambda _: False)
    env = LampEnv(lamp_vector(2))
    collector = GroupRolloutCollector(env, loser, tasks, groups=2, group_size=2, postproc=replacement)
    record = RunRecord(tmp_path, images=False)
    record.begin("seed: 1\n")
    for iteration, batch in zip((1, 2), collector, strict=False):
        assert collector.last is not None
        record.episodes(iteration, batch, collector.last.results, whole=iteration == 1)
    lines = read_lines(tmp_path / "episodes.jsonl")
    injected = [line for line in lines if line["off_policy"]]
    assert [(line["iteration"], line["task_id"]) for line in injected] == [(1, "lamp-0"), (2, "lamp-0")]
    assert [Provenance(**line["provenance"]) for line in injected] == [PLAN, PLAN]
    assert [line["policy_version"] for line in injected] == [0, 0]
    assert {line["provenance"] for line in lines if not line["off_policy"]} == {None}
    assert [line["iteration"] for line in lines] == [1] * 5 + [2] * 5
    assert {line["id"]: line["whole"] for line in lines if line["iteration"] == 2} == {
        "2-0": False,
        "2-1": False,
        "3-0": True,
        "3-0-injected": True,
        "3-1": False,
    }
    collector.shutdown()


def test_a_self_rollout_names_expert_origin_plan_and_attempt(tmp_path: Path) -> None:
    task = sim_suite().split("train")[0]
    with SimDesktop() as desktop:
        trace = record_expert(desktop, task, 1, name="someone")
    save_trace(trace, tmp_path / "logs")
    (read,) = read_source(str(tmp_path / "logs"), [task])
    assert (trace.origin, read.origin) == ("", str(tmp_path / "logs"))
    assert load_trace(save_trace(read, tmp_path / "again")).origin == str(tmp_path / "logs")
    lamp = replace(read, task_id="lamp-0", instruction=lamp_task(0).instruction)

    class Second(ScriptedPolicy):
        """Solves the task at its second attempt."""

        def __init__(self) -> None:
            super().__init__(lambda key: key[3] == 1, max_prompt_bytes=10_000)

    with lamp_vector(1) as vector:
        rolled = self_roll(Second(), vector, [lamp], [lamp_task(0)], tries=3, plan=lambda _: "Press it.")
    entry = rolled.entries["lamp-0"]
    found = provenance_of(entry.rows[0])
    seed = desktop_seed(episode_key(0, Stream.SELF_ROLLOUT, 0, 0, 1))
    plan = plan_hash("Press it.")
    assert found == Provenance("someone", str(tmp_path / "logs"), plan, 1, trace=lamp.content_hash, env_seed=seed)


def test_the_manifest_keeps_it_and_reads_one_without(tmp_path: Path) -> None:
    hashes = {"a": "0"}
    provenance = {"self_rolled": {"a": PLAN.to_json()}, "converted": {}}
    Manifest(hashes, ("a",), (), self_rolled=("a",), provenance=provenance).save(tmp_path / "manifest.json")
    assert Manifest.load(tmp_path / "manifest.json").provenance == provenance
    data = json.loads((tmp_path / "manifest.json").read_text())
    del data["provenance"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert Manifest.load(tmp_path / "old.json").provenance == {}
