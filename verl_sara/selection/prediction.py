"""How well a selector foresaw what its prompts turned out to be, over one step."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np

from verl_sara.selection.evidence import CLASSES, MIXED

_TIE = 1e-6


class PredictionScore:
    """Confusion of predicted and realised class. An abandoned group enters with its soft class weights.

    The predicted class is the most probable one, mixed on a tie. The score covers the groups observed since
    the last step that was closed; the first group after `close` opens a new one.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._confusion = np.zeros((3, 3))
        self._entropy = 0.0
        self._prob_mixed = 0.0
        self._is_closed = False

    def add(self, predicted: np.ndarray, realised: np.ndarray) -> None:
        """Counts groups: `predicted` and `realised` are class distributions, [n, 3] each."""
        if self._is_closed:
            self._reset()
        is_mixed = predicted[:, MIXED] >= predicted.max(axis=1) - _TIE
        np.add.at(self._confusion, np.where(is_mixed, MIXED, predicted.argmax(axis=1)), realised)
        self._entropy += float(-(predicted * np.log(np.maximum(predicted, 1e-30))).sum())
        self._prob_mixed += float(predicted[:, MIXED].sum())

    def close(self) -> None:
        """Ends the step; its figures stay readable until the next group is counted."""
        self._is_closed = True

    def metrics(self) -> dict[str, float]:
        """Returns shares in [0, 1] and the entropy in nats. A ratio without a denominator is left out."""
        count = self._confusion.sum()
        if not count:
            return {}
        hits = self._confusion[MIXED, MIXED]
        predicted, realised = self._confusion[MIXED].sum(), self._confusion[:, MIXED].sum()
        values = {
            "accuracy": np.trace(self._confusion) / count,
            "expected_mixed_share": self._prob_mixed / count,
            "realised_mixed_share": realised / count,
            "predicted_entropy": self._entropy / count,
        }
        if predicted:
            values["mixed_precision"] = hits / predicted
        if realised:
            values["mixed_recall"] = hits / realised
        if predicted + realised:
            values["mixed_f1"] = 2 * hits / (predicted + realised)
        for i, guess in enumerate(CLASSES):
            for j, truth in enumerate(CLASSES):
                values[f"confusion/{guess}_is_{truth}"] = self._confusion[i, j] / count
        return {f"prediction/{name}": float(value) for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        """Returns the open or last closed score."""
        return deepcopy(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a score."""
        vars(self).update(deepcopy(state))
