"""How the policy is updated."""

from __future__ import annotations

from dataclasses import dataclass, field

SCHEDULES = ("constant", "linear", "cosine")
ATTENTIONS = ("auto", "blocks", "flex", "dense")


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters; the base weights stay as they are, the engine gets the merged ones."""

    rank: int = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: float = 32.0
    """Adapters are scaled by alpha / rank."""
    target_modules: list[str] = field(default_factory=list)
    """Ends of the names of the linear layers that get an adapter; empty: every linear layer of the decoder."""

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise ValueError(f"learner.lora.rank is {self.rank}; allowed: 0 (off) or more")
        if not self.alpha > 0:
            raise ValueError(f"learner.lora.alpha is {self.alpha}; allowed: above 0")


@dataclass(frozen=True)
class LearnerConfig:
    """Optimizer, its schedule, and how a batch is cut for it."""

    learning_rate: float = 1e-6
    """Peak step size of AdamW."""
    schedule: str = "constant"
    """After the warm-up: constant | linear | cosine (down to min_learning_rate_ratio at the end of the run)."""
    warmup_steps: int = 0
    """Optimizer steps of linear warm-up."""
    min_learning_rate_ratio: float = 0.0
    """What linear and cosine end at, as a share of learning_rate (0 to 1)."""
    beta1: float = 0.9
    """Decay of the gradient's mean (0 to 1)."""
    beta2: float = 0.95
    """Decay of the gradient's square (0 to 1). Lower than 0.999: the gradient's scale shifts as the policy learns."""
    adam_eps: float = 1e-8
    """Added to AdamW's denominator."""
    weight_decay: float = 0.0
    """Decoupled weight decay per unit of learning rate; never on norms and biases."""
    decays_embeddings: bool = False
    """Whether embeddings (and a head tied to them) decay too."""
    grad_clip: float = 1.0
    """Largest L2 norm of the gradient; 0 does not clip."""
    num_iterations: int = 1
    """Times an update passes over its batch."""
    num_minibatches: int = 1
    """Optimizer steps of one pass; the batch is split at random, whole groups first."""
    tokens_per_microbatch: int | None = None
    """Packed (distinct) tokens up to which groups are computed together; null takes 1024 in float32, 2048 in half
    precision, where as many take half the memory; more gains little on a CPU."""
    max_tokens_per_microbatch: int = 4096
    """Packed tokens above which a group is split (and what it shares computed again); a longer sequence goes alone."""
    prefix_sharing: bool = True
    """Compute every distinct token prefix once (exact); false computes each rollout by itself."""
    attention: str = "auto"
    """auto | blocks (CPU) | flex (compiled FlexAttention, CUDA) | dense (whole mask through torch's attention)."""
    head_chunk_rows: int = 256
    """Rows of logits held at a time; memory is this times the vocabulary, in float32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: about a third more time for much less memory."""
    dither_masters: bool = True
    """In bfloat16: start each float32 master at a random one of the values that round to its weight, so that steps
    smaller than bfloat16 resolves reach the model at once, on average over the weights."""
    zero_stage: int = 0
    """DeepSpeed ZeRO: 0 | 1 (split optimizer) | 2 (and gradients) | 3 (and weights). bfloat16 needs 1 or more; 0 becomes 1."""
    timeout_s: float = 1800.0
    """Longest wait for another rank, seconds."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Low-rank adapters."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "adam_eps", "timeout_s"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "above 0")
        for name in ("warmup_steps", "weight_decay", "grad_clip"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more")
        for name in ("num_iterations", "num_minibatches", "head_chunk_rows"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        for name in ("tokens_per_microbatch", "max_tokens_per_microbatch"):
            tokens = getattr(self, name)
            _require(tokens is None or tokens >= 1, name, tokens, "1 or more")
        for name in ("beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "0 to below 1")
        ratio = self.min_learning_rate_ratio
        _require(0 <= ratio <= 1, "min_learning_rate_ratio", ratio, "0 to 1")
        _require(self.schedule in SCHEDULES, "schedule", repr(self.schedule), ", ".join(SCHEDULES))
        _require(self.attention in ATTENTIONS, "attention", repr(self.attention), ", ".join(ATTENTIONS))
        _require(self.zero_stage in (0, 1, 2, 3), "zero_stage", self.zero_stage, "0, 1, 2, 3")
        if self.schedule == "constant" and ratio != 0:
            raise ValueError(
                f"learner.min_learning_rate_ratio is {ratio} with schedule constant, which never falls; remove it, or "
                "set schedule to linear or cosine"
            )

    def packed_tokens(self, dtype: str) -> int:
        """``tokens_per_microbatch``, or its default for weights of ``dtype``."""
        return self.tokens_per_microbatch or (1024 if dtype == "float32" else 2048)


def _require(ok: bool, name: str, value: object, allowed: str) -> None:
    if not ok:
        raise ValueError(f"learner.{name} is {value}; allowed: {allowed}")
