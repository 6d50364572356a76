"""TaskTraceCache: keys, the update rule, capacity, several traces per task, copies, metadata, threads."""

import threading
from collections import Counter

import pytest
import torch
from cache_traces import assert_same_rows, make_trace, mark_of
from tensordict import lazy_stack
from torchrl.data import ReplayBuffer

from bepa_torchrl.cache import CacheFullError, TaskTraceCache
from bepa_torchrl.data import keys


def successes(task_id="a", n=5):
    return [make_trace(task_id, mark=i) for i in range(n)]


def test_one_trace_per_task_and_the_newest_wins():
    cache = TaskTraceCache()
    assert isinstance(cache, ReplayBuffer)
    assert cache.get_trace("a") is None
    assert cache.get_trace("a", "nothing") == "nothing"
    for task_id, mark in (("a", 1), ("b", 2), ("a", 3)):
        cache.put(task_id, make_trace(task_id, mark=mark))
    assert len(cache) == 2
    assert sorted(cache.task_ids()) == ["a", "b"]
    assert "a" in cache
    assert cache.contains("b")
    assert "c" not in cache
    assert_same_rows(cache.get_trace("a"), make_trace("a", mark=3))
    assert_same_rows(cache.get_trace("b"), make_trace("b", mark=2))


def test_traces_are_copies_both_ways():
    cache, mine = TaskTraceCache(), make_trace("a", mark=1)
    cache.put("a", mine)
    mine[0][keys.RESPONSE_TOKENS].fill_(99)
    given = cache.get_trace("a")
    given[1][keys.RESPONSE_TOKENS].fill_(98)
    given[1].set(keys.GROUP_ID, torch.tensor(77))
    given[1].set_non_tensor(keys.RESPONSE, "changed")
    assert_same_rows(cache.get_trace("a"), make_trace("a", mark=1))


def test_refresh_with_no_success_changes_nothing():
    cache = TaskTraceCache()
    assert cache.refresh("a", []) is False
    assert cache.refresh("a", [make_trace("a", mark=4)]) is True
    assert cache.refresh("a", []) is False
    assert mark_of(cache.get_trace("a")) == 4
    assert cache.stats()["refreshes"] == 1


def test_rule_shortest():
    cache = TaskTraceCache(rule="shortest")
    cache.refresh("a", [make_trace("a", 4, mark=0), make_trace("a", 2, mark=1), make_trace("a", 2, mark=2)])
    assert mark_of(cache.get_trace("a")) == 1  # the first one in case of a tie


def test_rule_highest_logprob_is_a_mean_over_tokens():
    """One step of 2 tokens at -0.1; against 3 steps (2, 3, 4 tokens) at -0.05: the longer one has the better mean."""
    cache = TaskTraceCache(rule="highest_logprob")
    cache.refresh("a", [make_trace("a", 1, mark=0, log_prob=-0.1), make_trace("a", 3, mark=3, log_prob=-0.05)])
    assert mark_of(cache.get_trace("a")) == 3
    with pytest.raises(KeyError, match=r"rule=highest_logprob requires .* in every row"):
        cache.refresh("a", [make_trace("a").exclude(keys.ROLLOUT_LOG_PROB), make_trace("a")])
    assert cache.counts("a") == (0, 1)


def picks(seed, rounds=40, task_id="a"):
    cache = TaskTraceCache(seed=seed)
    out = []
    for _ in range(rounds):
        cache.refresh(task_id, successes(task_id))
        out.append(mark_of(cache.get_trace(task_id)))
    return out


def test_rule_random_is_seeded_and_reaches_everyone():
    first = picks(0)
    assert first == picks(0)
    assert first != picks(1)
    assert first != picks(0, task_id="b")
    assert min(Counter(first)[i] for i in range(5)) >= 2


def test_rule_random_does_not_depend_on_other_tasks():
    cache = TaskTraceCache()
    out = []
    for i in range(12):
        cache.refresh(f"other-{i}", successes(f"other-{i}"))
        cache.refresh("a", successes())
        out.append(mark_of(cache.get_trace("a")))
    assert out == picks(0, rounds=12)


def test_several_traces_are_a_fifo_and_draws_follow_injections():
    cache = TaskTraceCache(traces_per_task=8, seed=5)
    for mark in range(11):
        cache.put("a", make_trace("a", mark=mark))
    cache.put("b", make_trace("b", mark=50))
    assert len(cache) == 9
    assert [one.serial for one in cache.all_metadata("a")] == list(range(3, 11))
    assert mark_of(cache.get_trace("a")) == mark_of(cache.get_trace("a"))  # reading does not change the choice
    drawn = []
    for _ in range(64):
        drawn.append(mark_of(cache.get_trace("a")))
        assert cache.note_injection("a").serial == drawn[-1]
    assert set(drawn) == set(range(3, 11))
    assert sum(one.injected for one in cache.all_metadata("a")) == 64
    assert cache.get_trace("b") is not None


def test_eviction_of_the_task_used_longest_ago():
    cache = TaskTraceCache(max_tasks=2)
    for task_id in ("a", "b"):
        cache.put(task_id, make_trace(task_id))
    cache.get_trace("a")  # now b is the older one
    cache.put("c", make_trace("c", mark=9))
    assert cache.task_ids() == ["a", "c"]
    assert cache.stats()["evictions"] == 1
    assert cache.stats()["capacity"] == 2
    assert mark_of(cache.get_trace("c")) == 9
    cache.put("a", make_trace("a", mark=2))  # a known task requires no new slot
    assert cache.stats()["evictions"] == 1
    cache.put("d", make_trace("d"))  # a was written after c
    assert cache.task_ids() == ["a", "d"]


def test_full_can_be_an_error_that_changes_nothing():
    cache = TaskTraceCache(max_tasks=1, when_full="error")
    cache.put("a", make_trace("a", mark=1))
    with pytest.raises(CacheFullError, match="raise max_tasks"):
        cache.refresh("b", [make_trace("b")])
    cache.put("a", make_trace("a", mark=2))
    assert cache.task_ids() == ["a"]
    assert mark_of(cache.get_trace("a")) == 2


def test_extend_beyond_the_capacity_puts_none():
    """Two of three tasks are in the cache; a batch of the third one and a fourth does not fit, whatever the order."""
    cache = TaskTraceCache(max_tasks=3, when_full="error")
    cache.extend([make_trace("a", mark=1), make_trace("b", mark=2)])
    for tasks in ("cad", "acd"):
        with pytest.raises(CacheFullError, match=r"holds 2 of at most 3 tasks, got traces of 2 new ones \(c, d\)"):
            cache.extend([make_trace(task, mark=9) for task in tasks])
        assert cache.task_ids() == ["a", "b"]
        assert (len(cache), mark_of(cache.get_trace("a")), cache.stats()["write_count"]) == (2, 1, 2)
        cache.get_trace("b")  # the order of use is as before
    assert cache.extend([make_trace(task, mark=9) for task in "cca"]).tolist() == [-1, 2, 0]
    assert sorted(cache.task_ids()) == ["a", "b", "c"]


def test_refresh_with_all_puts_all_or_none():
    cache = TaskTraceCache(traces_per_task=8, rule="all")
    for wrong in (make_trace("b"), make_trace("a", ret=0.0)):
        with pytest.raises(ValueError, match=r"expected a trace of task 'a'|only successes"):
            cache.refresh("a", [make_trace("a"), wrong])
    assert cache.task_ids() == []
    assert cache.stats()["refreshes"] == 0


@pytest.mark.parametrize("per_task", [1, 3])
def test_discard_keeps_everyone_elses_traces(per_task):
    cache = TaskTraceCache(traces_per_task=per_task)
    tasks = "abcde"
    for turn in range(per_task):
        for i, task_id in enumerate(tasks):
            cache.put(task_id, make_trace(task_id, mark=10 * turn + i))
    assert cache.discard("b") is True
    assert cache.discard("b") is False
    assert cache.discard("e") is True
    assert len(cache) == 3 * per_task
    for i, task_id in enumerate(tasks):
        if task_id in "be":
            assert cache.get_trace(task_id) is None
            continue
        assert {one.task_id for one in cache.all_metadata(task_id)} == {task_id}
        for _ in range(5):
            trace = cache.get_trace(task_id)
            assert trace[0][keys.TASK_ID] == task_id
            assert mark_of(trace) % 10 == i
            cache.note_injection(task_id)
    cache.put("b", make_trace("b", mark=1))
    assert mark_of(cache.get_trace("b")) == 1


def test_metadata():
    cache = TaskTraceCache()
    cache.put("z", make_trace("z"))
    cache.put("a", make_trace("a", 3, version=17, source="self_rolled"))
    got = cache.metadata("a")
    assert (got.task_id, got.source, got.policy_version, got.episode_return) == ("a", "self_rolled", 17, 1.0)
    assert (got.steps, got.serial, got.injected) == (3, 1, 0)
    cache.note_injection("a")
    assert cache.note_injection("a").injected == 2
    assert cache.metadata("a").injected == 2
    cache.put("a", make_trace("a"))
    assert cache.metadata("a").injected == 0  # another trace
    assert cache.stats()["injections"] == 2
    for ask in (cache.metadata, cache.note_injection):
        with pytest.raises(KeyError, match="no trace of task 'q'"):
            ask("q")
    assert cache.all_metadata("q") == []


def test_replay_buffer_methods():
    cache = TaskTraceCache(traces_per_task=2)
    cache.extend([make_trace("a", 1, mark=1), make_trace("b", 3, mark=2)])
    assert cache.stats()["write_count"] == 2
    sampled = cache.sample(6)
    assert sampled.batch_size[0] == 6  # the second is -1 unless all sampled traces are equally long
    assert {len(trace) for trace in sampled.unbind(0)} <= {1, 3}
    sampled[0][0][keys.RESPONSE_TOKENS].fill_(55)
    assert_same_rows(cache.get_trace("a"), make_trace("a", 1, mark=1))
    cache.empty()
    assert len(cache) == 0
    assert cache.task_ids() == []
    cache.put("a", make_trace("a", mark=7))
    assert mark_of(cache.get_trace("a")) == 7
    with pytest.raises(TypeError, match="list of traces"):
        cache.extend(make_trace("a"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"traces_per_task": 0}, "traces_per_task: expected an integer >= 1, got 0"),
        ({"traces_per_task": 1.5}, "traces_per_task: expected an integer >= 1, got 1.5"),
        ({"traces_per_task": True}, "traces_per_task: expected an integer >= 1, got True"),
        ({"max_tasks": 0}, "max_tasks: expected an integer >= 1, or None, got 0"),
        ({"max_tasks": "3"}, "max_tasks: expected an integer >= 1, or None, got '3'"),
        ({"rule": "best"}, "random, shortest, highest_logprob"),
        ({"when_full": "drop"}, "evict, error"),
        ({"seed": -1}, "seed: expected an integer >= 0, got -1"),
        ({"seed": 0.5}, "seed: expected an integer >= 0, got 0.5"),
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, or None, got 0"),
        ({"batch_size": 1.5}, "batch_size: expected an integer >= 1, or None, got 1.5"),
        ({"batch_size": 2, "prefetch": -1}, "prefetch: expected an integer >= 0, or None, got -1"),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        TaskTraceCache(**options)


def test_parts_of_an_episode_are_no_trace():
    """Injected, they would get prompts without the steps that they lack."""
    cache, trace = TaskTraceCache(), make_trace("a", steps=3)
    twice = lazy_stack([*trace.unbind(0), *trace.unbind(0)])
    for part, steps in ((trace[1:], "1, 2"), (trace[:2], "0, 1"), (trace[[1, 0, 2]], "1, 0, 2"), (twice, "0, 1, 2, 0")):
        with pytest.raises(ValueError, match=rf"whole episode in order, .* steps \[{steps}.*; pass every row of one"):
            cache.add(part)
    assert len(cache) == 0


def test_bad_traces_leave_the_cache_as_it_was():
    cache = TaskTraceCache()
    cache.put("a", make_trace("a", mark=1))
    with pytest.raises(ValueError, match="expected a trace of task 'a', got one of 'b'; put it under 'b'"):
        cache.put("a", make_trace("b"))
    with pytest.raises(ValueError, match="only successes"):
        cache.refresh("a", [make_trace("a", ret=0.0)])
    with pytest.raises(ValueError, match=r"non-empty stack of rows \[S\]"):
        cache.put("a", make_trace("a")[0])
    with pytest.raises(KeyError, match="missing: policy_version"):
        cache.put("a", make_trace("a").exclude(keys.POLICY_VERSION))
    with pytest.raises(KeyError, match="missing: task_id"):
        cache.put("a", make_trace("a").exclude(keys.TASK_ID))
    with pytest.raises(ValueError, match="only successes"):
        cache.refresh("a", [make_trace("a"), make_trace("a", ret=0.0)])  # of which the rule chooses one
    rows = list(make_trace("a").unbind(0))
    writes = (cache.add, lambda trace: cache.put("a", trace), lambda trace: cache.__setitem__(0, trace))
    for write in (*writes, lambda trace: cache.extend([trace]), lambda trace: cache.refresh("a", [trace])):
        for wrong in (rows, None, {"task_id": "a"}):
            with pytest.raises(
                TypeError, match=r"a trace is a tensordict \[S\], got .*; stack the rows .*: lazy_stack"
            ):
                write(wrong)
    with pytest.raises(TypeError, match="refresh takes a list of traces"):
        cache.refresh("a", make_trace("a"))
    assert_same_rows(cache.get_trace("a"), make_trace("a", mark=1))
    assert cache.stats()["refreshes"] == 0


def test_threads():
    """Four threads write, read, count and discard; every trace that is read is complete and of its task."""
    cache = TaskTraceCache(max_tasks=5, traces_per_task=2)
    problems, start = [], threading.Barrier(4)

    def work(worker):
        start.wait()
        try:
            for i in range(60):
                task_id = f"t{(worker + i) % 7}"
                mark = worker * 60 + i
                cache.refresh(task_id, [make_trace(task_id, 2, mark=mark % 250)])
                trace = cache.get_trace(task_id)
                if trace is not None:
                    assert {row[keys.TASK_ID] for row in trace.unbind(0)} == {task_id}
                    assert_same_rows(trace, make_trace(task_id, 2, mark=mark_of(trace)))
                if i % 10 == worker:
                    cache.discard(task_id)
                cache.state_dict()
        except Exception as error:  # noqa: BLE001 - a thread's failure must reach the test
            problems.append(error)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(cache.task_ids()) <= 5
    assert cache.stats()["refreshes"] == 240
    assert len(cache) == sum(len(cache.all_metadata(task_id)) for task_id in cache.task_ids())
