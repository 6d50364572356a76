"""The local policy: from recordings to a checkpoint that acts, resumable."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sim_recordings import TASKS, recorded
from transformers import AutoTokenizer

from bepa_torchrl.policies.transformers.policy import load_policy
from osworld_gym.types import PromptContext, Screenshot
from recipes.tiny.checkpoint import file_hashes, read_manifest
from recipes.tiny_local import __main__ as program
from recipes.tiny_local import config
from recipes.tiny_local.config import SCREEN
from recipes.tiny_local.training import Cloning, Recipe, local_tokenizer, run

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _patches_of_the_simulated_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recordings of these tests have 128 x 128 pixels, a multiple of 2 x 8 and not of 2 x 10."""
    monkeypatch.setattr(config, "PATCH", 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recordings")
    recorded(path)
    return path


def test_a_few_steps_lower_the_loss_and_resuming_changes_nothing(folder: Path, tmp_path: Path) -> None:
    library = program.read_library(folder, TASKS, 2, (128, 128))
    tokenizer = local_tokenizer(library)
    recipe = Recipe(steps=12, restarts=(9, 11), shift=10, batch=4, grounding=3, words=8)
    whole = Cloning(tokenizer, library, recipe)
    losses = [whole.train_step()["loss"] for _ in range(12)]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3]), losses
    half = Cloning(tokenizer, library, recipe)
    for _ in range(5):
        half.train_step()
    half.save(tmp_path / "state.pt")
    resumed, lines = Cloning(tokenizer, library, recipe), []
    start = {name: weight.clone() for name, weight in resumed.model.state_dict().items()}
    run(resumed, tmp_path / "state.pt", log=lines.append)
    assert lines[0] == "resumed at step 5"
    end = resumed.model.state_dict()
    for name, weight in whole.model.state_dict().items():
        assert (end[name] - weight).norm() <= 1e-3 * (weight - start[name]).norm() + 1e-6, name


def test_the_learning_rate_falls_and_starts_again() -> None:
    recipe = Recipe(steps=40, restarts=(20, 30), learning_rate=1.0, decay=0.5, second_rate=0.4)
    # constant to step 10, then to zero at 20; from 0.4 to zero over the next ten, and again over the last ten
    rates = [recipe.rate(step) for step in (0, 10, 15, 19, 20, 25, 29, 30, 39)]
    assert rates == pytest.approx([1.0, 1.0, 0.5, 0.1, 0.4, 0.2, 0.04, 0.4, 0.04])
    # without a restart to zero at the end
    assert [Recipe(steps=10, restarts=(), learning_rate=1.0, decay=0.5).rate(step) for step in (5, 9)] == [1.0, 0.2]


def test_the_program_writes_a_checkpoint_that_acts_on_the_large_screen(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "SCREEN", (128, 128))  # the recordings' size
    suite = type("Few", (), {"tasks": TASKS})
    monkeypatch.setattr(program, "load_suite", lambda _: suite)
    out, state = tmp_path / "checkpoint", tmp_path / "state.pt"
    options = ["--recordings", str(folder), "--seeds", "2", "--steps", "2", "--out", str(out), "--state", str(state)]
    options += ["--episodes", "0"]
    assert program.main(options) == 0
    assert not state.exists()
    manifest = read_manifest(out)
    assert manifest["sha256"] == file_hashes(out)
    assert sum(path.stat().st_size for path in out.iterdir()) < 15e6
    policy = load_policy(out, preset="compact", max_new_tokens=8)
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert [len(tokenizer(str(number))["input_ids"]) for number in range(SCREEN[0])] == [1] * SCREEN[0]
    screen = Screenshot(pixels=torch.full((SCREEN[1], SCREEN[0], 3), 90, dtype=torch.uint8).numpy())
    (prompt,) = policy.render([PromptContext("Do it.", (screen.png,))])
    assert prompt is not None
    image = tokenizer.convert_tokens_to_ids("<|image_pad|>")
    assert int((prompt.tokens == image).sum()) == 40 * 22  # of 16 x 16 pixels each; 360 is resized to 352
    (response,) = policy.sample([prompt], [(0, 1)])
    assert response.text is not None


def test_missing_recordings_are_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--recordings", str(tmp_path), "--seeds", "1"]) == 2
    assert "recordings of known tasks, got none: record them" in capsys.readouterr().err
