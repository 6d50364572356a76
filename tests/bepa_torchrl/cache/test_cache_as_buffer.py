"""The methods that TaskTraceCache inherits from ReplayBuffer cannot corrupt it."""

import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from cache_traces import assert_same_rows, make_trace
from torchrl.data import LazyStackStorage, RoundRobinWriter
from torchrl.envs.transforms import Transform

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys


def filled(**options):
    cache = TaskTraceCache(**options)
    cache.put("a", make_trace("a", 2, mark=1))
    cache.put("b", make_trace("b", 3, mark=2))
    return cache


def mark_of(trace):
    return int(trace[0][keys.GROUP_ID])


def test_a_slot_takes_another_success_of_its_task_only():
    cache = filled()
    with pytest.raises(ValueError, match="slot 0 holds a trace of task 'a'; got one of 'b'; use put"):
        cache[0] = make_trace("b", mark=5)
    with pytest.raises(ValueError, match="only successes"):
        cache[0] = make_trace("a", mark=5, ret=0.0)
    with pytest.raises(IndexError, match="slot 7 is not in the cache, which has 2 traces"):
        cache[7] = make_trace("a")
    wrong = (slice(None), True, 0.0, torch.tensor(0.0), torch.tensor(False), torch.tensor([0, 1]), np.bool_(False))
    for index in wrong:
        with pytest.raises(TypeError, match="requires an integer slot"):
            cache[index] = make_trace("a")
    assert (mark_of(cache.get_trace("a")), mark_of(cache.get_trace("b"))) == (1, 2)
    cache[0] = make_trace("a", 4, mark=5, version=7)
    assert_same_rows(cache.get_trace("a"), make_trace("a", 4, mark=5, version=7))
    assert (cache.metadata("a").steps, cache.metadata("a").policy_version) == (4, 7)
    for version, index in enumerate((np.int64(0), torch.tensor(0), torch.tensor([0]))):
        cache[index] = make_trace("a", version=version)
        assert cache.metadata("a").policy_version == version


def test_a_slot_that_is_written_has_its_tasks_newest_trace():
    cache = TaskTraceCache(traces_per_task=2, max_tasks=2)
    for mark in (1, 2):
        cache.put("a", make_trace("a", mark=mark))
    cache.put("b", make_trace("b", mark=9))
    cache[0] = make_trace("a", mark=3)
    cache.put("c", make_trace("c", mark=7))  # the cache is full: b was used before a
    assert sorted(cache.task_ids()) == ["a", "c"]
    cache.put("a", make_trace("a", mark=4))  # in the place of 2, the oldest
    serials = [metadata.serial for metadata in cache.all_metadata("a")]
    assert serials == sorted(serials)
    assert mark_of(cache.get_trace("a")) in (3, 4)
    assert {mark_of(cache[slot]) for slot in range(3)} == {3, 4, 7}


def test_negative_slots_are_written_as_they_are_read():
    cache = filled()
    assert (mark_of(cache[-1]), mark_of(cache[-2])) == (2, 1)
    cache[-1], cache[torch.tensor(-2)] = make_trace("b", mark=6), make_trace("a", mark=5)
    assert (mark_of(cache.get_trace("a")), mark_of(cache.get_trace("b"))) == (5, 6)
    assert (mark_of(cache[-1]), mark_of(cache[1])) == (6, 6)
    with pytest.raises(ValueError, match="slot 1 holds a trace of task 'b'; got one of 'a'"):
        cache[-1] = make_trace("a")
    for index in (-3, 2):
        with pytest.raises(IndexError, match=f"slot {index} is not in the cache, which has 2 traces"):
            cache[index] = make_trace("a")
    with pytest.raises(IndexError, match="slot -1 is not in the cache, which has 0 traces"):
        TaskTraceCache()[-1] = make_trace("a")


def test_index_and_storage_stay_together():
    cache = filled()
    with pytest.raises(TypeError, match=r"keeps its storage.*make a new TaskTraceCache"):
        cache.set_storage(LazyStackStorage(3))
    with pytest.raises(TypeError, match="keeps its writer"):
        cache.set_writer(RoundRobinWriter())
    cache.put("a", make_trace("a", mark=3))
    assert mark_of(cache.get_trace("a")) == 3


def test_what_is_indexed_is_a_copy():
    cache = filled()
    cache[0][0][keys.RESPONSE_TOKENS].fill_(55)
    cache[:].unbind(0)[1][0][keys.RESPONSE_TOKENS].fill_(55)
    assert_same_rows(cache.get_trace("a"), make_trace("a", 2, mark=1))
    assert_same_rows(cache.get_trace("b"), make_trace("b", 3, mark=2))


def test_extend_names_slots_that_are_valid_afterwards():
    """One task fits: b evicts a, a evicts b; of the five only the last remains, in slot 0."""
    cache = TaskTraceCache(max_tasks=1)
    slots = cache.extend([make_trace(task, mark=i) for i, task in enumerate("abbab")])
    assert slots.tolist() == [-1, -1, -1, -1, 0]
    assert mark_of(cache[0]) == 4
    two = TaskTraceCache(max_tasks=2)
    slots = two.extend([make_trace(task, mark=i) for i, task in enumerate("abca")])
    assert [mark_of(two[int(slot)]) for slot in slots if slot >= 0] == [2, 3]
    assert slots.tolist()[:2] == [-1, -1]


def test_extend_puts_all_or_none():
    cache = filled()
    with pytest.raises(ValueError, match="only successes"):
        cache.extend([make_trace("a", mark=8), make_trace("c", ret=0.0)])
    assert mark_of(cache.get_trace("a")) == 1


def test_batch_size_prefetch_and_iteration_are_those_of_any_buffer():
    with pytest.raises(RuntimeError, match="batch_size not specified"):
        filled().sample()
    cache = filled(batch_size=4, prefetch=2)
    assert cache.sample().batch_size[0] == 4
    assert [batch.batch_size[0] for _, batch in zip(range(3), cache, strict=False)] == [4, 4, 4]
    assert {row[keys.TASK_ID] for trace in cache.sample().unbind(0) for row in trace.unbind(0)} <= {"a", "b"}


def test_what_a_cache_cannot_do_is_refused():
    """Hooks would not be called; ``set_`` and the like failed on a list; a shared cache was a copy."""
    cache = filled()
    for register in (cache.register_save_hook, cache.register_load_hook):
        with pytest.raises(TypeError, match=r"calls no hook in (dumps|loads).*; change traces before put"):
            register(print)
    for write in (
        lambda: cache.set_(keys.RETURN, torch.zeros(1)),
        lambda: cache.set_at_(keys.RETURN, torch.zeros(1), 0),
        lambda: cache.update_({keys.RETURN: torch.zeros(1)}),
        lambda: cache.update_({}, clone=True, keys_to_update=[keys.RETURN]),
    ):
        with pytest.raises(TypeError, match=r"one by one, by cache\[i\] = trace, put or extend; got (set_|update_)"):
            write()
    for write in (lambda: cache.write_all([make_trace("a")]), lambda: cache.__setitem__(keys.RETURN, torch.zeros(1))):
        with pytest.raises(TypeError, match=r"requires an integer slot, got .*; use put"):
            write()
    with pytest.raises(TypeError, match=r"each process has a copy; keep it in one process, or send the others its"):
        cache.share()
    assert cache.share(False) is cache
    assert (mark_of(cache.get_trace("a")), mark_of(cache.get_trace("b"))) == (1, 2)


def test_batches_that_were_sampled_ahead_are_not_those_of_a_loaded_cache(tmp_path):
    other = TaskTraceCache()
    other.put("c", make_trace("c", mark=3))
    other.dumps(tmp_path / "other")
    for load in (
        lambda cache: cache.load_state_dict(other.state_dict()),
        lambda cache: cache.loads(tmp_path / "other"),
    ):
        cache = filled(batch_size=2, prefetch=3)
        cache.sample()
        load(cache)
        assert {mark_of(trace) for _ in range(4) for trace in cache.sample().unbind(0)} == {3}


@pytest.mark.parametrize(
    ("remove", "left"), [(lambda cache: cache.empty(), {3}), (lambda cache: cache.discard("a"), {2, 3})]
)
def test_batches_that_were_sampled_ahead_have_no_removed_trace(remove, left):
    cache = filled(batch_size=16, prefetch=3)
    cache.sample()
    remove(cache)
    cache.put("c", make_trace("c", mark=3))
    assert {mark_of(trace) for _ in range(4) for trace in cache.sample().unbind(0)} == left


class Marks(Transform):
    """Writes an entry on the way in and on the way out; fails on anything but a tensordict."""

    def _inv_call(self, tensordict):
        return tensordict.clone().set("entered", torch.ones(tensordict.batch_size))

    def forward(self, tensordict):
        for trace in tensordict.unbind(0) if tensordict.batch_dims == 2 else [tensordict]:
            trace.set("left", torch.zeros(trace.batch_size))
        return tensordict


def test_appended_transforms_get_tensordicts():
    cache = TaskTraceCache()
    cache.append_transform(Marks())
    cache.extend([make_trace("a", 2)])
    cache.add(make_trace("b", 3))
    cache[0] = make_trace("a", 1)
    sampled = cache.sample(5)
    assert all("left" in row and "entered" in row for trace in sampled.unbind(0) for row in trace.unbind(0))
    assert "left" in cache[0][0]
    assert "left" not in cache.get_trace("a")[0]


def tasks_of(cache):
    return cache.task_ids(), mark_of(cache.get_trace("b"))


@pytest.mark.slow
def test_spawned_workers_get_a_copy():
    cache = filled()
    assert tasks_of(pickle.loads(pickle.dumps(cache))) == (["a", "b"], 2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply_async(tasks_of, (cache,)).get(timeout=300) == (["a", "b"], 2)


def test_arpos_rule_takes_every_success():
    """Five successes of one group are five entries, in slot order; the oldest of more than eight leave."""
    cache = TaskTraceCache(traces_per_task=8, rule="all")
    cache.refresh("a", [make_trace("a", mark=i) for i in range(5)])
    assert len(cache.all_metadata("a")) == 5
    cache.refresh("a", [make_trace("a", mark=i) for i in range(5, 10)])
    assert sorted(mark_of(trace) for trace in cache[:].unbind(0)) == list(range(2, 10))
    assert cache.stats()["refreshes"] == 2
