"""The link from effective groups to the gradient, on a toy softmax policy whose scores are known."""

from dataclasses import dataclass

import numpy as np

from verl_sara.simulate.table import Table

K = 8


@dataclass(frozen=True)
class ToyPolicy:
    """A log-linear policy: P(action | prompt) is proportional to exp(features . theta).

    Attributes:
      features: Of every action, [P, A, D].
      is_correct: Which actions pass, [P, A].
      theta: Parameters, [D].
    """

    features: np.ndarray
    is_correct: np.ndarray
    theta: np.ndarray

    @classmethod
    def random(
        cls, rng: np.random.Generator, *, num_prompts: int = 400, num_actions: int = 12, size: int = 6
    ) -> "ToyPolicy":
        """Returns a policy whose prompts range from nearly always failed to nearly always passed."""
        features = rng.standard_normal((num_prompts, num_actions, size))
        share = rng.beta(0.6, 0.6, num_prompts)[:, None]
        return cls(features, rng.random((num_prompts, num_actions)) < share, 0.7 * rng.standard_normal(size))

    def probabilities(self) -> np.ndarray:
        """Returns P(action | prompt), [P, A]."""
        logits = self.features @ self.theta
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    def scores(self) -> np.ndarray:
        """Returns the score, grad log P(action | prompt), [P, A, D]."""
        mean = np.einsum("pa,pad->pd", self.probabilities(), self.features)
        return self.features - mean[:, None, :]


def sample_groups(policy: ToyPolicy, num_groups: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Returns passes [N, K] and scores [N, K, D] of groups of random prompts."""
    prompts = rng.integers(0, len(policy.is_correct), num_groups)
    cumulative = policy.probabilities().cumsum(axis=1)[prompts]
    actions = (rng.random((num_groups, K))[:, :, None] > cumulative[:, None, :]).sum(axis=2)
    actions = np.minimum(actions, cumulative.shape[1] - 1)
    rows = prompts[:, None]
    return policy.is_correct[rows, actions], policy.scores()[rows, actions]


def group_gradients(passed: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the GRPO gradient of every group and the two sides of the identity.

    |g|^2 = s (k - s) / k^2 |phi+ - phi-|^2 for an effective group, 0 for a saturated one, where phi+-
    are the mean scores of its passes and fails.

    Returns:
      Gradients [N, D], |g|^2 [N], and s (k - s) / k^2 |phi+ - phi-|^2 [N].
    """
    s = passed.sum(axis=1)
    spread = np.sqrt(s * (K - s)) / K
    advantages = (passed - (s / K)[:, None]) / np.where(spread > 0, spread, 1.0)[:, None]
    gradients = np.einsum("nk,nkd->nd", advantages, scores) / K
    up = np.einsum("nk,nkd->nd", passed, scores) / np.maximum(s, 1)[:, None]
    down = np.einsum("nk,nkd->nd", ~passed, scores) / np.maximum(K - s, 1)[:, None]
    right = spread**2 * ((up - down) ** 2).sum(axis=1)
    return gradients, (gradients**2).sum(axis=1), right


def gradient_link(*, num_repeats: int = 2000, seed: int = 0) -> Table:
    """Claim 4: the expected squared gradient grows with the number of effective groups."""
    rng = np.random.default_rng(seed)
    policy = ToyPolicy.random(rng)
    table = Table(
        f"4. Gradient link on a toy softmax policy, k = {K}: E|sum g|^2 >= E[N_eff] (k - 1) / k^2 delta^2",
        ("groups", "E[N_eff]", "E|sum g|^2", "bound", "measured / bound", "identity off by", "E|sum g / N_eff|^2"),
        notes=[
            "Holds for the sum, or a constant divisor. Divided by N_eff, as a batch mean of variable size is, the",
            "squared norm falls with the yield; and a larger squared norm may be noise.",
        ],
    )
    for num_groups in (8, 16, 32, 64):
        passed, scores = sample_groups(policy, num_repeats * num_groups, rng)
        gradients, left, right = group_gradients(passed, scores)
        s = passed.sum(axis=1)
        is_effective = (s > 0) & (s < K)
        # the identity gives |phi+ - phi-|^2 of the effective groups
        delta2 = float((right[is_effective] * K * K / (s * (K - s))[is_effective]).mean())
        num_effective = is_effective.reshape(num_repeats, num_groups).sum(axis=1)
        total = gradients.reshape(num_repeats, num_groups, -1).sum(axis=1)
        squared = (total**2).sum(axis=1)
        numbers = {
            "effective": float(num_effective.mean()),
            "squared_norm": float(squared.mean()),
            "bound": float(num_effective.mean() * (K - 1) / K**2 * delta2),
            "identity_error": float(np.abs(left - right).max()),
            "mean_squared_norm": float((squared / np.maximum(num_effective, 1) ** 2).mean()),
        }
        ratio = numbers["squared_norm"] / numbers["bound"]
        table.rows.append(
            (
                str(num_groups),
                f"{numbers['effective']:.1f}",
                f"{numbers['squared_norm']:.3f}",
                f"{numbers['bound']:.3f}",
                f"{ratio:.2f}",
                f"{numbers['identity_error']:.0e}",
                f"{numbers['mean_squared_norm']:.4f}",
            )
        )
        table.numbers[f"{num_groups} groups"] = numbers | {"ratio": ratio}
    return table
