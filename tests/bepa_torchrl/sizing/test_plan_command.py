"""``bepa plan``: offline, exact parameters, what fits, errors in one line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from repository import ROOT

from bepa_torchrl.cli import main
from bepa_torchrl.experiment.config import load_config
from bepa_torchrl.policies.transformers.policy import TransformersPolicy
from bepa_torchrl.sizing.duration import decode_speed
from bepa_torchrl.sizing.gpus import gpu
from bepa_torchrl.sizing.known_models import known_model
from bepa_torchrl.sizing.model import model_shape
from bepa_torchrl.testing import small_checkpoint


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_seven_billion_on_one_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "policy=uitars15_7b", "experiment=paper", "--prompt-tokens", "600")
    assert found["parameters"] == {"total": 8_292_166_656, "decoder": 7_615_616_512, "vision": 676_550_144}
    tokens = found["tokens"]
    # 600, 15 screenshots of 2,691 + 7 and 15 responses of 120 + 3, and 14 line ends between turns
    assert (tokens["screenshot"], tokens["episode"]) == (2_691, 600 + 15 * (2_698 + 123) + 14)
    assert (tokens["images"], tokens["images_row_by_row"]) == (15, 120)
    by_name = {choice["name"]: choice for choice in found["choices"]}
    full = by_name["full"]["bytes_per_gpu"]
    assert full["total"] == sum(size for part, size in full.items() if part != "total")
    assert {name for name, choice in by_name.items() if choice["fits"]} == {"LoRA r=64, activation checkpointing"}
    assert found["best"] == "LoRA r=64, activation checkpointing"


def test_training_on_several_gpus_is_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("policy=uitars15_7b", "train.frozen=[visual]", "--gpus", "2")
    found = planned(capsys, *settings, "--gpu", "h200")
    assert (found["best"], found["settings"]["train.ranks"]) == ("full, activation checkpointing", 2)
    found = planned(capsys, *settings, "--gpu", "a100_80", "--tune", "lora")
    assert found["settings"].items() >= {"train.ranks": 2, "policy.lora.rank": 64}.items()
    assert main(["plan", *settings, "--gpu", "h200"]) == 0
    assert "8-bit Adam: training fits" in capsys.readouterr().out


CHECKPOINTED = "full, activation checkpointing"
FROZEN = "train.frozen=[visual]"
#: row of a table of memory in docs/train_7b.md → arguments, and the recipe
STATED = {
    "7B, full": ([], "full"),
    "7B, full, activation checkpointing": ([], CHECKPOINTED),
    "the same, frozen tower": ([FROZEN], CHECKPOINTED),
    "the same, frozen tower, 8-bit Adam": ([FROZEN], f"{CHECKPOINTED}, 8-bit Adam"),
    "7B, LoRA r=64, activation checkpointing": ([], "LoRA r=64, activation checkpointing"),
    "2 H200, frozen tower": ([FROZEN, "--gpus", "2"], CHECKPOINTED),
    "8 H100, frozen tower": ([FROZEN, "--gpus", "8", "--gpu", "h100"], CHECKPOINTED),
    "4 H200": (["--gpus", "4"], CHECKPOINTED),
    "8 H100": (["--gpus", "8", "--gpu", "h100"], CHECKPOINTED),
}


@pytest.mark.parametrize("row", STATED)
def test_memory_is_what_the_page_says(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, name = STATED[row]
    found = planned(capsys, "policy=uitars15_7b", "experiment=paper", *arguments)
    choice = next(each for each in found["choices"] if each["name"] == name)
    sizes = choice["bytes_per_gpu"]
    kept = sum(sizes[part] for part in ("weights", "sampling_copy", "masters", "gradients", "moments"))
    gigabytes = [size / 1e9 for size in (kept, sizes["total"] - kept, sizes["total"])]
    page = (ROOT / "docs" / "train_7b.md").read_text(encoding="utf-8")
    cells = next(line for line in page.splitlines() if line.startswith(f"| {row} |")).strip("| ").split(" | ")
    assert [float(cell) for cell in cells[1:4]] == pytest.approx(gigabytes, abs=1)
    assert cells[4].startswith("yes") == choice["fits"]


def test_the_rank_of_adapters_is_that_of_the_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, rank in ((["policy.lora.rank=8"], 8), (["policy.lora.rank=8", "--rank", "16"], 16), ([], 64)):
        found = planned(capsys, "policy=uitars15_7b", "--tune", "lora", *arguments)
        assert found["settings"]["policy.lora.rank"] == rank


def test_another_family(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "policy=qwen3vl_8b")
    assert found["parameters"]["total"] == 8_767_123_696
    assert found["tokens"]["screenshot"] == 2_040


def test_opencua_repeats_past_responses_in_another_form(capsys: pytest.CaptureFixture[str]) -> None:
    """Each row is a sequence: a head, up to 3 screenshots of 2,698, past steps of 60 + 4, 3, a response of 400."""
    found = planned(capsys, "policy=opencua_7b", "--prompt-tokens", "850", "--response-tokens", "400")
    assert found["parameters"] == {"total": 8_292_166_656, "decoder": 7_615_616_512, "vision": 676_550_144}
    tokens = found["tokens"]
    prompts = [850 + min(step, 3) * 2_698 + (step - 1) * 64 + 3 for step in range(1, 16)]
    assert tokens["prompts"] == prompts
    assert tokens["episode"] == tokens["episode_row_by_row"] == sum(prompts) + 15 * 400
    assert tokens["head"] == 850
    estimated = planned(capsys, "policy=opencua_7b")["tokens"]["head"]
    assert 700 < estimated < 1_100  # the system prompt has 2,370 characters


def test_history_decides_the_cost_of_an_update(capsys: pytest.CaptureFixture[str]) -> None:
    """All screenshots cost least to train, then evicted blocks, then the last five (model FLOPs of an update)."""
    costs = {}
    for history in ("all", "evict_block", "last_k"):
        images = "null" if history == "all" else "5"
        overrides = (f"policy.history={history}", f"policy.history_images={images}")
        arguments = ("policy=uitars15_7b", *overrides, "--tune", "full")
        flops = planned(capsys, *arguments)["flops_per_episode"]
        costs[history] = flops["forward"]["total"] + flops["backward"]["total"]
        assert flops["forward_row_by_row"]["total"] > flops["forward"]["total"]
    assert costs["all"] == pytest.approx(3.5e15, rel=0.01)
    assert costs["all"] < costs["evict_block"] < costs["last_k"]


def test_time_follows_from_the_flops(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole episodes are divided: of 6 one of 4 GPUs has 2, as in two steps of 3 episodes, 1 each."""
    settings = ("policy=uitars15_7b", "collect.groups=2", "collect.group_size=3", "train.frozen=[visual]")
    options = ("--gpus", "4", "--mfu", "0.5", "--decode-speed", "1000", "--prefix-cache", "--tune", "full")
    found = planned(capsys, *settings, *options)
    flops, seconds = found["flops_per_episode"], found["seconds"]
    assert flops["backward"]["vision"] == 0
    rate = 0.5 * 989e12  # of one GPU
    assert seconds["update"] == pytest.approx(2 * (flops["forward"]["total"] + flops["backward"]["total"]) / rate)
    prefill = 6 * (flops["forward"]["total"] - flops["forward"]["head"])
    assert seconds["prefill"] == pytest.approx(prefill / rate)  # one of the GPUs samples
    assert seconds["decode"] == pytest.approx(6 * 15 * 120 / 1000)
    assert seconds["old_log_probs"] == 0  # one optimiser step per iteration
    twice = planned(capsys, *settings, "train.minibatch_groups=1", "train.inner_epochs=2", *options)["seconds"]
    assert twice["old_log_probs"] == pytest.approx(2 * flops["forward"]["total"] / rate)
    assert twice["update"] == pytest.approx(2 * seconds["update"])


def test_more_gpus_than_episodes_wait(capsys: pytest.CaptureFixture[str]) -> None:
    """A step of one group has 8 episodes, on 8 GPUs one each, and on 16 no less; the old log-probs are of all 128."""
    settings = ("experiment=osworld_7b", "train.minibatch_groups=1", "--tune", "full")
    eight, sixteen = (planned(capsys, *settings, "--gpus", gpus)["seconds"] for gpus in ("8", "16"))
    assert eight["update"] == sixteen["update"]
    assert eight["old_log_probs"] == pytest.approx(2 * sixteen["old_log_probs"])


def test_the_token_budget_is_the_largest_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (
        planned(capsys, "policy=uitars15_7b", "--gpu", name, "--tune", "lora") for name in ("a100_80", "h200")
    )
    budgets = [found["choices"][-1]["max_tokens"] for found in (small, large)]
    assert 0 < budgets[0] < budgets[1]
    choice, episode = large["choices"][-1], large["tokens"]["episode"]
    parts = choice["bytes_per_gpu"]
    fixed = sum(parts[part] for part in ("weights", "masters", "gradients", "moments", "head", "feature_cache"))
    used = fixed + (parts["total"] - fixed) * budgets[1] / episode
    assert large["settings"] == {
        "policy.activation_checkpointing": True,
        "train.max_tokens": budgets[1],
        "policy.max_prompt_tokens": 65_536,
        "policy.lora.rank": 64,
    }
    assert small["settings"]["policy.max_prompt_tokens"] == min(65_536, budgets[0] - 512)
    assert used <= (143_771 * 2**20 - 2**30) / 1.1 < used + (parts["total"] - fixed) * 1024 / episode


@pytest.mark.parametrize(
    ("experiment", "device", "tune", "name"),
    [
        ("osworld_7b", "h200", "full", "full, activation checkpointing, 8-bit Adam"),
        ("osworld_7b_lora", "a100_80", "lora", "LoRA r=64, activation checkpointing"),
        ("osworld_2b", "rtx_4090", "lora", "LoRA r=64, activation checkpointing"),
    ],
)
def test_the_experiments_are_the_recipes_that_fit(
    capsys: pytest.CaptureFixture[str], experiment: str, device: str, tune: str, name: str
) -> None:
    found = planned(capsys, f"experiment={experiment}", "--gpu", device, "--tune", tune)
    assert found["best"] == name
    settings = load_config([f"experiment={experiment}"])
    assert found["model"] == settings.policy.checkpoint
    assert settings.env.suite == "osworld"
    assert (settings.optimizer.kind == "adamw_8bit") == ("8-bit Adam" in name)
    assert settings.policy.lora.rank == found["settings"].get("policy.lora.rank")
    assert settings.policy.activation_checkpointing == found["settings"]["policy.activation_checkpointing"]
    assert settings.train.max_tokens <= found["settings"]["train.max_tokens"]


def test_the_settings_make_the_choice_of_any_run(capsys: pytest.CaptureFixture[str]) -> None:
    """What the settings have and the choice has not, such as adapters, is set back."""
    lora = "experiment=osworld_7b_lora"
    full = planned(capsys, lora, "train.ranks=2", "--gpu", "b200")
    assert full["best"] == "full, activation checkpointing, 8-bit Adam"
    assert full["settings"]["policy.lora.rank"] is None
    assert (full["settings"]["optimizer.kind"], full["settings"]["train.ranks"]) == ("adamw_8bit", 1)
    adapters = planned(capsys, lora, "optimizer.kind=adamw_8bit", "--gpu", "a100_80", "--tune", "lora")
    assert (adapters["settings"]["policy.lora.rank"], adapters["settings"]["optimizer.kind"]) == (64, "adamw")
    for found in (full, adapters):
        given = [f"{key}={json.dumps(value)}" for key, value in found["settings"].items()]
        settings = load_config([lora, "optimizer.kind=adamw_8bit", *given])
        assert settings.policy.lora.rank == found["settings"]["policy.lora.rank"]
        assert settings.optimizer.kind == found["settings"]["optimizer.kind"]


def test_an_engine_has_rows_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """As a run: those of policy.engine.max_rows, or for all desktops."""
    planned_with = partial(planned, capsys, "experiment=osworld_7b_lora", "--tune", "lora", *VLLM)
    room = "policy.engine.kv_cache_gb=80"
    seconds = [
        planned_with(room, "env.desktops=32", *rows, ELSEWHERE)["seconds"]["decode"]
        for rows in ((), ("policy.max_rows=32",), ("policy.engine.max_rows=32",), ("policy.engine.max_rows=1",))
    ]
    assert seconds[0] == seconds[1] == seconds[2] < seconds[3] / 4


def test_two_billion_on_24_gb_beside_an_engine(capsys: pytest.CaptureFixture[str]) -> None:
    """Qwen3-VL-2B is published with 2,127,532,032 parameters; the prompts of the recipe are below its limit."""
    found = planned(capsys, "experiment=osworld_2b", "--tune", "lora", "--gpu", "rtx_4090", *VLLM)
    assert found["parameters"]["total"] == 2_127_532_032
    settings = load_config(["experiment=osworld_2b"])
    assert found["best"] == "LoRA r=64, activation checkpointing"
    assert settings.train.max_tokens <= found["settings"]["train.max_tokens"]
    assert found["window_bytes"] < settings.policy.engine.kv_cache_gb * 1e9
    longer = planned(capsys, "experiment=osworld_2b", "--response-tokens", "512", "--tune", "lora")
    assert max(longer["tokens"]["prompts"]) <= settings.policy.max_prompt_tokens


VLLM = ("policy.rollout=vllm", "train.old_log_probs=all")
ELSEWHERE = "policy.engine.url=http://127.0.0.1:7400"


def test_an_engine_on_the_trainers_gpu_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """Its weights, 2 bytes each, the key-value cache of the setting, and a CUDA context of 1 GiB."""
    settings, options = ("experiment=osworld_7b_lora",), ("--tune", "lora")
    engine_here = (*VLLM, "policy.engine.kv_cache_gb=12")
    without, elsewhere, beside = (
        planned(capsys, *settings, *added, *options) for added in ((), (*engine_here, ELSEWHERE), engine_here)
    )
    engine = 2 * 8_292_166_656 + 12_000_000_000 + 1_073_741_824
    for found, expected in ((without, 0), (elsewhere, 0), (beside, engine)):
        assert [choice["bytes_per_gpu"]["engine"] for choice in found["choices"]] == [expected] * 2
    totals = [found["choices"][-1]["bytes_per_gpu"]["total"] for found in (without, elsewhere, beside)]
    assert totals == [totals[0], totals[0], totals[0] + engine]
    # the engine's cache is that of the setting, 57,344 bytes per token; without one it is what is left
    longest = beside["tokens"]["longest_row"]
    assert [choice["rollouts_that_fit"] for choice in beside["choices"]] == [12_000_000_000 // (57_344 * longest)] * 2
    assert elsewhere["choices"] == without["choices"]
    assert beside["choices"][-1]["max_tokens"] < without["choices"][-1]["max_tokens"]


def test_an_engine_with_gpus_of_its_own_takes_none_of_the_trainers(capsys: pytest.CaptureFixture[str]) -> None:
    """The GPU 1 is another than the trainer's, unless that has two; in a Ray cluster services get theirs from Ray."""
    asynchronous = ("collect.mode=async", "collect.max_staleness=1", "cluster.address=auto")
    cases = {
        (): 1,
        ("policy.engine.devices=1",): 0,
        ("policy.engine.devices=1", "--gpus", "2"): 1,
        ("policy.engine.devices=2", "--gpus", "2"): 0,
        ("policy.engine.devices='0,1'", "policy.engine.arguments.tensor_parallel_size=2"): 1,
        (*asynchronous, "cluster.gpus_per_replica=1"): 0,
    }
    for arguments, beside in cases.items():
        choices = planned(capsys, "experiment=osworld_7b", *VLLM, *arguments, "--tune", "full")["choices"]
        assert [choice["bytes_per_gpu"]["engine"] > 0 for choice in choices] == [beside > 0] * 3, arguments
    own = planned(capsys, "experiment=osworld_7b", *VLLM, "policy.engine.devices=1", "--tune", "full")
    assert own["best"] == "full, activation checkpointing, 8-bit Adam"


def test_an_engine_on_two_gpus_has_half_of_itself_on_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 57,344 bytes per token two of four heads: 28,672, so that 2 GB hold a window of 66,048 tokens, 1.89 GB."""
    two = (*VLLM, "policy.engine.kv_cache_gb=2", "policy.engine.arguments.tensor_parallel_size=2")
    found = planned(capsys, "experiment=osworld_7b_lora", "--tune", "lora", *two)
    assert found["window_bytes"] == 66_048 * 28_672
    choice = found["choices"][-1]
    assert choice["bytes_per_gpu"]["engine"] == 8_292_166_656 + 2_000_000_000 + 1_073_741_824
    assert choice["rollouts_that_fit"] == 1  # of 42,684 tokens, 1.22 GB each
    assert main(["plan", "experiment=osworld_7b_lora", "--tune", "lora", *two]) == 0
    assert "will not start" not in capsys.readouterr().out
    for gigabytes, fits in (("9.7", False), ("9.8", True)):  # 8 desktops x 42,684 x 28,672 = 9.79 GB
        cache = (*VLLM, f"policy.engine.kv_cache_gb={gigabytes}", two[-1], "env.desktops=8")
        assert planned(capsys, "experiment=osworld_7b_lora", "--tune", "lora", *cache)["prefixes_fit"] is fits


def test_a_whole_gradient_on_each_gpu_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """4 bytes of each of the decoder's 7,615,616,512 parameters, undivided."""
    settings = ("experiment=osworld_7b", "train.ranks=8", "--gpus", "8", "--gpu", "h100", "--tune", "full")
    divided, whole = (
        planned(capsys, f"train.gradient_sync={when}", *settings)["choices"][1] for when in ("pass", "step")
    )
    found = [choice["bytes_per_gpu"]["gradients"] for choice in (divided, whole)]
    assert found == [4 * 7_615_616_512 // 8, 4 * 7_615_616_512]
    assert (divided["fits"], whole["fits"]) == (True, False)


def test_the_copy_of_the_base_policy_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """16.6 GB in full training, whole on rank 0, which scores alone; adapters are left out instead, on all ranks."""
    for gpus in (1, 2):
        arguments = ("experiment=osworld_7b", "train.frozen=[visual]", "--gpus", str(gpus), "--gpu", "h200")
        before, after = (
            planned(capsys, *arguments, f"loss.kl_weight={weight}", "--tune", "full") for weight in (0, 0.1)
        )
        sizes = [choice["bytes_per_gpu"] for choice in (before["choices"][-1], after["choices"][-1])]
        assert [size["base_copy"] for size in sizes] == [0, 2 * 8_292_166_656]
        assert sizes[1]["total"] - sizes[0]["total"] == 2 * 8_292_166_656
        scored = 128 * before["flops_per_episode"]["forward"]["total"] / (0.4 * 989e12)
        # one H200 has no room for both, b200 has
        larger = planned(capsys, *arguments[:-1], "b200", "loss.kl_weight=0.1", "--tune", "full")["seconds"]
        assert larger["base_log_probs"] == pytest.approx(scored * 989 / 2250)
    lora = planned(capsys, "experiment=osworld_7b_lora", "loss.kl_weight=0.1", "--tune", "lora", "--gpus", "2")
    assert lora["choices"][-1]["bytes_per_gpu"]["base_copy"] == 0
    assert lora["seconds"]["base_log_probs"] == pytest.approx(scored / 2)
    adapted = ("loss.kl_weight=0.1", "policy.lora.adapter=somewhere", "--tune", "lora")
    copy = planned(capsys, "experiment=osworld_7b_lora", *adapted)["choices"][-1]["bytes_per_gpu"]["base_copy"]
    assert copy == 2 * (8_292_166_656 + 161_480_704)  # 28 layers x 64 x (2 x 7,168 + 2 x 4,096 + 3 x 22,528)


def test_prompts_that_are_cut_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Step s has 600 + s (2,691 + 7) + (s - 1) (120 + 4) + 3 tokens: 65,385 at step 23, 68,207 at step 24."""
    settings = ("experiment=osworld_7b", "--prompt-tokens", "600", "--gpus", "4", "--tune", "full")
    assert planned(capsys, "env.max_steps=23", *settings)["cut_at_step"] is None
    assert planned(capsys, "env.max_steps=25", *settings)["cut_at_step"] == 24
    assert main(["plan", "env.max_steps=25", *settings]) == 0
    assert "episodes end at step 24 of 25, whose prompt of 68,207 tokens is longer" in capsys.readouterr().out


def test_prompts_have_the_models_positions(capsys: pytest.CaptureFixture[str]) -> None:
    """128,000 of a Qwen2.5-VL, of which a response takes 512; step 45 has 127,469 tokens, step 46 130,291."""
    wide = ("policy.max_prompt_tokens=140000", "train.max_tokens=140512", "env.max_steps=50")
    found = planned(capsys, "experiment=osworld_7b", *wide, "--prompt-tokens", "600", "--gpus", "8", "--tune", "full")
    assert found["settings"]["policy.max_prompt_tokens"] == 127_488
    assert found["cut_at_step"] == 46


def test_a_float32_head_and_the_caches_of_screenshots_count(capsys: pytest.CaptureFixture[str]) -> None:
    """152,064 tokens of 3,584 in float32 are 2.2 GB: a copy here, one in the engine, and the gradient in full training.

    Features are kept of a frozen tower only, on two GPUs also beside rank 0's copy that samples; pixels by each rank.
    """
    copy, options = 4 * 152_064 * 3_584, ("--prompt-tokens", "600")
    plain = ("policy=uitars15_7b", "policy.feature_cache_gb=0", "policy.image_cache_gb=0.5")
    wide = ("policy=uitars15_7b", "policy.head_dtype=float32", "policy.feature_cache_gb=3", "policy.image_cache_gb=0.5")
    for gpus, caches in (("1", 1), ("2", 2)):
        before, after = (
            planned(capsys, *settings, "train.frozen=[]", *VLLM, *options, "--gpus", gpus) for settings in (plain, wide)
        )
        for one, other in zip(before["choices"], after["choices"], strict=True):
            sizes, larger = one["bytes_per_gpu"], other["bytes_per_gpu"]
            lora = one["name"].startswith("LoRA")
            assert (sizes["head_copy"], sizes["feature_cache"]) == (0, 0)
            assert larger["head_copy"] == larger["engine"] - sizes["engine"] == copy
            assert larger["head"] - sizes["head"] == (0 if lora else copy // 2)
            assert larger["feature_cache"] == (3_000_000_000 * caches if lora else 0)
            assert other["rollouts_that_fit"] <= one["rollouts_that_fit"]
        assert after["cpu_bytes"] == {"screenshots": 500_000_000 * caches, "engine_patches": 1 << 30}
    single = planned(capsys, *wide, "policy.dtype=float32", *options)
    assert {choice["bytes_per_gpu"]["head_copy"] for choice in single["choices"]} == {0}
    assert single["cpu_bytes"]["engine_patches"] == 0
    assert main(["plan", *wide, *VLLM, *options]) == 0
    assert "up to 0.5 GB prepared ones on 1 rank (policy.image_cache_gb), 1.1 GB" in capsys.readouterr().out


def test_an_engine_that_sleeps_is_not_planned_for_several_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    """As `bepa train` refuses it: an engine sleeps beside a trainer of one rank."""
    asleep = ("experiment=osworld_7b", *VLLM, "policy.engine.sleep=true")
    assert planned(capsys, *asleep)["choices"][0]["bytes_per_gpu"]["asleep"] > 0
    assert main(["plan", *asleep, "--gpus", "2"]) == 2
    assert "policy.engine.sleep=true requires train.ranks=1, got --gpus 2; set one" in capsys.readouterr().err


def test_an_engine_is_not_divided_over_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (planned(capsys, "experiment=osworld_7b", *VLLM, "--gpus", gpus)["choices"] for gpus in ("1", "2"))
    sizes = {choice["bytes_per_gpu"]["engine"] for choice in (*one, *two)}
    assert sizes == {2 * 8_292_166_656 + 4_000_000_000 + 1_073_741_824}


def test_an_engine_decides_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    """Of an H200's 136 usable GB 120 are used without it; with it 142 would be."""
    full = ("experiment=osworld_7b", "--gpu", "h200", "--tune", "full")
    assert planned(capsys, *full)["best"] == "full, activation checkpointing, 8-bit Adam"
    assert planned(capsys, full[0], *VLLM, ELSEWHERE, *full[1:])["best"] is not None
    assert planned(capsys, full[0], *VLLM, *full[1:])["best"] is None
    assert main(["plan", full[0], *VLLM, *full[1:]]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(", or an engine elsewhere (policy.engine.url)")


def test_an_engines_prefix_cache_helps_if_it_holds_the_turns_of_all_desktops(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """8 desktops x 42,684 tokens x 57,344 bytes are 19.6 GB; in a smaller cache the block needed next is gone."""
    settings = ("policy=uitars15_7b", "experiment=paper", "env.desktops=8", "--gpu", "h200", "--tune", "lora")
    large, small = ("policy.engine.kv_cache_gb=20", "policy.engine.kv_cache_gb=19")
    asked, engine, elsewhere, too_small, without = (
        planned(capsys, *added, *settings)
        for added in (("--prefix-cache",), (*VLLM, large), (*VLLM, ELSEWHERE, large), (*VLLM, small), ())
    )
    fits = [found["prefixes_fit"] for found in (asked, engine, elsewhere, too_small, without)]
    assert fits == [True, True, True, False, False]
    seconds = [found["seconds"]["prefill"] for found in (asked, engine, elsewhere, too_small, without)]
    assert seconds[0] == seconds[1] == seconds[2] < seconds[3] / 7
    assert seconds[3] == seconds[4]


def test_decoding_by_the_batches_that_fit_the_token_budget(capsys: pytest.CaptureFixture[str]) -> None:
    """65,536 tokens hold 16 (max_rows), 9, 6, 5, 4 … rows; each of their 120 tokens takes at least 30 ms.

    A batch has room for responses of the maximum length, 512 tokens: 65,536 / (6,123 + 512) = 9.9.
    """
    settings = ("experiment=osworld_7b_lora", "--gpu", "h200", "--tune", "lora", "--prompt-tokens", "600")
    found = planned(capsys, *settings)
    assert found["tokens"]["prompts"][1] == 6_123
    rows = [max(1, min(16, 65_536 // (prompt + 512))) for prompt in found["tokens"]["prompts"]]
    assert rows == [16, 9, 6, 5, 4, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1]
    expected = sum(128 * 120 * 0.03 / count for count in rows)
    assert found["seconds"]["decode"] == pytest.approx(expected, rel=1e-6)


def test_preparing_screenshots_takes_time(capsys: pytest.CaptureFixture[str]) -> None:
    """0.06 s each, by 4 threads; 1 + … + 15 = 120 per episode if the cache is too small, and 15 in the update."""
    settings, options = ("experiment=osworld_7b_lora",), ("--tune", "lora")

    def seconds(*added: str) -> float:
        return float(planned(capsys, *settings, *added, *options)["seconds"]["preparation"])

    assert seconds("policy.image_cache_gb=1") == pytest.approx(128 * (120 + 15) * 0.06 / 4)
    assert seconds("policy.image_threads=0", "policy.image_cache_gb=1") == pytest.approx(128 * (120 + 15) * 0.06)
    assert seconds() == pytest.approx(128 * (15 + 15) * 0.06 / 4)  # 4 GB hold 585 of 6.3 + 0.5 MB: 480 of the desktops
    assert seconds("policy.image_cache_gb=14") == pytest.approx(128 * 15 * 0.06 / 4)  # all 1,920 of the iteration
    # an engine's patches are cut by one thread, 0.04 s each; 1 GiB holds 42, 32 desktops have 480
    assert seconds(*VLLM) == pytest.approx(128 * (30 * 0.06 / 4 + 120 * 0.04))


def test_desktops_are_added_to_what_they_wait_for(capsys: pytest.CaptureFixture[str]) -> None:
    """4 rounds of 32 desktops, each a reset of 60 s and 15 steps of 3 s; an engine works meanwhile."""
    settings, options = ("experiment=osworld_7b_lora",), ("--tune", "lora")
    assert planned(capsys, *settings, *options)["seconds"]["desktops"] == pytest.approx(4 * (60 + 15 * 3))
    slow = planned(capsys, *settings, *options, "--reset-seconds", "100", "--step-seconds", "2")
    assert slow["seconds"]["desktops"] == pytest.approx(4 * (100 + 15 * 2))
    assert planned(capsys, *settings, *VLLM, *options)["seconds"]["desktops"] == 0
    few = planned(capsys, *settings, *VLLM, "env.desktops=2", *options, "--reset-seconds", "600")["seconds"]
    busy = few["prefill"] + few["decode"] + few["preparation"]
    assert few["desktops"] == pytest.approx(64 * (600 + 15 * 3) - busy)


def test_a_weight_sync_takes_time(capsys: pytest.CaptureFixture[str]) -> None:
    """All weights at 0.6 GB/s, or the adapters alone; the built-in sampler has none."""
    settings, options = ("experiment=osworld_7b_lora",), ("--tune", "lora")
    assert planned(capsys, *settings, *options)["seconds"]["sync"] == 0
    alone, merged = (
        planned(capsys, *settings, *VLLM, f"policy.engine.adapters={how}", *options)["seconds"]["sync"]
        for how in ("auto", "merged")
    )
    assert merged == pytest.approx(2 * 8_292_166_656 / 0.6e9)
    assert alone == pytest.approx(0.32e9 / 0.6e9, rel=0.02)


@pytest.mark.parametrize(
    ("experiment", "arguments"),
    [
        ("osworld_7b", ("--tune", "full", "--gpu", "h200")),
        ("osworld_7b_lora", ("--tune", "lora", "--gpu", "a100_80")),
        ("osworld_2b", ("--tune", "lora", "--gpu", "rtx_4090")),
    ],
)
def test_evaluations_cost_less_than_a_tenth_of_the_training(
    capsys: pytest.CaptureFixture[str], experiment: str, arguments: tuple[str, ...]
) -> None:
    found = planned(capsys, f"experiment={experiment}", *arguments)
    run, seconds = found["run"], found["seconds"]
    assert run["evaluation_episodes"] == 369
    assert run["training"] == pytest.approx(32 * seconds["total"])
    assert run["total"] == pytest.approx(run["training"] + run["evaluations"])
    assert 0 < run["evaluations_share"] < 0.1
    playing = sum(seconds[part] for part in ("prefill", "decode", "preparation", "desktops"))
    assert run["evaluations"] == pytest.approx(369 / 128 * playing)


def test_the_default_evaluations_are_named_in_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    """640 for pass@5, 1 + 3 per task before and after, 2 times 1 per task: more episodes than the training's 4,096."""
    overrides = ("experiment=osworld_7b_lora", "eval.every=12", "eval.greedy=true", "eval.final_episodes=3")
    assert main(["plan", *overrides, "expert.pass_k_file=null", "--tune", "lora"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("run: ")]
    assert "h for 4,330 episodes of evaluations" in line
    assert main(["plan", "--tasks", "-1", "2"]) == 2
    assert "--tasks, --reset-seconds, --step-seconds: expected numbers of at least 0" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--decode-speed", "--reset-seconds", "--step-seconds"])
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_are_finite(capsys: pytest.CaptureFixture[str], option: str, number: str) -> None:
    assert main(["plan", option, number]) == 2
    error = capsys.readouterr().err
    assert option in error
    assert number in error.partition(", got ")[2]


def test_a_cache_below_one_window_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """vLLM refuses to start then, after it has loaded the weights."""
    assert main(["plan", "policy=qwen3vl_8b", *VLLM, "--gpu", "h200"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("vLLM will not start: a prompt and response of the maximum length need 9.7 GB")
    assert "set policy.engine.kv_cache_gb=10 or more" in last
    assert main(["plan", "policy=qwen3vl_8b", *VLLM, "policy.engine.kv_cache_gb=10", "--gpu", "h200"]) == 0
    assert "will not start" not in capsys.readouterr().out


def test_decoding_reads_weights_and_cache() -> None:
    model = model_shape(known_model("ByteDance-Seed/UI-TARS-1.5-7B").config)
    read = 2 * (28 * 233_046_016 + 152_064 * 3584) + 8 * 1000 * 57_344
    assert decode_speed(model, gpu("h200"), 8, 1000, 2) == pytest.approx(8 * 0.5 * 4.8e12 / read)


def test_a_folder_and_the_shipped_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy = TransformersPolicy(small_checkpoint(), preset="compact")
    folder = policy.save(tmp_path / "random")
    parameters = sum(parameter.numel() for parameter in policy.model.parameters())
    assert planned(capsys, f"policy.checkpoint={folder}")["parameters"]["total"] == parameters
    assert planned(capsys)["best"] == "full"
    (folder / "preprocessor_config.json").unlink()
    assert main(["plan", f"policy.checkpoint={folder}"]) == 2
    assert "preprocessor_config.json: no such file" in capsys.readouterr().err


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "policy=uitars15_7b"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ByteDance-Seed/UI-TARS-1.5-7B: 8,292,166,656 parameters")
    assert any(line.startswith("full: training does not fit") for line in lines)
    assert any(line.startswith("choose: LoRA r=64, activation checkpointing") for line in lines)
    assert any(line.startswith("settings: policy.activation_checkpointing=true train.max_tokens=") for line in lines)
    assert main(["plan", "policy=uitars15_7b", "--gpu", "l40s", "--tune", "full"]) == 0
    assert "nothing fits: use more GPUs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu", "a100"], "unknown GPU 'a100' (did you mean 'a100_40' or 'a100_80'?)"),
        (["--gpu", "h20"], "unknown GPU 'h20' (did you mean 'h200'?)"),
        (["--gpus", "0"], "--gpus: expected a number above 0, got 0"),
        (["--mfu", "40"], "--mfu: expected a number above 0 and at most 1, got 40.0"),
        (["--screen", "1080p"], "--screen: expected WIDTHxHEIGHT in pixels, such as 1920x1080, got '1080p'"),
        (["policy.checkpoint=Qwen/Qwen2.5-VL-72B-Instruct"], "does not ship with the package"),
        (["policy.checkpoint=/no/such/folder"], "does not ship with the package"),
    ],
)
def test_bad_input(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert message in error
