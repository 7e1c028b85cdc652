"""A Gaussian process over prompts that predicts the chance of success before anything is drawn.

B prompts of a step, D feature dimensions, M distinct prompts observed so far. The latent value of a prompt is the logit
of its success probability, 0 where nothing is known.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

_JITTER = 1e-6


class SuccessModel:
    """Posterior mean of the latent value, updated step by step.

    A step moves the mean at every prompt by K(x, B) K(B, B)^-1 (g - m(B)), which sets it to the observed g on the
    step's own prompts: the latest observation of a prompt replaces earlier ones, so the model follows a policy that
    improves. The mean is kept as a weighted sum of kernels at the prompts seen, and needs no list of all prompts.

    Attributes:
        length_scale: h of k(x, y) = exp(-|x - y|^2 / (2 h^2)); None = the median distance between the distinct prompts
            of the first observed step, fixed from then on.
        clip: observed success rates are kept this far from 0 and 1.

    Source: arXiv 2602.01601, section 5.
    """

    def __init__(self, *, length_scale: float | None = None, clip: float = 0.01) -> None:
        if length_scale is not None and length_scale <= 0.0:
            raise ValueError(f"length_scale is {length_scale}; allowed: above 0, or None for the median distance")
        if not 0.0 < clip < 0.5:
            raise ValueError(f"clip is {clip}; allowed: above 0, below 0.5")
        self.length_scale = length_scale
        self.clip = clip
        self._points: FloatArray = np.zeros((0, 0))
        self._weights: FloatArray = np.zeros(0)

    @property
    def num_points(self) -> int:
        """M."""
        return len(self._weights)

    def predict(self, features: FloatArray) -> FloatArray:
        """[B] probability of success of each prompt with features [B, D]."""
        return 1.0 / (1.0 + np.exp(-self._latent(self._checked(features))))

    def observe(self, features: FloatArray, success: Sequence[float]) -> None:
        """Condition on the success rates [B], in [0, 1], of prompts [B, D]. Equal prompts count once, averaged."""
        features = self._checked(features)
        if len(features) != len(success):
            raise ValueError(f"features has {len(features)} rows and success {len(success)}; give one rate per prompt")
        if len(features) == 0:
            return
        points, owner = np.unique(features, axis=0, return_inverse=True)
        owner = owner.reshape(-1)
        rates = np.bincount(owner, weights=np.asarray(success, dtype=np.float64)) / np.bincount(owner)
        rates = np.clip(rates, self.clip, 1.0 - self.clip)
        if self.length_scale is None:
            self.length_scale = median_distance(points)
        gram = self._kernel(points, points) + _JITTER * np.eye(len(points))
        surprise: FloatArray = np.log(rates / (1.0 - rates)) - self._latent(points)
        self._add(points, np.linalg.solve(gram, surprise).astype(np.float64))

    def state_dict(self) -> dict[str, Any]:
        """Plain values only; the kernels' places [M, D] and weights [M] as base64 of little-endian float64."""
        return {
            "length_scale": self.length_scale,
            "num_points": self.num_points,
            "points": _to_text(self._points),
            "weights": _to_text(self._weights),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state_dict`, bit for bit."""
        self.length_scale = state["length_scale"]
        self._weights = _from_text(state["weights"])
        points = _from_text(state["points"])
        self._points = points.reshape(state["num_points"], -1) if len(points) else np.zeros((0, 0))

    def _latent(self, features: FloatArray) -> FloatArray:
        if self.num_points == 0:
            return np.zeros(len(features))
        latent: FloatArray = self._kernel(features, self._points) @ self._weights
        return latent

    def _kernel(self, left: FloatArray, right: FloatArray) -> FloatArray:
        assert self.length_scale is not None, "the first observation sets the length scale"
        kernel: FloatArray = np.exp(-_squared_distances(left, right) / (2.0 * self.length_scale**2))
        return kernel

    def _add(self, points: FloatArray, weights: FloatArray) -> None:
        """Append kernels; one at a known place is added to what is there, so memory ends at the distinct prompts."""
        places = {point.tobytes(): row for row, point in enumerate(self._points)}
        known = np.array([places.get(point.tobytes(), -1) for point in points])
        self._weights[known[known >= 0]] += weights[known >= 0]
        new = points[known < 0]
        self._points = np.concatenate([self._points.reshape(-1, points.shape[1]), new])
        self._weights = np.concatenate([self._weights, weights[known < 0]])

    def _checked(self, features: FloatArray) -> FloatArray:
        features = np.asarray(features, dtype=np.float64)
        if features.ndim != 2 or (self.num_points and features.shape[1] != self._points.shape[1]):
            wanted = f"[prompts, {self._points.shape[1]}]" if self.num_points else "[prompts, dimensions]"
            raise ValueError(f"features has shape {features.shape}; allowed: {wanted}")
        return features + 0.0  # -0.0 becomes 0.0: equal prompts must be equal in their bytes too


def median_distance(points: FloatArray) -> float:
    """Median distance over all pairs of distinct points; 1 where there is no pair."""
    upper = np.triu_indices(len(points), k=1)
    distances = np.sqrt(_squared_distances(points, points)[upper])
    distances = distances[distances > 0.0]
    return float(np.median(distances)) if len(distances) else 1.0


def embed_prompts(prompts: Sequence[str], *, dimensions: int = 256) -> FloatArray:
    """Hashed counts of character 3- to 5-grams, scaled to unit length: near for prompts that share wording.

    Each n-gram of the lower-cased prompt, with runs of white space as one blank, adds +1 or -1 to one place, both taken
    from its hash. Nothing is downloaded and the result is the same on every machine. It reads wording, not difficulty;
    embeddings of a language model can be passed to the allocator instead.

    Args:
        prompts: [B] texts.
        dimensions: D.

    Returns:
        [B, D]; a prompt shorter than three characters is a zero row.
    """
    rows = np.zeros((len(prompts), dimensions))
    for row, prompt in zip(rows, prompts, strict=True):
        text = " ".join(prompt.lower().split())
        grams = [text[start : start + size] for size in (3, 4, 5) for start in range(len(text) - size + 1)]
        hashes = np.array([zlib.crc32(gram.encode("utf-8", "replace")) for gram in grams], dtype=np.int64)
        row += np.bincount((hashes >> 1) % dimensions, weights=2.0 * (hashes & 1) - 1.0, minlength=dimensions)
        norm = np.linalg.norm(row)
        row /= norm if norm > 0.0 else 1.0
    return rows


def _squared_distances(left: FloatArray, right: FloatArray) -> FloatArray:
    squared = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1)[None, :] - 2.0 * left @ right.T
    distances: FloatArray = np.maximum(squared, 0.0)
    return distances


def _to_text(values: FloatArray) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f8").tobytes()).decode("ascii")


def _from_text(text: str) -> FloatArray:
    return np.frombuffer(base64.b64decode(text), dtype="<f8").astype(np.float64)
