"""What a gate saves and costs on ALFWorld games, against the truth: the same rollouts, run ungated.

    python benchmarks/gate_alfworld.py [--games FOLDER] [--steps 20] [--tasks 8] [--members 8] [--turns 30]
                                       [--gate-turn 6] [--thresholds 0.05,0.12,0.2,0.3] [--audit 0.2] [--seed 0]

No model: ``converging_policy.py`` writes the replies. Each group draws how closely its members follow a plan they share,
and whether that plan succeeds. All else is the real path: SmolLM2's tokenizer and chat template, the games, collector,
gate, audit, ledger. Every step is collected ungated (twice: the first time fills the games' memory of states and is not
timed) and once for each threshold, with the same seeds, in an order that rotates.

Checked on the way, to the token: both ungated collections agree; groups that a gate lets run and groups it audits are
those of the ungated collection; a stopped group is a beginning of its ungated one. Prints a table, writes
benchmarks/results/gate_alfworld.json and the recorded rollouts of the ungated arm, which ``winnowrl gate fit`` reads.
The engine answers at once, so the seconds are those of collection and games alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from converging_policy import ConvergingPolicy
from rich.console import Console
from rich.table import Table

from winnowrl.agents.collector import Collector, StepRollouts, build_collector
from winnowrl.agents.conversation import ConversationFactory, build_conversations
from winnowrl.agents.engines.base import Sampling
from winnowrl.agents.engines.scripted import ScriptedEngine
from winnowrl.agents.ledger import Ledger, record_gate_outcomes
from winnowrl.agents.recording import write_rollouts
from winnowrl.agents.rollout import Group, Rollout
from winnowrl.configs.sections.collector import CollectorConfig
from winnowrl.configs.sections.engine import ConversationConfig
from winnowrl.envs.alfworld import walkthrough
from winnowrl.gates import AuditLedger, AuditSampler, PrefixEditDistanceGate
from winnowrl.gates.allocation import UniformAllocator
from winnowrl.gates.intervals import has_variance, squared_advantages
from winnowrl.training.model_loading import load_tokenizer, resolve_model_path

RESULTS = Path(__file__).parent / "results"
REPLY_TOKENS = 32
# A busy machine must not fail an episode: what is compared is what was played, not when.
PATIENCE_S = 3600.0


@dataclass
class Arm:
    """One setting of the gate (0 = ungated) and what it came to."""

    threshold: float
    collector: Collector
    ledger: Ledger = field(default_factory=Ledger)
    audit: AuditLedger = field(default_factory=AuditLedger)
    tokens: int = 0
    seconds: float = 0.0
    right: int = 0
    wrong: int = 0
    kept_l2_squared: float = 0.0

    def record(self, result: StepRollouts, truth: list[Group]) -> None:
        """Enter a step, and judge each stop by how the same group ended ungated."""
        self.ledger.record_collection(result)
        record_gate_outcomes(self.audit, result.groups)
        self.tokens += result.num_completion_tokens
        self.seconds += result.collect_s
        for group, whole in zip(result.groups, truth, strict=True):
            if group.gate_stop:
                self.wrong += has_variance(whole.rewards)
                self.right += not has_variance(whole.rewards)
            else:
                self.kept_l2_squared += squared_advantages(whole.rewards)

    def row(self, ungated: Arm) -> dict[str, Any]:
        """The figures of the table; ``true_*`` are read off the ungated arm."""
        counts, (low, high) = self.audit.counts, self.audit.precision_interval
        stops = self.right + self.wrong
        total = ungated.kept_l2_squared
        return {
            "threshold": self.threshold,
            "stops": stops,
            "audited": counts.judged,
            "tokens": self.tokens,
            "tokens_ungated": ungated.tokens,
            "true_saved": ungated.tokens - self.tokens,
            "ledger_saved": self.ledger.saved_tokens,
            "audit_saved": self.audit.tokens_saved[0],
            "audit_tokens": self.ledger.total.audit,
            "true_precision": self.right / stops if stops else math.nan,
            "audit_precision": counts.tp / counts.judged if counts.judged else math.nan,
            "audit_precision_low": low,
            "audit_precision_high": high,
            "true_advantage_kept": math.sqrt(self.kept_l2_squared / total) if total else 1.0,
            "audit_advantage_kept": self.audit.advantage_kept,
            "seconds": self.seconds,
            "seconds_ungated": ungated.seconds,
            "estimated_seconds_saved": self.ledger.saved_s,
        }


def facts(rollout: Rollout) -> tuple[Any, ...]:
    """All that two equal rollouts share; times differ."""
    return (
        rollout.rollout_id, rollout.seed, rollout.token_ids, rollout.completion_mask, rollout.sampler_logprobs,
        rollout.actions, rollout.reward, rollout.stop_reason, rollout.terminated, rollout.truncated,
    )  # fmt: skip


def check_exact(groups: list[Group], truth: list[Group]) -> None:
    """Exit unless the gate changed nothing but where it stopped."""
    for group, whole in zip(groups, truth, strict=True):
        for rollout, other in zip(group.rollouts, whole.rollouts, strict=True):
            if rollout.stop_reason == "gate":
                length = len(rollout.token_ids)
                is_same = rollout.token_ids == other.token_ids[:length] and rollout.seed == other.seed
            else:
                is_same = facts(rollout) == facts(other)
            if not is_same:
                ends = [f"{r.stop_reason} {r.error or ''} after {len(r.turns)} turns" for r in (rollout, other)]
                raise SystemExit(
                    f"rollout {rollout.rollout_id} of {group.task.id} differs from its ungated one: {' / '.join(ends)}"
                )


def make_arm(options: argparse.Namespace, threshold: float, engine: ScriptedEngine, talk: ConversationFactory) -> Arm:
    gate = PrefixEditDistanceGate(turn=options.gate_turn, threshold=threshold) if threshold else None
    collector = build_collector(
        CollectorConfig(
            max_turns=options.turns,
            turn_deadline_s=PATIENCE_S,
            episode_deadline_s=PATIENCE_S,
            step_deadline_s=PATIENCE_S,
        ),
        engine=engine,
        new_conversation=talk,
        env_id="winnowrl/ALFWorld-v0",
        env_kwargs={"games": options.games, "step_timeout_s": PATIENCE_S, "reset_timeout_s": PATIENCE_S},
        sampling=Sampling(REPLY_TOKENS, stop_token_ids=talk.end_token_ids),
        allocator=UniformAllocator(options.members),
        run_seed=options.seed,
        gate=gate,
        audit=AuditSampler(options.audit, options.seed) if gate else None,
    )
    return Arm(threshold, collector)


async def run(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    model = resolve_model_path("smollm2-135m")
    budgets = ConversationConfig(
        turn_tokens=REPLY_TOKENS, rollout_tokens=REPLY_TOKENS * options.turns, context_tokens=1 << 17
    )
    talk = build_conversations(budgets, load_tokenizer(model), model)
    codec = talk.template.codec
    policy = ConvergingPolicy(codec, run_seed=options.seed, num_members=options.members, max_turns=options.turns)
    engine = ScriptedEngine(policy, codec, end_token_id=talk.end_token_ids[-1])
    arms = [make_arm(options, threshold, engine, talk) for threshold in (0.0, *options.thresholds)]
    ungated, gated = arms[0], arms[1:]
    task_set = ungated.collector.task_set("train")
    num_equal = num_groups = 0
    for step in range(1, options.steps + 1):
        dice = random.Random(options.seed * 10_000 + step)
        tasks = [task_set[index] for index in dice.sample(range(len(task_set)), min(options.tasks, len(task_set)))]
        solutions = [walkthrough(task) for task in tasks]

        async def collect(arm: Arm) -> StepRollouts:
            policy.begin(step, tasks, solutions)  # noqa: B023 - called within the same step
            return await arm.collector.collect(tasks, step=step, policy_version=0)  # noqa: B023

        truth = (await collect(ungated)).groups
        num_groups += len(truth)
        num_equal += sum(not has_variance(group.rewards) for group in truth)
        turn = step % len(arms)
        for arm in arms[turn:] + arms[:turn]:
            result = await collect(arm)
            check_exact(result.groups, truth)
            arm.record(result, truth)
            if arm is ungated:
                write_rollouts(RESULTS / "gate_alfworld" / "rollouts", step, result.groups)
        console.print(f"step {step}/{options.steps}: {num_groups} groups, {num_equal} of equal rewards", style="dim")
    for arm in arms:
        await arm.collector.close()
    console.print(
        f"{num_groups} groups of {options.members}, {num_equal} of equal rewards; ungated {ungated.tokens:,} tokens, "
        f"{ungated.seconds:.1f} s. Every rollout that no gate stopped is the ungated one, to the token."
    )
    return [arm.row(ungated) for arm in gated]


def show(rows: list[dict[str, Any]], options: argparse.Namespace) -> Table:
    table = Table(title=f"Gate at turn {options.gate_turn}, audits {options.audit:.0%} (true: from the ungated arm)")
    for name in ("d below", "stops", "tokens saved: true", "ledger", "audit", "precision: true", "audit (95% interval)",
                 "L2 kept: true", "audit", "seconds", "ungated"):  # fmt: skip
        table.add_column(name, justify="right")
    for row in rows:
        share = row["true_saved"] / row["tokens_ungated"]
        table.add_row(
            f"{row['threshold']:g}",
            f"{row['stops']}",
            f"{row['true_saved']:,} ({share:.1%})",
            f"{row['ledger_saved']:,.0f}",
            f"{row['audit_saved']:,.0f}",
            f"{row['true_precision']:.3f}",
            f"{row['audit_precision']:.3f} of {row['audited']} "
            f"({row['audit_precision_low']:.2f}-{row['audit_precision_high']:.2f})",
            f"{row['true_advantage_kept']:.3f}",
            f"{row['audit_advantage_kept']:.3f}",
            f"{row['seconds']:.1f}",
            f"{row['seconds_ungated']:.1f}",
        )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", default="shipped", help="folder of games; shipped by default")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tasks", type=int, default=8, help="groups a step, of different tasks")
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--turns", type=int, default=30, help="turns of an episode at most")
    parser.add_argument("--gate-turn", type=int, default=6)
    parser.add_argument("--thresholds", default="0.05,0.12,0.2,0.3")
    parser.add_argument("--audit", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.thresholds = [float(part) for part in options.thresholds.split(",")]
    console, load = Console(width=160), os.getloadavg()
    shutil.rmtree(RESULTS / "gate_alfworld", ignore_errors=True)
    rows = asyncio.run(run(options, console))
    console.print(show(rows, options))
    console.print(f"load average {load[0]:.1f} before, {os.getloadavg()[0]:.1f} after")
    (RESULTS / "gate_alfworld.json").write_text(
        json.dumps({"options": vars(options), "load": load, "rows": rows}, indent=1)
    )
    console.print(f"now: winnowrl gate fit {RESULTS / 'gate_alfworld'}", highlight=False)


if __name__ == "__main__":
    main()
