"""Saving and loading: text and bytes are kept in every way; damaged folders and full disks change nothing."""

import errno
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import threading

import pytest
import torch
from cache_traces import PNG, assert_same_rows, make_trace, mark_of
from repository import ROOT
from tensordict import TensorDict, lazy_stack
from torchrl.checkpoint import Checkpoint, StateDictCheckpointAdapter
from torchrl.data import LazyStackStorage, ReplayBuffer, SamplerWithoutReplacement
from torchrl.data.replay_buffers import SamplerEnsemble

from bepa_torchrl.cache import TaskTraceCache
from bepa_torchrl.data import keys
from bepa_torchrl.storage import FolderError, RowStorageCheckpointer, load_rows, save_rows, write_folder


def filled(**options):
    cache = TaskTraceCache(seed=3, **options)
    cache.put("tâche/1", make_trace("tâche/1", 3, mark=1, version=4, source="self_rolled"))
    cache.put("b", make_trace("b", 1, mark=2))
    cache.refresh("c", [make_trace("c", 2, mark=i) for i in (3, 4, 5)])
    cache.note_injection("b")
    return cache


def assert_same_caches(got, want):
    assert got.task_ids() == want.task_ids()
    assert got.stats() == want.stats()
    assert got.seed == want.seed
    for task_id in want.task_ids():
        assert got.all_metadata(task_id) == want.all_metadata(task_id)
        assert_same_rows(got.get_trace(task_id), want.get_trace(task_id))


def by_state_dict(cache, new, tmp_path):  # noqa: ARG001
    new.load_state_dict(cache.state_dict())


def by_folder(cache, new, tmp_path):
    cache.dumps(tmp_path / "deep" / "cache")
    new.loads(str(tmp_path / "deep" / "cache"))


def by_checkpoint(cache, new, tmp_path):
    Checkpoint().register("trace_cache", cache).save(tmp_path / "checkpoint")
    result = Checkpoint().register("trace_cache", new).load(tmp_path / "checkpoint")
    assert result.loaded == {"trace_cache"}


def by_checkpoint_archive(cache, new, tmp_path):
    Checkpoint().register("trace_cache", cache).save(tmp_path / "checkpoint.zip", format="archive")
    Checkpoint().register("trace_cache", new).load(tmp_path / "checkpoint.zip")


def by_state_dict_adapter(cache, new, tmp_path):
    adapter = StateDictCheckpointAdapter()
    Checkpoint().register("trace_cache", cache, adapter=adapter).save(tmp_path / "checkpoint")
    Checkpoint().register("trace_cache", new, adapter=adapter).load(tmp_path / "checkpoint")


PATHS = [by_state_dict, by_folder, by_checkpoint, by_checkpoint_archive, by_state_dict_adapter]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("options", [{}, {"traces_per_task": 3, "max_tasks": 4}])
def test_everything_survives(path, options, tmp_path):
    cache, new = filled(**options), TaskTraceCache(**options)
    new.put("old", make_trace("old"))  # what was there is replaced
    path(cache, new, tmp_path)
    assert_same_caches(new, cache)


@pytest.mark.parametrize("path", [by_state_dict, by_folder])
def test_an_empty_cache_survives_too(path, tmp_path):
    cache, new = TaskTraceCache(seed=8), TaskTraceCache()
    path(cache, new, tmp_path)
    assert_same_caches(new, cache)


@pytest.mark.parametrize("path", PATHS)
def test_draws_go_on_as_if_nothing_had_happened(path, tmp_path):
    cache, new = filled(traces_per_task=3), TaskTraceCache(traces_per_task=3)
    path(cache, new, tmp_path)
    for one in (cache, new):
        for i in range(20):
            one.refresh("c", [make_trace("c", 2, mark=10 * i % 200 + k) for k in range(4)])
            one.get_trace("c")
            one.note_injection("c")
    assert_same_caches(new, cache)


def without_replacement(**options):
    cache = TaskTraceCache(batch_size=1, **options)
    cache.set_sampler(SamplerWithoutReplacement(shuffle=True))
    return cache


@pytest.mark.parametrize("path", PATHS)
def test_a_sampler_of_the_users_goes_on_where_it_was(path, tmp_path):
    """Three traces, of which two are drawn before the save and the third after it."""
    cache, new = without_replacement(), without_replacement()
    for mark in (1, 2, 3):
        cache.put(f"t{mark}", make_trace(f"t{mark}", mark=mark))
    drawn = [mark_of(cache.sample().unbind(0)[0]) for _ in range(2)]
    path(cache, new, tmp_path)
    for one in (new, cache):  # the state is not shared
        assert {*drawn, mark_of(one.sample().unbind(0)[0])} == {1, 2, 3}


@pytest.mark.parametrize("path", [by_state_dict, by_folder])
def test_the_state_of_another_sampler_is_refused(path, tmp_path):
    cache, new = without_replacement(), filled()
    cache.put("a", make_trace("a"))
    message = "state of a SamplerWithoutReplacement, this one a RandomSampler; call set_sampler with a Sampler"
    with pytest.raises(FolderError, match=message):
        path(cache, new, tmp_path)
    assert_same_caches(new, filled())
    path(filled(), without_replacement(), tmp_path / "plain")  # has none, as all of earlier versions


def test_a_damaged_state_of_a_sampler_is_refused():
    cache = without_replacement()
    cache.put("a", make_trace("a"))
    state = cache.state_dict()
    with pytest.raises(FolderError, match="of the sampler SamplerWithoutReplacement cannot be loaded: KeyError"):
        cache.load_state_dict(state | {"sampler": state["sampler"] | {"state": {"len_storage": 1}}})
    assert cache.task_ids() == ["a"]


def test_a_sampler_whose_state_a_folder_cannot_hold_is_refused(tmp_path):
    cache = TaskTraceCache()
    cache.set_sampler(SamplerEnsemble(SamplerWithoutReplacement(), SamplerWithoutReplacement()))
    with pytest.raises(
        FolderError, match=r"state of the sampler SamplerEnsemble, got \w*[dD]ict as 0; save the cache's"
    ):
        cache.dumps(tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_loaded_state_is_not_shared():
    cache, new = filled(), TaskTraceCache()
    state = cache.state_dict()
    new.load_state_dict(state)
    new._storage.get(0)[0][keys.RESPONSE_TOKENS].fill_(99)
    assert_same_rows(cache.get_trace("b"), make_trace("b", 1, mark=2))
    again = TaskTraceCache()
    again.load_state_dict(state)
    assert_same_caches(again, filled())


def test_the_folder_is_what_the_documentation_describes(tmp_path):
    filled().dumps(tmp_path / "cache")
    files = sorted(str(p.relative_to(tmp_path / "cache")) for p in (tmp_path / "cache").rglob("*") if p.is_file())
    images = [name for name in files if name.startswith("images/")]
    traces = [f"traces/{i:06d}/{name}" for i in range(3) for name in ("rows.json", "tensors.safetensors")]
    assert files == sorted(["manifest.json", *images, *traces])
    for name in images:
        data = (tmp_path / "cache" / name).read_bytes()
        assert data.startswith(PNG)
        assert name == f"images/{hashlib.sha256(data).hexdigest()}.png"
    # 3 marks; steps 3, 1, 2: each (mark, step) once, though it is both the screenshot and in later prompts
    assert len(images) == 6
    assert os.listdir(tmp_path) == ["cache"]  # nothing else is left
    assert "打开 😀" in str(json.loads((tmp_path / "cache/traces/000000/rows.json").read_text()))


def test_saving_again_replaces_the_whole_folder(tmp_path):
    cache = filled()
    cache.dumps(tmp_path / "cache")
    cache.discard("c")
    cache.put("b", make_trace("b", mark=90))
    cache.dumps(tmp_path / "cache")
    new = TaskTraceCache()
    new.loads(tmp_path / "cache")
    assert_same_caches(new, cache)
    assert os.listdir(tmp_path) == ["cache"]


def damage(folder, how):
    tensors = folder / "traces/000001/tensors.safetensors"
    rows = folder / "traces/000000/rows.json"
    manifest = folder / "manifest.json"
    if how == "torn tensors":
        tensors.write_bytes(tensors.read_bytes()[:-5])
    elif how == "changed text":
        rows.write_text(rows.read_text().replace("click", "clack"))
    elif how == "missing image":
        next((folder / "images").iterdir()).unlink()
    elif how == "torn manifest":
        manifest.write_bytes(manifest.read_bytes()[:-40])
    elif how == "changed manifest":
        manifest.write_text(manifest.read_text().replace('"seed": 3', '"seed": 4'))
    elif how == "no manifest":
        manifest.unlink()
    elif how == "not a manifest":
        manifest.write_text("[1, 2]")
    elif how == "another version":
        body = json.loads(manifest.read_text())["manifest"] | {"version": 7}
        digest = hashlib.sha256(json.dumps(body).encode()).hexdigest()
        manifest.write_text(json.dumps({"manifest": body, "sha256": digest}))
    elif how == "no folder":
        shutil.rmtree(folder)
    elif how == "other rows":
        shutil.rmtree(folder)
        save_rows(folder, list(make_trace("a").unbind(0)))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("torn tensors", "damaged or was changed; restore"),
        ("changed text", "damaged or was changed; restore"),
        ("missing image", "cannot be read"),
        ("torn manifest", "cannot be read"),
        ("changed manifest", "damaged or was changed; restore"),
        ("no manifest", "not a saved folder, or damaged"),
        ("not a manifest", "cannot be read"),
        ("another version", "version 7, this program reads 1; save it again"),
        ("no folder", "not a saved folder"),
        ("other rows", "holds 'bepa_torchrl.data.step_rows', expected 'bepa_torchrl.trace_cache'"),
    ],
)
def test_a_damaged_folder_is_refused_and_the_cache_kept(how, message, tmp_path):
    filled().dumps(tmp_path / "cache")
    damage(tmp_path / "cache", how)
    cache = TaskTraceCache(seed=11)
    cache.put("mine", make_trace("mine", mark=7))
    with pytest.raises(FolderError, match=message):
        cache.loads(tmp_path / "cache")
    assert cache.task_ids() == ["mine"]
    assert cache.seed == 11
    assert_same_rows(cache.get_trace("mine"), make_trace("mine", mark=7))


@pytest.mark.parametrize(
    ("options", "message"), [({}, "traces_per_task=2"), ({"traces_per_task": 2, "max_tasks": 2}, "max_tasks=3")]
)
def test_more_than_the_cache_may_hold_is_refused(options, message, tmp_path):
    big = filled(traces_per_task=2)
    big.put("b", make_trace("b", mark=20))
    big.dumps(tmp_path / "cache")
    cache = TaskTraceCache(**options)
    cache.put("mine", make_trace("mine", mark=7))
    for load in (lambda: cache.loads(tmp_path / "cache"), lambda: cache.load_state_dict(big.state_dict())):
        with pytest.raises(FolderError, match=message):
            load()
    assert cache.task_ids() == ["mine"]
    assert mark_of(cache.get_trace("mine")) == 7


def test_states_of_another_kind_are_refused():
    cache = filled()
    state = cache.state_dict()
    damaged = state | {"index": state["index"] | {"tasks": [["b", [5]]]}}
    for bad, message in (
        ({}, "format None"),
        (state | {"version": 2}, "version 2"),
        ({k: v for k, v in state.items() if k != "seed"}, "seed"),
        (damaged, "damaged"),
        (state | {"traces": state["traces"][:1]}, "1 traces, its index 3"),
    ):
        with pytest.raises(FolderError, match=message):
            cache.load_state_dict(bad)
    assert_same_caches(cache, filled())


def saved_then_changed(tmp_path):
    cache = filled()
    cache.dumps(tmp_path / "cache")
    cache.put("new", make_trace("new", mark=60))
    return cache


def assert_old_folder(tmp_path):
    old = TaskTraceCache()
    old.loads(tmp_path / "cache")
    assert_same_caches(old, filled())
    assert os.listdir(tmp_path) == ["cache"]


@pytest.mark.parametrize("calls_before", [0, 3, 17])
def test_a_full_disk_leaves_the_old_folder(calls_before, tmp_path, monkeypatch):
    """ENOSPC when data is flushed: at the first file, during the traces, at the folders."""
    cache, real, calls = saved_then_changed(tmp_path), os.fsync, []

    def fsync(handle):
        calls.append(handle)
        if len(calls) > calls_before:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(FolderError, match=r"could not be saved \(No space left on device\).*unchanged; free some"):
        cache.dumps(tmp_path / "cache")
    monkeypatch.undo()
    assert len(calls) == calls_before + 1
    assert_old_folder(tmp_path)
    assert "new" in cache


def test_a_write_that_the_system_cuts_off_leaves_the_old_folder(tmp_path):
    """A real file that may not grow (RLIMIT_FSIZE): the kernel rejects the write half way."""
    cache = saved_then_changed(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        with pytest.raises(FolderError, match=r"File too large.*unchanged"):
            cache.dumps(tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert_old_folder(tmp_path)


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
from cache_traces import make_trace
from bepa_torchrl.cache import TaskTraceCache
cache = TaskTraceCache()
cache.put("b", make_trace("b", mark=99))
real, renames = os.rename, []
def rename(a, b):
    if renames:
        os._exit(9)
    renames.append(a)
    real(a, b)
os.rename = rename
cache.dumps({path!r})
"""


@pytest.mark.slow
def test_a_save_that_is_killed_loses_nothing(tmp_path):
    """The process is killed between its two renames: the old folder is found, and saving works again."""
    filled().dumps(tmp_path / "cache")
    tests = str(ROOT / "tests" / "support")
    program = KILLED.format(tests=tests, path=str(tmp_path / "cache"))
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert not (tmp_path / "cache").exists()
    found = TaskTraceCache()
    found.loads(tmp_path / "cache")
    assert_same_caches(found, filled())
    found.put("later", make_trace("later"))
    found.dumps(tmp_path / "cache")
    again = TaskTraceCache()
    again.loads(tmp_path / "cache")
    assert_same_caches(again, found)


def test_an_old_folder_left_aside_does_not_hinder_the_next_save(tmp_path):
    """The process was killed after its second rename: the new folder exists, and the outdated one still does."""
    cache = saved_then_changed(tmp_path)
    shutil.copytree(tmp_path / "cache", tmp_path / ".cache.old")
    cache.dumps(tmp_path / "cache")
    found = TaskTraceCache()
    found.loads(tmp_path / "cache")
    assert_same_caches(found, cache)
    assert os.listdir(tmp_path) == ["cache"]


def test_nothing_foreign_is_overwritten(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    save_rows(tmp_path / "rows", [])
    for name in ("folder", "file", "rows"):
        with pytest.raises(FolderError, match="not overwritten; name another path"):
            filled().dumps(tmp_path / name)
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "precious"
    assert load_rows(tmp_path / "rows") == []


def test_saving_while_others_write(tmp_path):
    """At any time of the save, index and traces in the folder are consistent."""
    cache, stop = filled(max_tasks=4), threading.Event()

    def write():
        i = 0
        while not stop.is_set():
            i += 1
            cache.put(f"t{i % 6}", make_trace(f"t{i % 6}", 1, mark=i % 200))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5):
            cache.dumps(tmp_path / "cache")
            found = TaskTraceCache(max_tasks=4)
            found.loads(tmp_path / "cache")
            for task_id in found.task_ids():
                assert found.get_trace(task_id)[0][keys.TASK_ID] == task_id
    finally:
        stop.set()
        thread.join()


def test_rows_of_any_kind(tmp_path):
    row = TensorDict({("a", "b", "c"): torch.tensor(True), "half": torch.ones(2, dtype=torch.bfloat16)})
    row.set("none", torch.zeros(0, 4, dtype=torch.int64))
    row.set("view", torch.arange(6).reshape(2, 3).T)
    row.set_non_tensor(("deep", "text"), 'a\\b"\n\u0000\ud800')  # a lone surrogate too
    row.set_non_tensor("empty", ())
    row.set_non_tensor("mixed", ("x", b"\x00\xff", 3, 0.1, None, [True, (b"",)]))
    other = TensorDict({"a": torch.tensor(1)})  # another set of keys, and a leaf where the first has a branch
    save_rows(tmp_path / "rows", [row, other])
    first, second = load_rows(tmp_path / "rows")
    assert_same_rows(lazy_stack([first]), lazy_stack([row]))
    assert_same_rows(lazy_stack([second]), lazy_stack([other]))
    assert first["view"].is_contiguous()


def test_rows_that_cannot_be_saved_are_refused(tmp_path):
    row = TensorDict({"a": torch.tensor(1)})
    save_rows(tmp_path / "rows", [row])
    bad = row.clone()
    bad.set_non_tensor("thing", (1, {"x": 2}))
    with pytest.raises(TypeError, match="'thing' is a dict"):
        save_rows(tmp_path / "rows", [bad])
    with pytest.raises(ValueError, match="unbind"):
        save_rows(tmp_path / "rows", [lazy_stack([row])])
    assert len(load_rows(tmp_path / "rows")) == 1
    with pytest.raises(ValueError, match="relative"):
        write_folder(tmp_path / "x", format="f", version=1, meta={}, fill=lambda folder: folder.add("../y", b""))
    assert os.listdir(tmp_path) == ["rows"]


def test_a_training_buffer_of_rows_in_a_checkpoint(tmp_path):
    """TorchRL's own checkpointer raises NotImplementedError for a list storage."""
    rows = [row for task_id in "ab" for row in make_trace(task_id, 3, mark=5).unbind(0)]

    def buffer():
        return ReplayBuffer(storage=LazyStackStorage(), checkpointer=RowStorageCheckpointer(), batch_size=2)

    full, new = buffer(), buffer()
    full.extend(lazy_stack(rows))
    new.extend(lazy_stack(rows[:1]))
    Checkpoint().register("buffer", full).save(tmp_path / "checkpoint")
    Checkpoint().register("buffer", new).load(tmp_path / "checkpoint")
    assert len(new) == 6
    assert_same_rows(new[:], lazy_stack(rows))
