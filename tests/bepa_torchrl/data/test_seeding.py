"""Seeds: fixed values, which depend on every integer of the key; streams and keys are independent."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from bepa_torchrl.data.seeding import Stream, derive_seed, desktop_seed, episode_key, token_uniforms

GOLDEN = (1976665982, 1475391578)
UNIFORMS = [0.26664827230402965, 0.06909062556722789]


def test_seeds_are_what_they_were_in_saved_runs() -> None:
    """Measured 2026-11-21; a change here means that no older run can be resumed or repeated."""
    assert derive_seed(0, Stream.ROLLOUT) == GOLDEN[0]
    assert derive_seed(3, Stream.CACHE_REFRESH, 2**64 - 1, 5) == GOLDEN[1]
    assert episode_key(0, Stream.ROLLOUT, 4, 3, 2) == (GOLDEN[0], 4, 3, 2)
    assert token_uniforms((1, 2, 3), 2) == pytest.approx(UNIFORMS, abs=1e-15)
    assert [stream.value for stream in Stream] == list(range(1, 15))


def test_every_part_of_a_key_counts() -> None:
    keys = [(), (0,), (0, 0), (1,), (1, 0), (0, 1), (2**40,)]
    seeds = {derive_seed(seed, stream, *key) for seed in (0, 1) for stream in Stream for key in keys}
    assert len(seeds) == 2 * len(Stream) * len(keys)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_streams_are_independent() -> None:
    """For the same keys: no two streams share a seed, and their draws are uncorrelated (|r| < 4.5/sqrt(n))."""
    n = 2000
    draws = np.array([[derive_seed(7, stream, i, 0) for i in range(n)] for stream in Stream])
    assert len(np.unique(draws)) > draws.size - 5  # by chance 0.13 pairs are equal
    correlation = np.corrcoef(draws)
    assert np.abs(correlation[~np.eye(len(Stream), dtype=bool)]).max() < 4.5 / n**0.5


def test_draws_of_neighbouring_keys_are_uniform_and_uncorrelated() -> None:
    numbers = itertools.product(range(4), range(8), range(8))
    episodes = [episode_key(0, Stream.ROLLOUT, *number) for number in numbers]
    draws = np.stack([token_uniforms((*key, 0), 64) for key in episodes])
    assert abs(draws.mean() - 0.5) < 4 * (1 / 12 / draws.size) ** 0.5
    correlation = np.corrcoef(draws[:, 0], np.roll(draws[:, 0], 1))[0, 1]
    assert abs(correlation) < 4.5 / len(episodes) ** 0.5


def test_what_kind_of_episode_it_is_changes_desktop_and_sampling() -> None:
    """The same numbers of iteration, task and slot in training, evaluation and self-rollouts."""
    kinds = (Stream.ROLLOUT, Stream.EVALUATION, Stream.SELF_ROLLOUT, Stream.TINY_EVALUATION)
    keys = [episode_key(0, stream, 0, 1, 2) for stream in kinds]
    assert len({desktop_seed(key) for key in keys}) == len(kinds)
    for one, other in itertools.combinations(keys, 2):
        assert not np.isclose(token_uniforms(one, 8), token_uniforms(other, 8)).any()


def test_a_group_shares_its_desktop_seed() -> None:
    group = [episode_key(0, Stream.ROLLOUT, 5, 1, slot) for slot in range(4)]
    assert len({desktop_seed(key[:-1]) for key in group}) == 1
    assert len({desktop_seed(key) for key in group}) == 4


def test_uniforms_do_not_depend_on_their_count() -> None:
    assert (token_uniforms((1, 2, 3), 5) == token_uniforms((1, 2, 3), 50)[:5]).all()
    assert not np.allclose(token_uniforms((1, 2), 5), token_uniforms((1, 2, 0), 5))
    assert not np.allclose(token_uniforms((1, 2, 3), 5), token_uniforms((1, 3, 2), 5))


def test_negative_integers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"integers >= 0; got \(-1, 2\)"):
        derive_seed(-1, Stream.ROLLOUT, 2)
    with pytest.raises(ValueError, match=r"integers >= 0; got \(1, -2\)"):
        token_uniforms((1, -2), 5)
