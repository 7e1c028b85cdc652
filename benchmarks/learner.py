"""The update's share of the machine, beside a padded update of ours and TRL's, and how its time grows.

    python benchmarks/learner.py                       # all parts; makes .cache/venv-trl the first time
    python benchmarks/learner.py --parts mfu --groups 2 --repeats 1 --ways tree padded

``mfu``: one update of SmolLM2-135M on groups of 8 rollouts of 75 + 64 tokens: packed as prefix trees, packed as rows,
padded, and by TRL's GRPOTrainer, alternated, each in a process of its own. MFU counts the products that are needed
(distinct tokens, no recomputation) over the matrix-product peak measured in the same process around each update.
``tree``: groups of 8 episodes of 12 turns that share 60 % of their tokens, trees against padding.
``growth``: update time against group size and reply length, with a plot.
``selection``: updates of 4 groups of 8 x (75 + 128) tokens: all rollouts, and the half that CBS* keeps, and its own time.

Seconds are of the wall clock; ``cpu`` columns count processor time, which a busy machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

import torch
from learner_alone import RESULTS, growth, linearity, selection
from learner_sides import WAYS, compare, episode_batch, flat_group_batch, work

from winnowrl.agents.engines.hardware import choose_dtype
from winnowrl.training.cli.preload import MARK, start_environment
from winnowrl.training.packing import build_pack

PARTS = ("mfu", "tree", "growth", "selection")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=[*WAYS, "trl"], choices=[*WAYS, "trl"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="1 gives honest processor seconds")
    parser.add_argument(
        "--dtype", default=choose_dtype(), choices=("float32", "bfloat16"), help="default: what is fast here"
    )
    parser.add_argument("--worker", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--batch", default="flat", help=argparse.SUPPRESS)
    options = parser.parse_args()
    make = {
        "flat": lambda: flat_group_batch(options.groups, 8, 75, 64),
        "episodes": lambda: episode_batch(options.groups),
    }
    torch.set_num_threads(options.threads)
    # The workers, TRL's among them, read it when they start.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if options.worker:
        work(options.worker, make[options.batch](), options.dtype)
        return
    if MARK not in os.environ:
        # What `winnowrl train` does to itself.
        os.execve(sys.executable, sys.orig_argv, start_environment(os.environ))
    RESULTS.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "dtype": options.dtype,
        "threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
    }
    if "mfu" in options.parts:
        found["mfu"] = compare("mfu", make["flat"](), options.ways, options.repeats, _arguments(options, "flat"))
    if "tree" in options.parts:
        options.groups = min(options.groups, 2)
        batch = make["episodes"]()
        pack = build_pack(batch, range(len(batch)))
        found["tree_shared"] = 1 - pack.num_tokens / pack.num_unshared_tokens
        found["tree"] = compare("tree", batch, ["tree", "padded"], options.repeats, _arguments(options, "episodes"))
    if "growth" in options.parts:
        found["growth"] = growth(options.repeats, options.dtype)
        found["growth_line"] = linearity(found["growth"])
    if "selection" in options.parts:
        found["selection"] = selection(options.repeats, options.dtype)
    found["load_after"] = os.getloadavg()[0]
    path = RESULTS / "learner.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    # Parts measured another day stay in the file.
    path.write_text(json.dumps(kept | found, indent=1))
    _print(found)


def _arguments(options: argparse.Namespace, batch: str) -> list[str]:
    return [
        "--groups",
        str(options.groups),
        "--batch",
        batch,
        "--threads",
        str(options.threads),
        "--dtype",
        options.dtype,
    ]


def _print(found: dict[str, Any]) -> None:
    print(
        f"\nload {found['load_before']:.1f} before, {found['load_after']:.1f} after; {found['threads']} threads, {found['dtype']}"
    )
    for part in ("mfu", "tree"):
        if part not in found:
            continue
        best = found[part].get("tree", {})
        print(
            f"\n{part:8}{'seconds':>9}{'cpu s':>9}{'MFU':>7}{'MFU cpu':>9}{'GiB':>7}{'grad norm':>11}{'x tree, cpu':>13}"
        )
        for way, row in found[part].items():
            ratio = row["cpu_seconds"] / best["cpu_seconds"] if best else float("nan")
            print(
                f"{way:8}{row['seconds']:9.2f}{row['cpu_seconds']:9.2f}{row.get('mfu', float('nan')):7.2f}"
                f"{row.get('mfu_cpu', float('nan')):9.2f}{row['peak_rss_bytes'] / 2**30:7.2f}{row['grad_norm']:11.5f}"
                f"{ratio:13.2f}"
            )
    if "tree_shared" in found:
        print(f"tree: {100 * found['tree_shared']:.0f} % of the tokens are shared")
    if "growth_line" in found:
        line = found["growth_line"]
        print(
            f"\ngrowth: {1000 * line['seconds_per_token']:.2f} ms a distinct token + {line['seconds_fixed']:.2f} s, "
            f"R^2 {line['r_squared']:.4f}; plot in {RESULTS / 'learner_growth.png'}"
        )

    if "selection" in found:
        print("selection: " + ", ".join(f"{name} {value:.3g}" for name, value in found["selection"].items()))


if __name__ == "__main__":
    main()
