"""The losses on a small actor (a table of bigram logits), against values worked out by hand, autograd and TorchRL."""

import math

import pytest
import torch
from tensordict import TensorDict, lazy_stack
from tensordict.nn import TensorDictModuleBase
from torchrl.modules.llm.policies.common import LogProbDistribution
from torchrl.objectives.llm import GRPOLoss

from bepa_torchrl import functional as F
from bepa_torchrl.data import keys
from bepa_torchrl.data.step_rows import row_list
from bepa_torchrl.losses import BEPALoss, LUFFYLoss, RLSFTLoss, SFTLoss, merge_outputs

VOCABULARY = 7


class BigramActor(TensorDictModuleBase):
    """log pi(token | token before it) from a table of logits; responses left-padded, NaN in the padding."""

    def __init__(self):
        super().__init__()
        self.in_keys = [keys.PROMPT_TOKENS, keys.RESPONSE_TOKENS]
        self.out_keys = [keys.OLD_LOG_PROB]
        generator = torch.Generator().manual_seed(3)
        self.table = torch.nn.Parameter(torch.randn(VOCABULARY, VOCABULARY, generator=generator))

    def row_log_prob(self, row):
        response = row[keys.RESPONSE_TOKENS]
        before = torch.cat([row[keys.PROMPT_TOKENS][-1:], response[:-1]])
        return self.table.log_softmax(-1)[before, response]

    def get_dist(self, tensordict, logits_key="logits"):
        assert logits_key == "logits"
        per_row = [self.row_log_prob(row) for row in tensordict.unbind(0)]
        width = max(x.shape[0] for x in per_row)
        pad = [width - x.shape[0] for x in per_row]
        log_probs = [torch.cat([x.new_full((p,), math.nan), x]) for p, x in zip(pad, per_row, strict=True)]
        mask = torch.arange(width)[None] >= torch.tensor(pad)[:, None]
        dist = LogProbDistribution(torch.stack(log_probs), mask)
        entropies = [self.row_entropy(row) for row in tensordict.unbind(0)]
        rows = zip(pad, entropies, strict=True)
        dist.token_entropy = torch.stack([torch.cat([x.new_full((p,), math.nan), x]) for p, x in rows])
        return dist

    def row_entropy(self, row):
        response = row[keys.RESPONSE_TOKENS]
        before = torch.cat([row[keys.PROMPT_TOKENS][-1:], response[:-1]])
        return F.token_entropy(self.table[before])


def make_row(actor, response, *, group=0, slot=0, advantage=1.0, ratio=1.0, off=False):
    """One ragged row whose old log-probabilities give ``ratio`` (a number, or one per token) at the actor's weights."""
    row = TensorDict({keys.PROMPT_TOKENS: torch.tensor([5, slot]), keys.RESPONSE_TOKENS: torch.tensor(response)})
    old = actor.row_log_prob(row).detach().float() - torch.as_tensor(ratio).log()
    return row.update(
        {
            keys.GROUP_ID: torch.tensor(group),
            keys.SLOT: torch.tensor(slot),
            keys.TASK_ID: f"task-{group}",
            keys.OLD_LOG_PROB: old,
            keys.BASE_LOG_PROB: torch.full_like(old, math.nan) if off else old + 0.5,
            keys.PLAN_LOG_PROB: torch.full_like(old, math.nan) if off or group == 2 else old + 0.2,
            keys.ADVANTAGE: torch.tensor([[advantage]]),
            keys.OFF_POLICY: torch.tensor([off]),
            keys.RETURN: torch.tensor([float(advantage > 0)]),
        }
    )


def stamped(loss, rows):
    rows = lazy_stack(rows)
    rows.set(keys.DENOMINATOR, loss.denominators(rows))
    if getattr(loss, "anchor_weight", 0):
        rows.set(keys.ANCHOR, loss.anchor_weights(rows))
    if getattr(loss, "distill_weight", 0):
        rows.set(keys.DISTILL, loss.distill_weights(rows))
    return rows


@pytest.fixture
def actor():
    return BigramActor()


def toy(actor, **options):
    """Group 1: 2 and 6 tokens, group 2: 10 and 10, A = (+1, -1)."""
    lengths = [(1, 0, 2, 1.0), (1, 1, 6, -1.0), (2, 0, 10, 1.0), (2, 1, 10, -1.0)]
    return [
        make_row(actor, [i % VOCABULARY for i in range(n)], group=g, slot=s, advantage=a, **options)
        for g, s, n, a in lengths
    ]


def test_in_keys_and_out_keys_of_the_default_loss(actor):
    loss = BEPALoss(actor)
    assert loss.clip_epsilon_low.item() == pytest.approx(0.2)
    assert loss.clip_epsilon_high.item() == pytest.approx(0.3)
    assert loss.in_keys == [
        *actor.in_keys,
        keys.ADVANTAGE,
        keys.OLD_LOG_PROB,
        keys.DENOMINATOR,
        keys.OFF_POLICY,
    ]
    out = loss(stamped(loss, toy(actor)))
    assert out.batch_size == torch.Size([])
    assert set(loss.out_keys) == set(out.to_tensordict().keys())
    assert out.loss_sft is None
    assert all(value.shape == () for value in out.to_tensordict().values())
    assert [name for name, value in out.to_tensordict().items() if value.requires_grad] == ["loss_objective"]


@pytest.mark.parametrize(
    ("aggregation", "options", "want"),
    [
        ("group", {}, 0.25),
        ("token", {}, 4 / 28),
        ("sequence", {}, 0.0),
        ("sum_norm", {"max_length": 10}, 0.1),
        ("seq-mean-token-sum", {}, 1.0),  # (-2 + 6 - 10 + 10) / 4
        ("seq-mean-token-mean", {}, 0.0),  # (-1 + 1 - 1 + 1) / 4
    ],
)
def test_golden_aggregation(actor, aggregation, options, want):
    loss = BEPALoss(actor, aggregation=aggregation, **options)
    assert loss(stamped(loss, toy(actor))).loss_objective.item() == pytest.approx(want, abs=1e-6)


def test_golden_negative_advantage(actor):
    """A = -1, r = 5: loss +5, with dual clip 3: +3. The mean of two equal tokens."""
    rows = [make_row(actor, [1, 2], advantage=-1.0, ratio=5.0)]
    for dual, want in ((None, 5.0), (3.0, 3.0)):
        loss = BEPALoss(actor, dual_clip=dual)
        assert loss(stamped(loss, rows)).loss_objective.item() == pytest.approx(want, rel=1e-5)


def test_mixed_ratios_by_hand(actor):
    """Tokens: A=2 with r = 2 (clipped to 1.3) and 0.5; A=-1 with r = 0.5 (clipped to 0.8), 1 and 5. Z = 5, one group.

    -(2*1.3 + 2*0.5) = -3.6; 0.8 + 1 + 5 = 6.8; (6.8 - 3.6) / 5 = 0.64. Clipped are r = 2 with A = 2 and
    r = 0.5 with A = -1; r = 0.5 with A = 2 and r = 5 with A = -1 lie outside, but the clip does not bind there.
    """
    rows = [
        make_row(actor, [1, 2], slot=0, advantage=2.0, ratio=[2.0, 0.5]),
        make_row(actor, [3, 3, 4], slot=1, advantage=-1.0, ratio=[0.5, 1.0, 5.0], off=True),
    ]
    loss = BEPALoss(actor)
    out = loss(stamped(loss, rows))
    assert out.loss_objective.item() == pytest.approx(0.64, rel=1e-5)
    assert out.clip_fraction.item() == pytest.approx(2 / 5)
    assert out.off_policy_fraction.item() == pytest.approx(0.6)
    assert out.ratio_mean_on_policy.item() == pytest.approx(1.25, rel=1e-5)
    assert out.ratio_max_on_policy.item() == pytest.approx(2.0, rel=1e-5)
    assert out.ratio_mean_off_policy.item() == pytest.approx(6.5 / 3, rel=1e-5)
    assert out.ratio_max_off_policy.item() == pytest.approx(5.0, rel=1e-5)
    assert out.ESS.item() == pytest.approx(9.0**2 / (5 * (4 + 0.25 + 0.25 + 1 + 25)), rel=1e-5)
    log2 = math.log(2)
    assert out.kl_approx.item() == pytest.approx(((2 - 1 - log2) + (0.5 - 1 + log2)) / 2, abs=1e-6)
    logs = [actor.row_log_prob(row) for row in rows]
    assert out.log_prob_on_policy.item() == pytest.approx(logs[0].mean().item(), rel=1e-5)
    assert out.log_prob_off_policy.item() == pytest.approx(logs[1].mean().item(), rel=1e-5)


def test_one_ratio_per_step(actor):
    """unit=step: r = 0.5 * 4 = 2, A = 1 clips to 1.3 for the whole row; r = 1, A = -1. Two rows of one group: Z = 2."""
    rows = [
        make_row(actor, [1, 2], slot=0, advantage=1.0, ratio=[0.5, 4.0]),
        make_row(actor, [3, 3, 4], slot=1, advantage=-1.0),
    ]
    loss = BEPALoss(actor, unit="step")
    out = loss(stamped(loss, rows))
    assert out.loss_objective.item() == pytest.approx((-1.3 + 1.0) / 2, rel=1e-5)
    assert out.units.item() == 2
    assert out.clip_fraction.item() == 0.5


def test_the_sums_of_half_precision_log_probs_are_not_rounded():
    """A step of 300 tokens at the old weights has ratio 1; a sum in bfloat16 is rounded to 2 or 4 nats."""

    class HalfActor(BigramActor):
        def row_log_prob(self, row):
            return super().row_log_prob(row).to(torch.bfloat16)

    half = HalfActor()
    rows = [make_row(half, [i % VOCABULARY for i in range(300)], slot=s, advantage=1.0 - 2 * s) for s in range(2)]
    loss = BEPALoss(half, unit="step")
    out = loss(stamped(loss, rows))
    assert out.ratio_mean_on_policy.item() == pytest.approx(1.0, abs=1e-4)
    assert out.loss_objective.dtype == torch.float32
    supervised = SFTLoss(half)
    mean = torch.cat([half.row_log_prob(row).double() for row in rows]).mean().item()
    assert supervised(stamped(supervised, rows)).loss_sft.item() == pytest.approx(-mean, rel=1e-5)


def test_one_ratio_per_response_by_hand(actor):
    """GSPO with its clip: three responses of an episode each, whose token ratios have a geometric mean s.

    Row 0, A = 1: (1.0002 * 1.0004)^(1/2) = 1.0003 is not clipped, so -1.0003. Row 1, A = 1: (2 * 8)^(1/2) = 4 is
    clipped to 1.0004. Row 2, A = -2: (0.125)^(1/3) = 0.5 is clipped to 0.9997, so 1.9994. The mean over responses is
    (-1.0003 - 1.0004 + 1.9994) / 3.
    """
    actor.double()
    rows = [
        make_row(actor, [1, 2], slot=0, advantage=1.0, ratio=[1.0002, 1.0004]),
        make_row(actor, [3, 4], slot=1, advantage=1.0, ratio=[2.0, 8.0]),
        make_row(actor, [3, 3, 4], slot=2, advantage=-2.0, ratio=[0.5, 0.25, 1.0]),
    ]
    clip = (3e-4, 4e-4)
    loss = BEPALoss(actor, ratio="sequence", aggregation="seq-mean-token-mean", clip_epsilon=clip)
    out = loss(stamped(loss, rows))
    assert out.loss_objective.item() == pytest.approx((-1.0003 - 1.0004 + 1.9994) / 3, abs=2e-7)
    assert out.clip_fraction.item() == pytest.approx(5 / 7)  # all tokens of the clipped responses
    assert out.ratio_max_on_policy.item() == pytest.approx(4.0, rel=1e-5)
    by_hand = -1.0003 * actor.row_log_prob(rows[0]).mean() / 3  # d s / d log p = s / 2 for each of the two tokens
    torch.testing.assert_close(gradient(actor, out.loss_objective), gradient(actor, by_hand), rtol=1e-5, atol=1e-8)


def test_at_ratio_one_both_ratios_have_the_same_gradient(actor):
    token, sequence = BEPALoss(actor), BEPALoss(actor, ratio="sequence")
    batch = stamped(token, toy(actor))
    a, b = token(batch), sequence(batch)
    torch.testing.assert_close(a.loss_objective, b.loss_objective)
    torch.testing.assert_close(gradient(actor, a.loss_objective), gradient(actor, b.loss_objective))


def gradient(actor, value):
    return torch.autograd.grad(value, actor.table)[0]


def test_gradient_against_the_hand_formula(actor):
    """d loss / d log p = -r A / Z where the clip does not bind, 0 where it binds."""
    rows = [
        make_row(actor, [1, 2], slot=0, advantage=2.0, ratio=[2.0, 0.5]),
        make_row(actor, [3, 3, 4], slot=1, advantage=-1.0, ratio=[0.5, 1.0, 5.0]),
    ]
    loss = BEPALoss(actor)
    got = gradient(actor, loss(stamped(loss, rows)).loss_objective)
    weights = [torch.tensor([0.0, -2.0 * 0.5]), torch.tensor([0.0, 1.0 * 1.0, 1.0 * 5.0])]
    by_hand = sum((w * actor.row_log_prob(row)).sum() / 5 for w, row in zip(weights, rows, strict=True))
    torch.testing.assert_close(got, gradient(actor, by_hand))


def test_equal_to_the_stock_loss_where_they_must_agree(actor):
    """token aggregation = TorchRL's token_mean on a complete batch, values and gradients."""
    rows = [
        make_row(actor, [1, 2], slot=0, advantage=2.0, ratio=[2.0, 0.9]),
        make_row(actor, [3, 3, 4, 6], slot=1, advantage=-1.0, ratio=[0.5, 1.0, 5.0, 1.1]),
    ]
    ours = BEPALoss(actor, aggregation="token")
    stock = GRPOLoss(actor, clip_epsilon=(0.2, 0.3), entropy_bonus=False)
    stock.set_keys(action=keys.RESPONSE_TOKENS, sample_log_prob=keys.OLD_LOG_PROB)
    batch = stamped(ours, rows)
    a, b = ours(batch), stock(batch)
    torch.testing.assert_close(a.loss_objective, b.loss_objective)
    torch.testing.assert_close(a.ESS, b.ESS)
    torch.testing.assert_close(gradient(actor, a.loss_objective), gradient(actor, b.loss_objective))


def mixed_batch(actor):
    generator = torch.Generator().manual_seed(11)
    rows = []
    for group in range(3):
        for slot in range(3):
            for _ in range(1 + (group + slot) % 3):
                n = int(torch.randint(1, 9, (), generator=generator))
                response = torch.randint(0, VOCABULARY, (n,), generator=generator).tolist()
                ratio = (torch.rand(n, generator=generator) + 0.5).tolist()
                advantage = [2.0, -1.0, 0.0][(slot + group) % 3]
                off = slot == 0 and group != 1
                rows.append(
                    make_row(actor, response, group=group, slot=slot, advantage=advantage, ratio=ratio, off=off)
                )
    return rows


LOSSES = {
    "bepa": BEPALoss,
    "bepa-token": lambda actor: BEPALoss(actor, aggregation="token"),
    "bepa-sequence": lambda actor: BEPALoss(actor, aggregation="sequence"),
    "bepa-step": lambda actor: BEPALoss(actor, unit="step"),
    "bepa-sequence-ratio": lambda actor: BEPALoss(actor, ratio="sequence"),
    "bepa-anchor": lambda actor: BEPALoss(actor, anchor_weight=0.5),
    "bepa-kl-entropy": lambda actor: BEPALoss(actor, kl_weight=0.5, entropy_weight=0.25),
    "bepa-distill": lambda actor: BEPALoss(actor, distill_weight=0.5),
    "luffy-kl": lambda actor: LUFFYLoss(actor, kl_weight=0.5),
    "rl_sft-entropy": lambda actor: RLSFTLoss(actor, entropy_weight=0.5),
    "bepa-step-anchor": lambda actor: BEPALoss(actor, unit="step", anchor_weight=0.5),
    "luffy": LUFFYLoss,
    "luffy-anchor": lambda actor: LUFFYLoss(actor, anchor_weight=0.5),
    "luffy-released": lambda actor: LUFFYLoss(actor, preset="released", max_length=24),
    "rl_sft": RLSFTLoss,
    "sft": SFTLoss,
}


def total(out):
    return sum(value for name, value in out.to_tensordict().items() if name.startswith("loss_"))


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("sizes", [[1] * 30, [4] * 8, [7, 1, 20]])
def test_any_split_into_micro_batches_gives_the_same_loss_and_gradient(actor, name, sizes):
    loss = LOSSES[name](actor.double())
    batch = stamped(loss, mixed_batch(actor))
    whole = loss(batch)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    parts = [batch[a : a + n] for a, n in zip(starts, sizes, strict=True) if a < len(batch)]
    outs = [loss(part) for part in parts]
    summed = sum(total(out) for out in outs)
    assert summed.item() == pytest.approx(total(whole).item(), rel=1e-6)
    torch.testing.assert_close(gradient(actor, summed), gradient(actor, total(whole)), rtol=1e-6, atol=1e-9)
    assert merge_outputs(outs) == pytest.approx(merge_outputs([whole]), rel=1e-5)


def test_the_sample_size_of_micro_batches_with_ratios_beyond_the_bound(actor):
    """e^25 and e^21 count as e^20 each, so that the effective size is the whole, 2 of 2, together and merged."""
    loss = BEPALoss(actor)
    batch = stamped(loss, [make_row(actor, [1], slot=slot, ratio=math.exp(25 - 4 * slot)) for slot in range(2)])
    assert loss(batch).ESS.item() == pytest.approx(1.0, rel=1e-5)
    assert merge_outputs([loss(batch[:1]), loss(batch[1:])])["ESS"] == pytest.approx(1.0, rel=1e-5)


def test_luffy_by_hand(actor):
    """Off: -f(p) A per token, unclipped, with NaN old log-probabilities; on: clipped GRPO. One group, Z = 5."""
    off = make_row(actor, [1, 2], slot=0, advantage=2.0, off=True)
    off[keys.OLD_LOG_PROB] = torch.full((2,), math.nan)
    on = make_row(actor, [3, 3, 4], slot=1, advantage=-1.0, ratio=[0.5, 1.0, 5.0])
    loss = LUFFYLoss(actor)
    out = loss(stamped(loss, [off, on]))
    p = actor.row_log_prob(off).exp()
    by_hand = (-2.0 * (p / (p + 0.1)).sum() + 0.8 + 1.0 + 5.0) / 5
    assert out.loss_objective.item() == pytest.approx(by_hand.item(), rel=1e-5)
    assert out.clip_fraction.item() == pytest.approx(1 / 5)  # r = 0.5 with A = -1
    assert out.ratio_mean_off_policy.item() == 1.0
    # gradient of the shaped branch: -A gamma p / (p + gamma)^2 / Z per log-probability; of the other -r A / Z
    weights = (-2.0 * 0.1 * p / (p + 0.1) ** 2).detach(), torch.tensor([0.0, 1.0, 5.0])
    formula = ((weights[0] * p.log()).sum() + (weights[1] * actor.row_log_prob(on)).sum()) / 5
    torch.testing.assert_close(gradient(actor, out.loss_objective), gradient(actor, formula))


def test_luffy_released_clips_nothing(actor):
    rows = [make_row(actor, [1, 2], advantage=1.0, ratio=5.0), make_row(actor, [3], slot=1, advantage=-1.0)]
    loss = LUFFYLoss(actor, preset="released", max_length=8)
    out = loss(stamped(loss, rows))
    assert out.loss_objective.item() == pytest.approx((-5.0 - 5.0 + 1.0) / (2 * 8), rel=1e-5)
    assert out.clip_fraction.item() == 0.0
    assert loss.preset.advantage_std == "none"


def test_rl_sft_adds_cross_entropy_of_the_experts_rows(actor):
    expert = [make_row(actor, [1, 2], slot=6, off=True), make_row(actor, [4], group=9, off=True)]
    for row in expert:
        row[keys.OLD_LOG_PROB] = torch.full_like(row[keys.OLD_LOG_PROB], math.nan)
        row[keys.ADVANTAGE] = torch.full((1, 1), 100.0)  # must not matter
    sampled = toy(actor)
    loss = RLSFTLoss(actor, sft_weight=0.5)
    out = loss(stamped(loss, [sampled[0], expert[0], *sampled[1:], expert[1]]))
    logs = torch.cat([actor.row_log_prob(row) for row in expert])
    assert out.loss_objective.item() == pytest.approx(0.25, abs=1e-6)
    assert out.loss_sft.item() == pytest.approx(-0.5 * logs.mean().item(), rel=1e-5)
    torch.testing.assert_close(gradient(actor, out.loss_sft), gradient(actor, -0.5 * logs.mean()))


def test_rl_sft_without_an_expert_row_is_grpo_and_exactly_zero(actor):
    ours, grpo = RLSFTLoss(actor), BEPALoss(actor)
    rows = stamped(ours, toy(actor))
    out = ours(rows)
    assert out.loss_sft.item() == 0.0
    assert not gradient(actor, out.loss_sft).any()
    assert out.loss_objective.item() == grpo(stamped(grpo, toy(actor))).loss_objective.item()


def test_rl_sft_with_experts_rows_only(actor):
    loss = RLSFTLoss(actor)
    rows = [make_row(actor, [1, 2], off=True)]
    out = loss(stamped(loss, rows))
    assert out.loss_objective.item() == 0.0
    assert out.loss_sft.item() == pytest.approx(-actor.row_log_prob(rows[0]).mean().item(), rel=1e-5)


def anchor_batch(actor):
    """Group 0: a success and a failure; 1: an injected success; 2: only successes, A = 0; 3: only failures."""
    rows = [
        make_row(actor, [1, 2], group=0, slot=0, advantage=1.0),
        make_row(actor, [3, 3, 4], group=0, slot=1, advantage=-1.0),
        make_row(actor, [5, 1], group=1, slot=0, advantage=1.0, off=True),
        make_row(actor, [2], group=1, slot=1, advantage=-1.0),
        make_row(actor, [6, 6], group=2, slot=0, advantage=0.0),
        make_row(actor, [0, 4], group=2, slot=1, advantage=0.0),
        make_row(actor, [1], group=3, slot=0, advantage=0.0),
    ]
    for row in rows[4:6]:
        row[keys.RETURN] = torch.ones(1)
    return rows


@pytest.mark.parametrize("unit", ["token", "step"])
def test_the_anchor_is_the_cross_entropy_of_own_successes(actor, unit):
    """0.3 times the mean of -log p over the 6 tokens of the rows 0, 4 and 5; the rest of the loss is unchanged."""
    rows = anchor_batch(actor)
    loss, without = BEPALoss(actor, unit=unit, anchor_weight=0.3), BEPALoss(actor, unit=unit)
    out = loss(stamped(loss, rows))
    by_hand = -0.3 * torch.cat([actor.row_log_prob(rows[i]) for i in (0, 4, 5)]).sum() / 6
    torch.testing.assert_close(out.loss_anchor, by_hand)
    torch.testing.assert_close(gradient(actor, out.loss_anchor), gradient(actor, by_hand))
    assert out.units_anchor.item() == (6 if unit == "token" else 3)
    assert out.loss_objective.item() == without(stamped(without, rows)).loss_objective.item()


def test_an_anchor_without_a_success_is_exactly_zero(actor):
    loss = BEPALoss(actor, anchor_weight=1.0)
    out = loss(stamped(loss, anchor_batch(actor)[2:4]))
    assert (out.loss_anchor.item(), out.units_anchor.item()) == (0.0, 0.0)
    assert not gradient(actor, out.loss_anchor).any()


def test_an_impossible_token_outside_of_the_anchor_is_not_in_it(actor):
    """log p of token 3 after token 1 is -inf, in the failure: the ratio is clamped, and 0 * -inf would be NaN."""
    rows = anchor_batch(actor)[:2]
    with torch.no_grad():
        actor.table[1, 3] = -math.inf
    loss = BEPALoss(actor, anchor_weight=0.3)
    out = loss(stamped(loss, rows))
    by_hand = -0.3 * actor.row_log_prob(rows[0]).sum() / 2
    torch.testing.assert_close(out.loss_anchor, by_hand)
    assert math.isfinite(out.loss_objective.item())


def test_a_loss_without_an_anchor_reads_and_returns_none(actor):
    loss = BEPALoss(actor)
    out = loss(stamped(loss, toy(actor)))
    assert out.loss_anchor is None
    assert out.units_anchor is None
    assert keys.ANCHOR not in loss.in_keys


def test_the_divergence_from_the_base_by_hand(actor):
    """d = ln 2 and -ln 2 on the two own rows: k3 = 1 - ln 2 and ln 2 - 1/2; Z = 5, the injected row counts in it."""
    own, other = make_row(actor, [1, 2], slot=0), make_row(actor, [3], slot=1, advantage=-1.0)
    own[keys.BASE_LOG_PROB] = actor.row_log_prob(own).detach() + math.log(2)
    other[keys.BASE_LOG_PROB] = actor.row_log_prob(other).detach() - math.log(2)
    loss, without = BEPALoss(actor, kl_weight=0.1), BEPALoss(actor)
    rows = [own, other, make_row(actor, [4, 4], slot=2, off=True)]
    out = loss(stamped(loss, rows))
    total_k3 = 2 * (1 - math.log(2)) + (math.log(2) - 0.5)
    assert out.loss_kl_to_ref.item() == pytest.approx(0.1 * total_k3 / 5, rel=1e-5)
    assert out.kl_to_ref.item() == pytest.approx(total_k3 / 3, rel=1e-5)
    assert out.loss_objective.item() == without(stamped(without, rows)).loss_objective.item()
    assert loss.rows_with_terms(lazy_stack(rows)).tolist() == [True, True, False]
    # d k3 / d log p = 1 - exp(d): -1 where the base is twice as likely, 1/2 where it is half as likely
    by_hand = 0.1 * (-actor.row_log_prob(own).sum() + 0.5 * actor.row_log_prob(other).sum()) / 5
    torch.testing.assert_close(gradient(actor, out.loss_kl_to_ref), gradient(actor, by_hand))


def test_the_divergence_is_that_of_torchrl(actor):
    """TorchRL's GRPOLoss with ``kl_to_ref_coeff``: the token mean over rows of one length."""
    rows = [make_row(actor, [1, 2, 6], slot=0, advantage=1.0), make_row(actor, [3, 0, 5], slot=1, advantage=-1.0)]
    theirs = GRPOLoss(actor, clip_epsilon=(0.2, 0.3), entropy_bonus=False, kl_to_ref_coeff=0.3)
    names = {"action": keys.RESPONSE_TOKENS, "sample_log_prob": keys.OLD_LOG_PROB, "ref_log_probs": keys.BASE_LOG_PROB}
    theirs.set_keys(**names)
    ours = BEPALoss(actor, aggregation="token", kl_weight=0.3)
    batch = lazy_stack([row.set(keys.ADVANTAGE, row[keys.ADVANTAGE]) for row in rows])
    want, out = theirs(batch), ours(stamped(ours, rows))
    assert out.loss_kl_to_ref.item() == pytest.approx(want.loss_kl_to_ref.item(), rel=1e-5)
    assert out.kl_to_ref.item() == pytest.approx(want.kl_to_ref.item(), rel=1e-5)


def test_the_entropy_bonus_by_hand(actor):
    """Minus 0.2 times the entropies of the 3 own tokens / Z = 4; ln 7 each, without a gradient, for a uniform table."""
    own = [make_row(actor, [1, 2]), make_row(actor, [3], slot=1, advantage=-1.0)]
    rows = [*own, make_row(actor, [4], slot=2, off=True)]
    loss = BEPALoss(actor, entropy_weight=0.2)
    found = gradient(actor, loss(stamped(loss, rows)).loss_entropy)
    by_hand = -0.2 * sum(actor.row_entropy(row).sum() for row in own) / 4
    torch.testing.assert_close(found, gradient(actor, by_hand))
    assert found.any()
    with torch.no_grad():
        actor.table.zero_()
    out = loss(stamped(loss, rows))
    assert out.loss_entropy.item() == pytest.approx(-0.2 * 3 * math.log(7) / 4, rel=1e-5)
    assert out.entropy.item() == pytest.approx(math.log(7), rel=1e-5)
    assert gradient(actor, out.loss_entropy).abs().max().item() == pytest.approx(0.0, abs=1e-7)


def test_an_actor_without_a_differentiable_entropy_is_named(actor):
    get_dist = actor.get_dist

    def without_entropy(rows, logits_key):
        dist = get_dist(rows, logits_key)
        del dist.token_entropy
        return dist

    actor.get_dist = without_entropy
    loss = BEPALoss(actor, entropy_weight=0.2)
    with pytest.raises(ValueError, match=r"token_entropy \[1, 2\] with a gradient .* got none"):
        loss(stamped(loss, [make_row(actor, [1, 2])]))


def test_a_base_log_prob_that_is_missing_or_not_finite_is_named(actor):
    loss = BEPALoss(actor, kl_weight=0.1)
    row = make_row(actor, [1, 2])
    row[keys.BASE_LOG_PROB] = torch.full((2,), math.nan)
    with pytest.raises(ValueError, match=r"'base'.* must be finite"):
        loss(stamped(loss, [row]))
    with pytest.raises(KeyError, match="base"):
        loss(stamped(loss, [row.exclude(keys.BASE_LOG_PROB)]))


def test_plan_distillation_by_hand(actor):
    """beta 5, differences ln 3 / 5 and -ln 3 / 5: gates 3/4 and 1/4; a mean over the 3 tokens of rows with a plan."""
    likelier, rarer = make_row(actor, [1, 2]), make_row(actor, [3], slot=1, advantage=-1.0)
    without, injected = make_row(actor, [4, 4], group=2), make_row(actor, [5], slot=2, off=True)
    difference = math.log(3) / 5
    likelier[keys.PLAN_LOG_PROB] = actor.row_log_prob(likelier).detach() + difference
    rarer[keys.PLAN_LOG_PROB] = actor.row_log_prob(rarer).detach() - difference
    loss = BEPALoss(actor, distill_weight=0.3)
    rows = [likelier, rarer, without, injected]
    assert loss.rows_with_terms(lazy_stack(rows)).tolist() == [True, True, False, False]
    out = loss(stamped(loss, rows))
    assert out.loss_distill.item() == pytest.approx(0.3 * (2 * 0.75 - 0.25) * difference / 3, rel=1e-4)
    assert out.units_distill.item() == 3
    assert out.distill_gate.item() == pytest.approx((2 * 0.75 + 0.25) / 3, rel=1e-5)
    by_hand = -0.3 * (0.75 * actor.row_log_prob(likelier).sum() + 0.25 * actor.row_log_prob(rarer).sum()) / 3
    torch.testing.assert_close(gradient(actor, out.loss_distill), gradient(actor, by_hand))


def test_a_batch_without_plans_has_no_distillation(actor):
    loss, plain = BEPALoss(actor, distill_weight=0.3), BEPALoss(actor)
    rows = [make_row(actor, [1, 2], group=2), make_row(actor, [3], group=2, slot=1, advantage=-1.0)]
    out, without = loss(stamped(loss, rows)), plain(stamped(plain, rows))
    assert (out.loss_distill.item(), out.units_distill.item()) == (0.0, 0.0)
    assert math.isnan(out.distill_gate.item())
    assert out.loss_objective.item() == without.loss_objective.item()
    assert not loss.rows_with_terms(lazy_stack(rows)).any()


def test_sft_needs_no_advantage(actor):
    rows = [make_row(actor, [1, 2, 6]), make_row(actor, [4])]
    rows = [row.exclude(keys.ADVANTAGE, keys.OLD_LOG_PROB, keys.OFF_POLICY) for row in rows]
    loss = SFTLoss(actor)
    out = loss(stamped(loss, rows))
    logs = torch.cat([actor.row_log_prob(row) for row in rows])
    assert out.loss_sft.item() == pytest.approx(-logs.mean().item(), rel=1e-5)
    assert out.loss_sft.item() == pytest.approx(F.cross_entropy(logs[None], torch.ones(1, 4) > 0).item(), rel=1e-5)
    torch.testing.assert_close(gradient(actor, out.loss_sft), gradient(actor, -logs.mean()))


def test_zero_advantages_give_a_zero_loss_and_a_zero_gradient(actor):
    rows = [make_row(actor, [1, 2], advantage=0.0, ratio=3.0), make_row(actor, [3], slot=1, advantage=0.0)]
    loss = BEPALoss(actor)
    out = loss(stamped(loss, rows))
    assert out.loss_objective.item() == 0.0
    assert not gradient(actor, out.loss_objective).any()


def test_a_step_up_the_gradient_makes_the_good_response_likelier(actor):
    good, bad = make_row(actor, [1, 2], advantage=1.0), make_row(actor, [3, 4], slot=1, advantage=-1.0)
    loss = BEPALoss(actor)
    before = [actor.row_log_prob(row).sum().item() for row in (good, bad)]
    optimiser = torch.optim.SGD(loss.parameters(), lr=0.1)
    loss(stamped(loss, [good, bad])).loss_objective.backward()
    optimiser.step()
    after = [actor.row_log_prob(row).sum().item() for row in (good, bad)]
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_keys_can_be_renamed_and_set_back(actor):
    loss = BEPALoss(actor)
    loss.set_keys(advantage="gain", denominator="z")
    rows = lazy_stack(toy(actor)).rename_key_(keys.ADVANTAGE, "gain")
    rows.set("z", loss.denominators(rows))
    assert loss(rows).loss_objective.item() == pytest.approx(0.25, abs=1e-6)
    assert "gain" in loss.in_keys
    loss.set_keys(advantage=None, action=None, sample_log_prob=None, denominator=None)
    assert loss(stamped(loss, toy(actor))).loss_objective.item() == pytest.approx(0.25, abs=1e-6)
    with pytest.raises(ValueError, match="not an accepted"):
        loss.set_keys(reward="r")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"aggregation": "token_mean"}, ValueError, "group, token, sequence, sum_norm"),
        ({"unit": "episode"}, ValueError, "token, step"),
        ({"ratio": "episode"}, ValueError, "token, sequence"),
        ({"ratio": "sequence", "unit": "step"}, ValueError, "unit='token'"),
        ({"dual_clip": 0.5}, ValueError, "dual_clip"),
        ({"aggregation": "sum_norm"}, ValueError, "max_length"),
        ({"gamma": 0.9}, TypeError, "gamma"),  # TorchRL's own loss accepts it and never reads it
        ({"clip": (0.2, 0.3)}, TypeError, "clip"),
        ({"clip_epsilon": (-0.1, 0.3)}, ValueError, "clip_epsilon"),
        ({"anchor_weight": -0.1}, ValueError, "anchor_weight"),
        ({"anchor_weight": math.nan}, ValueError, "anchor_weight"),
        ({"kl_weight": -0.1}, ValueError, "kl_weight"),
        ({"kl_weight": 0.1, "unit": "step"}, ValueError, "kl_weight=0.1 is for unit='token'"),
        ({"distill_weight": -0.1}, ValueError, "distill_weight"),
        ({"distill_weight": 0.1, "unit": "step"}, ValueError, "distill_weight=0.1 is for unit='token'"),
        ({"distill_beta": 0.0}, ValueError, "distill_beta"),
        ({"entropy_weight": math.inf}, ValueError, "entropy_weight"),
        ({"entropy_weight": 0.1, "unit": "step"}, ValueError, "entropy_weight=0.1 is for unit='token'"),
    ],
)
def test_bad_settings(actor, options, error, message):
    with pytest.raises(error, match=message):
        BEPALoss(actor, **options)


def test_bad_settings_of_the_others(actor):
    with pytest.raises(ValueError, match="paper, released"):
        LUFFYLoss(actor, preset="luffy")
    with pytest.raises(ValueError, match="gamma"):
        LUFFYLoss(actor, gamma=-1.0)
    with pytest.raises(ValueError, match=r"preset='released' clips no ratio, got dual_clip=3\.0; leave one out"):
        LUFFYLoss(actor, preset="released", max_length=8, dual_clip=3.0)
    with pytest.raises(TypeError, match="aggregate"):
        LUFFYLoss(actor, aggregate="token")
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="sft_weight must be a finite number"):
            RLSFTLoss(actor, sft_weight=weight)


def damaged(actor, loss, key, value):
    rows = [make_row(actor, [1, 2]), make_row(actor, [3, 3, 4], slot=1, advantage=-1.0)]
    batch = stamped(loss, rows)
    if value is None:
        return batch.exclude(key)
    return lazy_stack([row.clone().set(key, value(row)) for row in batch.unbind(0)])


@pytest.mark.parametrize(
    ("key", "value", "error", "message"),
    [
        (keys.DENOMINATOR, None, KeyError, "loss.denominators"),
        (keys.DENOMINATOR, lambda _: torch.zeros(1), ValueError, "positive"),
        (keys.ADVANTAGE, None, KeyError, "advantage"),
        (keys.ADVANTAGE, lambda _: torch.ones(1), ValueError, "one advantage for the whole response"),
        (keys.ADVANTAGE, lambda row: row[keys.OLD_LOG_PROB][:, None], ValueError, "whole response"),
        (keys.OFF_POLICY, None, KeyError, "off_policy"),
        (keys.OLD_LOG_PROB, None, KeyError, "log_probs"),
        (
            keys.OLD_LOG_PROB,
            lambda row: row[keys.OLD_LOG_PROB] * math.nan,
            ValueError,
            "must be finite on responses; it is not on task task-0 group",
        ),
        (keys.OLD_LOG_PROB, lambda _: torch.zeros(9), ValueError, "one value per response token, .2.; got .9. on task"),
    ],
)
def test_bad_rows(actor, key, value, error, message):
    loss = BEPALoss(actor)
    with pytest.raises(error, match=message):
        loss(damaged(actor, loss, key, value))


@pytest.mark.parametrize("kept", [1, 3])
def test_log_probs_of_another_number_than_tokens_are_not_padded(actor, kept):
    """The longest row has three tokens: with 1 or 3 values, the row of two has the same padded width."""
    loss = BEPALoss(actor)
    rows = damaged(actor, loss, keys.OLD_LOG_PROB, lambda row: row[keys.OLD_LOG_PROB])
    row_list(rows)[0].set(keys.OLD_LOG_PROB, torch.zeros(kept))
    with pytest.raises(ValueError, match=rf"must have one value per response token, \[2\]; got \[{kept}\]"):
        loss(rows)


def test_a_denominator_that_is_not_positive_is_refused_by_sft(actor):
    loss = SFTLoss(actor)
    for value in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="denominators must be positive"):
            loss(damaged(actor, loss, keys.DENOMINATOR, lambda _, value=value: torch.tensor([value])))


def test_an_actor_without_a_mask_is_refused(actor):
    loss = BEPALoss(actor)
    rows = stamped(loss, [make_row(actor, [1, 2])])
    actor.get_dist = lambda td, logits_key: LogProbDistribution(torch.zeros(1, 2))  # noqa: ARG005
    with pytest.raises(ValueError, match="mask"):
        loss(rows)


@pytest.mark.parametrize("name", LOSSES)
def test_in_keys_and_out_keys_are_what_forward_reads_and_returns(actor, name):
    loss = LOSSES[name](actor)
    batch = stamped(loss, mixed_batch(actor))
    whole, selected = loss(batch), loss(batch.select(*loss.in_keys))
    assert set(loss.out_keys) == set(whole.to_tensordict().keys())
    for key, value in whole.to_tensordict().items():
        torch.testing.assert_close(selected.to_tensordict()[key], value, equal_nan=True)
    for key in loss.in_keys:
        with pytest.raises((KeyError, ValueError)):
            loss(batch.select(*[other for other in loss.in_keys if other != key]))


def test_seq_mean_differs_from_sequence_where_groups_differ_in_size(actor):
    """Group 1: 2 tokens with A = 1, group 2: 1 and 3 tokens with A = 1 and -2; ratio 1, so that loss = -A per token.

    sequence: (-1 + (-1 + 2) / 2) / 2 = -0.25; seq-mean-token-mean: (-1 - 1 + 2) / 3 = 0;
    seq-mean-token-sum: (-2 - 1 + 6) / 3 = 1; token: 3 / 6 = 0.5; the second group's last episode is two rows.
    """
    rows = [
        make_row(actor, [1, 2], group=1, slot=0, advantage=1.0),
        make_row(actor, [3], group=2, slot=0, advantage=1.0),
        make_row(actor, [4, 5], group=2, slot=1, advantage=-2.0),
        make_row(actor, [6], group=2, slot=1, advantage=-2.0),
    ]
    expected = {"sequence": -0.25, "seq-mean-token-mean": 0.0, "seq-mean-token-sum": 1.0, "token": 0.5}
    for aggregation, value in expected.items():
        loss = BEPALoss(actor, aggregation=aggregation)
        assert loss(stamped(loss, rows)).loss_objective.item() == pytest.approx(value, abs=1e-6)


def test_keys_that_the_loss_does_not_read_cannot_be_set(actor):
    loss = BEPALoss(actor)
    with pytest.raises(ValueError, match="ref_log_probs is not an accepted tensordict key"):
        loss.set_keys(ref_log_probs="ref")


def test_current_old_policy_is_ratio_one_and_reads_no_old_log_probs(actor):
    stored, current = BEPALoss(actor), BEPALoss(actor, old_policy="current")
    rows = stamped(stored, toy(actor))  # their old log-probs are those at the actor's weights
    bare = rows.exclude(keys.OLD_LOG_PROB)
    a, b = stored(rows), current(bare)
    assert keys.OLD_LOG_PROB not in current.in_keys
    torch.testing.assert_close(a.loss_objective, b.loss_objective)
    torch.testing.assert_close(gradient(actor, a.loss_objective), gradient(actor, b.loss_objective))
    assert (b.kl_approx.item(), b.ESS.item(), b.ratio_max_on_policy.item()) == pytest.approx((0.0, 1.0, 1.0))
    with pytest.raises(ValueError, match="old_policy must be 'stored' or 'current'"):
        BEPALoss(actor, old_policy="new")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrow_clip_survives_a_loss_in_half_precision(actor, dtype):
    """``loss.to(dtype)`` converts the clip distances; added to 1 in bfloat16, GSPO's would be 0."""
    loss = BEPALoss(actor, clip_epsilon=(3e-4, 4e-4), ratio="sequence").to(dtype)
    actor.float()  # only the distances are in half precision
    cases = [(1.0, 1.0002), (-1.0, 0.9999), (1.0, 1.2), (-1.0, 0.9)]
    rows = [make_row(actor, [1, 2, 3, 4], slot=i, advantage=a, ratio=r) for i, (a, r) in enumerate(cases)]
    out = loss(stamped(loss, rows))
    assert out.clip_fraction.item() == 0.5
    want = (-1.0002 + 0.9999 - (1 + 4e-4) + (1 - 3e-4)) / 4
    assert out.loss_objective.item() == pytest.approx(want, abs=2e-6)
