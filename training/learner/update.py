"""One update: plan the optimizer steps, run packs forward and backward, step, and report.

Legend: P packed tokens, N trained tokens of a pack, R head rows, S sequences of a pack.
"""

from __future__ import annotations

import random
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from winnowrl.agents.seeding import derive_seed
from winnowrl.training.aggregation import BatchTotals, sequence_scales
from winnowrl.training.attention import tree_layout
from winnowrl.training.batch import NonFiniteUpdateError, SequenceStats, TrainingSequence, UpdateResult
from winnowrl.training.learner.engine import TrainingEngine
from winnowrl.training.learner.flops import ModelShape, machine_peak
from winnowrl.training.learner.lora import adapters_off
from winnowrl.training.learner.minibatches import deal_packs, split_minibatches
from winnowrl.training.learner.policy import Policy
from winnowrl.training.learner.records import Accounts, FloatArray, SequenceRecord, joined, note_clipping, record_pack
from winnowrl.training.learner.schedule import learning_rate_factor
from winnowrl.training.losses import ObjectiveSpec, combine_metrics, finish_metrics, policy_objective
from winnowrl.training.packing import Pack, build_pack, flat_values, plan_packs, trained_positions


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateSettings:
    """How batches are cut and weighed; see ``LearnerConfig`` and ``ObjectiveConfig`` for what each means."""

    learning_rate: float
    total_steps: int
    schedule: str = "constant"
    warmup_steps: int = 0
    min_learning_rate_ratio: float = 0.0
    num_iterations: int = 1
    num_minibatches: int = 1
    tokens_per_microbatch: int = 1024
    max_tokens_per_microbatch: int = 4096
    prefix_sharing: bool = True
    attention: str | None = None
    weighting: str = "auto"
    overlong_filter: bool = False
    seed: int = 0


class Updater:
    """Runs updates through a :class:`TrainingEngine`.

    Args:
        reference: Frozen policy for the KL; None where the adapters of ``policy`` can be switched off instead, or the
            objective needs none.
    """

    def __init__(
        self,
        policy: Policy,
        engine: TrainingEngine,
        spec: ObjectiveSpec,
        settings: UpdateSettings,
        *,
        reference: Policy | None = None,
    ) -> None:
        self.policy, self.engine, self.spec, self.settings = policy, engine, spec, settings
        self.reference = reference
        self.shape = ModelShape.of(policy.model)
        self.device = next(policy.parameters()).device
        self.peak = machine_peak(next(policy.parameters()).dtype, str(self.device))
        self.num_updates = 0
        self.num_optimizer_steps = 0

    def update(self, batch: Sequence[TrainingSequence]) -> UpdateResult:
        """Train on ``batch``; see the ``Learner`` contract.

        Raises:
            ValueError: nothing in the batch can be trained on, or a sequence is malformed.
        """
        accounts = self._accounts()
        with accounts.phase("total"):
            run = _Run(self, batch, accounts)
            metrics = run.train()
            self.num_updates += 1
        metrics |= self._join_sums(accounts.sums()) | accounts.times() | self._memory()
        metrics["learner/mfu"] = self._flop_utilization(metrics["learner/flops"], accounts.seconds["total"])
        metrics["learner/overlong_filtered"] = float(len(batch) - len(run.members))
        stats = {batch[index].rollout_id: run.records[index].stats(batch[index]) for index in sorted(run.records)}
        return UpdateResult(stats, metrics)

    def score(self, sequences: Sequence[TrainingSequence]) -> dict[int, SequenceStats]:
        """Forward only."""
        run = _Run(self, sequences, self._accounts(), filters=False)
        records = run.forward_only(run.members)
        return {sequences[i].rollout_id: record.stats(sequences[i]) for i, record in records.items()}

    def learning_rate(self) -> float:
        """Of the next optimizer step."""
        settings = self.settings
        factor = learning_rate_factor(
            self.num_optimizer_steps,
            schedule=settings.schedule,
            warmup_steps=settings.warmup_steps,
            total_steps=settings.total_steps,
            minimum=settings.min_learning_rate_ratio,
        )
        return settings.learning_rate * factor

    def inputs(self, pack: Pack) -> dict[str, Any]:
        """Arguments of the policy for ``pack``, on its device."""
        # An empty pack still needs a token: its (zero) gradient takes part in the ranks' collectives.
        tokens, positions, ends = pack.token_ids, pack.positions, pack.subtree_end
        if not pack.num_tokens:
            tokens, positions, ends = torch.zeros(1).long(), torch.zeros(1).long(), torch.ones(1).long()
        names = ("head_positions", "rows", "targets")
        tensors = {"token_ids": tokens, "positions": positions} | {name: getattr(pack, name) for name in names}
        placed: dict[str, Any] = {name: tensor.to(self.device) for name, tensor in tensors.items()}
        placed["tree"] = tree_layout(placed["positions"], ends.to(self.device), implementation=self.settings.attention)
        return placed

    def _accounts(self) -> Accounts:
        return Accounts(self.shape, is_cuda=self.device.type == "cuda")

    def _join_records(self, records: dict[int, SequenceRecord]) -> dict[int, SequenceRecord]:
        """The records of all ranks, in the order of the batch."""
        joined = {index: record for part in self._gather(records) for index, record in part.items()}
        return dict(sorted(joined.items()))

    def _join_sums(self, values: dict[str, float]) -> dict[str, float]:
        parts = self._gather(values)
        return {name: sum(part[name] for part in parts) for name in values}

    def _gather(self, value: Any) -> list[Any]:
        if self.engine.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.engine.world_size
        torch.distributed.all_gather_object(gathered, value)
        return gathered

    def _flop_utilization(self, flops: float, seconds: float) -> float:
        """Share of what all ranks could have multiplied in ``seconds``; above 1 only if the peak was measured under load."""
        return flops / (seconds * self.engine.world_size * self.peak)

    def _memory(self) -> dict[str, float]:
        # Linux counts the peak in KiB.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
        found = {"memory/peak_rss_bytes": peak}
        if self.device.type == "cuda":
            found["memory/peak_cuda_bytes"] = float(torch.cuda.max_memory_allocated())
        return found


class _Run:
    """The work of one call on one batch.

    ``records`` are the same on all ranks between two optimizer steps: a later step deals the sequences out anew, and a rank
    must know the first log-probs of one that another rank saw before.
    """

    def __init__(
        self, owner: Updater, batch: Sequence[TrainingSequence], accounts: Accounts, *, filters: bool = True
    ) -> None:
        self.owner, self.batch, self.accounts = owner, batch, accounts
        self.counts = [len(trained_positions(sequence)) for sequence in batch]
        is_filtering = filters and owner.settings.overlong_filter
        self.members = [
            index
            for index, sequence in enumerate(batch)
            if self.counts[index] and not (is_filtering and sequence.is_truncated)
        ]
        if not self.members:
            raise ValueError(
                f"the batch of {len(batch)} sequences has no token to train on; give sequences with True in "
                "completion_mask that the overlong filter keeps"
            )
        self.records: dict[int, SequenceRecord] = {}
        self.reference: dict[int, SequenceRecord] = {}

    def train(self) -> dict[str, float]:
        """All optimizer steps; metrics are means over them (maxima where they are maxima)."""
        settings = self.owner.settings
        rng = random.Random(derive_seed(settings.seed, "minibatches", self.owner.num_updates))
        steps: list[list[int]] = []
        for _ in range(settings.num_iterations):
            steps += split_minibatches(self.batch, self.members, num_minibatches=settings.num_minibatches, rng=rng)
        if self.owner.spec.needs_reference:
            with self.accounts.phase("reference"):
                self.reference = self._reference_pass()
        # The first step's own forward gives its log-probs before any step; only later minibatches need a pass of their own.
        late = [i for i in self.members if i not in set(steps[0]) and self.batch[i].old_logprobs is None]
        if late:
            with self.accounts.phase("old_logprobs"):
                self.records |= self.forward_only(late)
        return _mean_metrics([self._step(members) for members in steps])

    def forward_only(self, members: Sequence[int], policy: Policy | None = None) -> dict[int, SequenceRecord]:
        """Records of this rank's share of ``members``, without gradient."""
        owner = self.owner
        records: dict[int, SequenceRecord] = {}
        with torch.no_grad():
            for pack in self._packs(members):
                inputs = owner.inputs(pack)
                logprobs, entropies = policy(**inputs) if policy is not None else owner.engine.forward(inputs)
                records |= record_pack(pack, logprobs, entropies)
                self.accounts.add(pack, has_backward=False)
        return owner._join_records(records)

    def _reference_pass(self) -> dict[int, SequenceRecord]:
        if self.owner.reference is not None:
            return self.forward_only(self.members, self.owner.reference)
        with adapters_off(self.owner.policy.model):
            return self.forward_only(self.members)

    def _packs(self, members: Sequence[int]) -> list[Pack]:
        """This rank's packs of a step."""
        settings, ranks = self.owner.settings, self.owner.engine.world_size
        share = settings.prefix_sharing
        plan = plan_packs(
            self.batch,
            members,
            target_tokens=settings.tokens_per_microbatch,
            max_tokens=settings.max_tokens_per_microbatch,
            share=share,
            num_ranks=ranks,
        )
        if ranks > 1:
            sizes = [sum(len(self.batch[index].token_ids) for index in pack) for pack in plan]
            plan = deal_packs(plan, sizes, ranks)[self.owner.engine.rank]
        return [build_pack(self.batch, pack, share=share) for pack in plan]

    def _step(self, members: Sequence[int]) -> dict[str, float]:
        """One optimizer step on ``members``."""
        owner, accounts = self.owner, self.accounts
        with accounts.phase("plan"):
            totals = BatchTotals.of([self.counts[index] for index in members])
            scales = self._scales(members)
            packs = self._packs(members)
        parts = []
        seen: dict[int, SequenceRecord] = {}
        for number, pack in enumerate(packs):
            with accounts.phase("forward"):
                logprobs, entropies = owner.engine.forward(owner.inputs(pack))
                fresh = record_pack(pack, logprobs, entropies)
                loss, metrics = self._objective(pack, logprobs, entropies, fresh, totals, scales)
            if not bool(torch.isfinite(loss)):
                raise NonFiniteUpdateError("loss")
            with accounts.phase("backward"):
                owner.engine.backward(loss, is_last=number == len(packs) - 1)
            accounts.add(pack, has_backward=True)
            parts.append(metrics)
            seen |= fresh
        self._remember(seen)
        learning_rate = owner.learning_rate()
        with accounts.phase("optimizer"):
            grad_norm = owner.engine.step(learning_rate)
        owner.num_optimizer_steps += 1
        ranks = owner._gather({name: value.cpu() for name, value in combine_metrics(parts).items()})
        found = finish_metrics(combine_metrics(ranks))
        found["policy/entropy"] = found.pop("entropy")
        found["loss/total"] = found["loss/policy"] + found.get("loss/regularizer", 0.0)
        return found | {"learner/grad_norm": grad_norm, "learner/learning_rate": learning_rate}

    def _scales(self, members: Sequence[int]) -> dict[int, float]:
        scales = sequence_scales(
            [self.batch[index].group_id for index in members],
            [self.counts[index] for index in members],
            weighting=self.owner.settings.weighting,
            aggregation=self.owner.spec.aggregation,
            rollout_ids=[self.batch[index].rollout_key for index in members],
        )
        return {i: scale * self.batch[i].advantage_scale for i, scale in zip(members, scales, strict=True)}

    def _remember(self, seen: dict[int, SequenceRecord]) -> None:
        """Keep the first log-probs of each sequence of a step, and its latest clip fraction.

        Args:
            seen: Of this rank's packs alone: only the rank that ran a sequence knows how much of it was clipped.
        """
        for part in self.owner._gather(seen):
            for index, record in part.items():
                self.records.setdefault(index, record).clip_fraction = record.clip_fraction

    def _objective(
        self,
        pack: Pack,
        logprobs: Tensor,
        entropies: Tensor,
        fresh: dict[int, SequenceRecord],
        totals: BatchTotals,
        scales: dict[int, float],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss and metrics of one pack; writes what was clipped into ``fresh``, the records of its forward pass."""
        device, members = logprobs.device, pack.members
        old = joined([self._old(index, fresh) for index in members]).to(device)
        # A tensor entropy carries a gradient only where the objective asks for one: its backward is a pass over the logits.
        entropy = (entropies if self.owner.spec.needs_entropy else entropies.detach())[pack.rows.to(device)]
        terms = policy_objective(
            logprobs,
            old,
            flat_values(self.batch, members, [self.batch[i].sampler_logprobs for i in members]).to(device),
            torch.tensor([self.batch[index].advantage for index in members], device=device),
            pack.sequence_ids.to(device),
            self.owner.spec,
            totals=totals,
            ref_logprobs=self._reference(pack, device),
            entropy=entropy,
            scale=torch.tensor([scales[index] for index in members], device=device),
        )
        note_clipping(fresh, pack, terms.is_clipped)
        return terms.loss, terms.metrics

    def _old(self, index: int, fresh: dict[int, SequenceRecord]) -> FloatArray:
        """Log-probs the ratio of a sequence starts from: given, or those of the update's first pass over it."""
        given = self.batch[index].old_logprobs
        if given is not None:
            return np.asarray(given, dtype=np.float32)[trained_positions(self.batch[index])]
        return (self.records.get(index) or fresh[index]).logprobs

    def _reference(self, pack: Pack, device: torch.device) -> Tensor | None:
        if not self.owner.spec.needs_reference:
            return None
        return joined([self.reference[index].logprobs for index in pack.members]).to(device)


def _mean_metrics(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    names = {name: None for step in steps for name in step}
    found = {}
    for name in names:
        values = [step[name] for step in steps if name in step]
        found[name] = max(values) if name.startswith("max/") else sum(values) / len(values)
    return found | {"learner/optimizer_steps": float(len(steps))}
