"""Our losses beside TRL's own loss code on the same random tensors: value and gradient, every loss type both have.

    python benchmarks/losses_vs_trl.py            # makes .cache/venv-trl the first time (a few minutes)

TRL runs in a process and an environment of its own: its trainer is created without its constructor, given the few
attributes its ``_compute_loss`` reads, and fed log-probs in place of a model's. A case either agrees to 1e-5 over all
seeds or states why the two differ; the run fails when one that should agree does not, or one that should differ does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".cache" / "venv-trl"
RESULTS = ROOT / "benchmarks" / "results"
REQUIREMENTS = ("torch==2.13.0", "trl>=1.16")
TOLERANCE = 1e-5
SEEDS = range(5)

DAPO = {"loss_type": "dapo", "aggregation": "token-mean"}
CISPO = {"loss_type": "cispo", "aggregation": "token-mean", "clip_low": 1.0, "clip_high": 4.0}

# name -> (our ObjectiveSpec fields, TRL settings, what is special in the data, why the two differ or "")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str, str]] = {
    "grpo": ({}, {"loss_type": "grpo"}, "", ""),
    "grpo clip-higher": ({"clip_high": 0.28}, {"loss_type": "grpo", "epsilon_high": 0.28}, "", ""),
    "grpo delta": ({"ratio_bound": 1.5}, {"loss_type": "grpo", "delta": 1.5}, "", ""),
    "grpo kl": ({"kl_coef": 0.04}, {"loss_type": "grpo", "beta": 0.04}, "", ""),
    "grpo kl weighted by ratio": (
        {"kl_coef": 0.04, "kl_ratio_weighted": True},
        {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": True},
        "",
        "",
    ),
    "grpo kl, zero advantages": (
        {"kl_coef": 0.04, "regularize_zero_advantage": True},
        {"loss_type": "grpo", "beta": 0.04},
        "zero advantages",
        "",
    ),
    "grpo token tis": ({"correction": "token_tis"}, {"loss_type": "grpo", "is_mode": "token_truncate"}, "", ""),
    "grpo token mis": (
        {"correction": "token_mis", "correction_cap_low": 0.7},
        {"loss_type": "grpo", "is_mode": "token_mask", "is_min": 0.7},
        "",
        "",
    ),
    "grpo sequence tis": (
        {"correction": "sequence_tis"},
        {"loss_type": "grpo", "is_mode": "sequence_truncate"},
        "",
        "",
    ),
    "grpo sequence mis": ({"correction": "sequence_mis"}, {"loss_type": "grpo", "is_mode": "sequence_mask"}, "", ""),
    "grpo off-policy mask": ({"off_policy_threshold": 0.02}, {"loss_type": "grpo", "off_policy": 0.02}, "", ""),
    "bnpo (token mean of one batch)": ({"aggregation": "token-mean"}, {"loss_type": "bnpo"}, "", ""),
    "dapo": (DAPO | {"clip_high": 0.28}, {"loss_type": "dapo", "epsilon_high": 0.28}, "", ""),
    "dapo, a row without tokens": (DAPO, {"loss_type": "dapo"}, "empty row", ""),
    "dapo entropy bonus": (DAPO | {"entropy_coef": 0.01}, {"loss_type": "dapo", "entropy_coef": 0.01}, "", ""),
    "dr_grpo": (
        {"loss_type": "dr_grpo", "aggregation": "seq-mean-token-sum-norm", "max_tokens": 64},
        {"loss_type": "dr_grpo"},
        "",
        "",
    ),
    "gspo": (
        {"loss_type": "gspo", "importance_level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 3e-4, "epsilon_high": 4e-4},
        "",
        "",
    ),
    "cispo": (CISPO, {"loss_type": "cispo", "epsilon_high": 5.0}, "", ""),
    "rloo": ({"loss_type": "rloo", "importance_level": "sequence_product"}, {"loss_type": "rloo"}, "", ""),
    "grpo, a row without tokens": (
        {},
        {"loss_type": "grpo"},
        "empty row",
        "a row without tokens counts in TRL's mean over rows and not in ours: its loss is 7/8 of ours",
    ),
    "grpo entropy bonus": (
        {"entropy_coef": 0.01},
        {"loss_type": "grpo", "entropy_coef": 0.01},
        "",
        "TRL averages the entropy over tokens whatever the loss; ours weighs it as the loss weighs its tokens",
    ),
    "grpo kl, zero advantages left alone": (
        {"kl_coef": 0.04},
        {"loss_type": "grpo", "beta": 0.04},
        "zero advantages",
        "ours lets a rollout without an advantage teach nothing; regularize_zero_advantage: true is TRL's way",
    ),
    "cispo with epsilon_high 0.28": (
        CISPO | {"clip_low": 0.2, "clip_high": 0.28},
        {"loss_type": "cispo", "epsilon_high": 0.28},
        "",
        "TRL takes epsilon_high of cispo as the cap itself, so 0.28 shrinks every weight; ours is 1 + clip_high",
    ),
    "grpo, NaN under the mask": (
        {},
        {"loss_type": "grpo"},
        "nan under mask",
        "TRL multiplies by the mask and NaN * 0 is NaN; ours never reads what is masked",
    ),
}


def make_data(special: str, seed: int) -> dict[str, torch.Tensor]:
    """[8, 24] log-probs, a mask with holes (tool tokens), and [8] advantages."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    rows, width = 8, 24
    lengths = torch.randint(4, width + 1, (rows,), generator=generator)
    mask = (torch.arange(width) < lengths[:, None]) & (torch.rand(rows, width, generator=generator) > 0.15)
    policy = -normal(rows, width).abs()
    data = {"policy": policy, "mask": mask, "advantages": normal(rows), "entropy": normal(rows, width).abs()}
    for name, scale in (("old", 0.3), ("sampler", 0.5), ("ref", 0.4)):
        base = data["old"] if name == "sampler" else policy
        data[name] = base + scale * normal(rows, width)
    if special == "empty row":
        data["mask"][3] = False
    if special == "zero advantages":
        data["advantages"][:4] = 0.0
    if special == "nan under mask":
        data["old"] = data["old"].masked_fill(~mask, float("nan"))
    return data


def ours(fields: dict[str, Any], data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Loss, and gradients in log-probs and entropy [2, 8, 24]."""
    from winnowrl.training.losses import ObjectiveSpec, padded_objective

    policy, entropy = (data[key].clone().requires_grad_() for key in ("policy", "entropy"))
    terms = padded_objective(
        policy,
        data["old"],
        data["sampler"],
        data["advantages"],
        data["mask"],
        ObjectiveSpec(**fields),
        ref_logprobs=data["ref"],
        entropy=entropy,
    )
    return {"loss": terms.loss.detach(), "grad": gradients(terms.loss, policy, entropy)}


def gradients(loss: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return torch.stack([torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)])


def theirs(settings: dict[str, Any], data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same from TRL's ``_compute_loss``; runs in TRL's environment."""
    from collections import defaultdict

    from trl import GRPOTrainer, RLOOTrainer

    policy, entropy = (data[key].clone().requires_grad_() for key in ("policy", "entropy"))
    is_rloo = settings["loss_type"] == "rloo"
    trainer = (RLOOTrainer if is_rloo else GRPOTrainer).__new__(RLOOTrainer if is_rloo else GRPOTrainer)
    count = data["mask"].sum()
    given = {"beta": 0.0, "delta": None, "use_bias_correction_kl": False, "entropy_coef": 0.0} | settings
    trainer.__dict__.update(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (policy, entropy, None),
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=given.get("off_policy"),
        importance_sampling_level=given.get("importance_sampling_level", "token"),
        beta=given["beta"],
        loss_type=given["loss_type"],
        epsilon_low=given.get("epsilon_low", 0.2),
        epsilon_high=given.get("epsilon_high", 0.2),
        use_vllm="is_mode" in given,
        vllm_importance_sampling_correction=True,
        max_completion_length=64,
        current_gradient_accumulation_steps=1,
        _entropy_bonus_enabled=given["entropy_coef"] != 0.0,
        use_adaptive_entropy=False,
        entropy_coef=given["entropy_coef"],
        model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)},
        args=SimpleNamespace(
            delta=given["delta"], use_bias_correction_kl=given["use_bias_correction_kl"], steps_per_generation=1
        ),
        accelerator=SimpleNamespace(
            num_processes=1, gather=lambda x: x, reduce=lambda x, reduction: x, sync_gradients=False
        ),
    )
    ids = torch.zeros_like(data["mask"], dtype=torch.long)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": data["mask"].float(),
        "advantages": data["advantages"],
        "old_per_token_logps": data["old"],
        "old_logps": (data["old"] * data["mask"]).sum(1),
        "ref_per_token_logps": data["ref"],
        "num_items_in_batch": count,
        "sampling_per_token_logps": data["sampler"],
    }
    if "is_mode" in given:
        inputs["importance_sampling_ratio"] = trl_sampling_ratio(given, data)
    loss = trainer._compute_loss(None, inputs)
    return {"loss": loss.detach(), "grad": gradients(loss, policy, entropy)}


def trl_sampling_ratio(given: dict[str, Any], data: dict[str, torch.Tensor]) -> torch.Tensor:
    """What TRL computes while it scores completions, with its documented modes; its code there needs a whole trainer."""
    difference = (data["old"] - data["sampler"]) * data["mask"]
    if given["is_mode"].startswith("sequence"):
        difference = difference.sum(-1, keepdim=True)
    ratio, low, high = torch.exp(difference), given.get("is_min", 0.0), 2.0
    if given["is_mode"].endswith("truncate"):
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


def trl_worker(output: Path) -> None:
    """Entry point in TRL's environment: every case, to one file."""
    found = {
        name: [theirs(settings, make_data(special, seed)) for seed in SEEDS]
        for name, (_, settings, special, _) in CASES.items()
    }
    torch.save({"version": importlib.metadata.version("trl"), "cases": found}, output)


def trl_python() -> Path:
    """Interpreter of TRL's environment, made where it is missing."""
    python = ENVIRONMENT / "bin" / "python"
    ready = ENVIRONMENT / "ready"
    if not ready.exists():
        print(f"making {ENVIRONMENT.relative_to(ROOT)} with {', '.join(REQUIREMENTS)}", flush=True)
        venv.create(ENVIRONMENT, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        ready.touch()
    return python


def compare(name: str, mine: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """Largest differences over the seeds; the two losses are those of the first."""
    reason = CASES[name][3]
    gaps = {
        key: float(torch.stack([(a[key] - b[key]).abs().max() for a, b in zip(mine, other, strict=True)]).max())
        for key in ("loss", "grad")
    }
    loss_gap, grad_gap = gaps["loss"], gaps["grad"]
    agrees = loss_gap <= TOLERANCE and grad_gap <= TOLERANCE
    return {
        "case": name,
        "ours": float(mine[0]["loss"]),
        "trl": float(other[0]["loss"]),
        "loss_difference": loss_gap,
        "gradient_difference": grad_gap,
        "verdict": "equal" if agrees else ("differs as stated" if reason else "DIFFERS"),
        "reason": reason,
        "as_expected": agrees != bool(reason),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trl-worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trl_worker:
        trl_worker(arguments.trl_worker)
        return 0
    RESULTS.mkdir(parents=True, exist_ok=True)
    output = RESULTS / "losses_vs_trl.pt"
    subprocess.run([trl_python(), Path(__file__), "--trl-worker", output], check=True, timeout=900)
    found = torch.load(output)
    rows = [
        compare(name, [ours(fields, make_data(special, seed)) for seed in SEEDS], found["cases"][name])
        for name, (fields, _, special, _) in CASES.items()
    ]
    print(f"TRL {found['version']}, torch {torch.__version__}; tolerance {TOLERANCE}")
    print(f"{'case':38} {'ours':>12} {'TRL':>12} {'|loss diff|':>12} {'|grad diff|':>12}  verdict")
    for row in rows:
        print(
            f"{row['case']:38} {row['ours']:12.6f} {row['trl']:12.6f} {row['loss_difference']:12.1e} "
            f"{row['gradient_difference']:12.1e}  {row['verdict']}"
        )
        if row["reason"]:
            print(f"{'':38} {row['reason']}")
    report = {"trl": found["version"], "torch": torch.__version__, "rows": rows}
    (RESULTS / "losses_vs_trl.json").write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(row["as_expected"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
