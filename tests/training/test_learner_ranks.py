"""The learner in processes of its own: several ranks over gloo, without a compiler, in a group another part made."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CASES = Path(__file__).parent

# Two updates of the same batch; rank 0 writes weights and metrics, and what save and load gave after a third.
RANK_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from learner_cases import make_batch, tiny_model
from winnowrl.configs.sections.learner import LearnerConfig
from winnowrl.training.learner import assemble_learner
from winnowrl.training.losses import ObjectiveSpec

found = {}
for stage in (0, 1, 2, 3):
    config = LearnerConfig(learning_rate=1e-2, zero_stage=stage, grad_clip=0.5, adam_eps=1e-3,
                           max_tokens_per_microbatch=25, num_minibatches=2)
    spec = ObjectiveSpec(aggregation="token-mean", correction="token_tis", kl_coef=0.1)
    learner = assemble_learner(tiny_model(), config, spec, num_updates=3)
    batch = make_batch()
    for _ in range(2):
        result = learner.update(batch)
    weights = {name: tensor.clone() for name, tensor in learner.named_weights()}
    folder = f"{sys.argv[2]}/stage{stage}-of-{learner.engine.world_size}"
    learner.save(folder)
    third = learner.update(batch).metrics["loss/total"]
    learner.close()
    again = assemble_learner(tiny_model(), config, spec, num_updates=3)
    again.load(folder)
    repeats = again.update(batch).metrics["loss/total"] == third
    again.close()
    sequences = {rollout_id: (s.entropy, sum(s.logprobs)) for rollout_id, s in result.sequences.items()}
    found[stage] = (weights, result.metrics, sequences, repeats)
if torch.distributed.get_rank() == 0:
    torch.save(found, sys.argv[3])
torch.distributed.destroy_process_group()
"""

# One update of several passes over several minibatches, each dealt out to the ranks anew, with steps so large that many
# ratios are clipped; rank 0 writes weights, metrics and clip fractions, by passes and minibatches.
PASSES_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
from learner_cases import make_batch, tiny_model
from winnowrl.configs.sections.learner import LearnerConfig
from winnowrl.training.learner import assemble_learner
from winnowrl.training.losses import ObjectiveSpec

found = {}
for passes, minibatches in ((2, 1), (1, 2), (2, 2), (3, 2)):
    config = LearnerConfig(learning_rate=3e-2, grad_clip=0.5, adam_eps=1e-3, max_tokens_per_microbatch=25,
                           num_iterations=passes, num_minibatches=minibatches)
    learner = assemble_learner(tiny_model(), config, ObjectiveSpec(aggregation="token-mean"), num_updates=3)
    result = learner.update(make_batch())
    weights = torch.cat([tensor.flatten() for _, tensor in learner.named_weights()])
    clipped = {rollout_id: stats.clip_fraction for rollout_id, stats in result.sequences.items()}
    logprobs = {rollout_id: stats.logprobs for rollout_id, stats in result.sequences.items()}
    found[passes, minibatches] = weights, result.metrics, clipped, logprobs
    learner.close()
if torch.distributed.get_rank() == 0:
    torch.save(found, sys.argv[3])
torch.distributed.destroy_process_group()
"""


def run_ranks(world_size: int, folder: Path, program: str = RANK_PROGRAM) -> dict:
    """Run the program on ``world_size`` processes; returns what rank 0 found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    out = folder / f"found-{world_size}.pt"
    processes = []
    for rank in range(world_size):
        env = os.environ | {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        command = [sys.executable, "-W", "ignore", "-c", program, str(CASES), str(folder), str(out)]
        processes.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    outputs = [process.communicate(timeout=250)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * world_size, "\n".join(outputs)
    found: dict = torch.load(out, weights_only=False)
    return found


@pytest.mark.slow
def test_two_ranks_and_every_zero_stage_give_the_weights_of_one_process(tmp_path: Path) -> None:
    one, two = run_ranks(1, tmp_path), run_ranks(2, tmp_path)
    expected_weights, expected_metrics, expected_sequences, _ = one[0]
    for found in (one, two):
        for stage, (weights, metrics, sequences, repeats) in found.items():
            for name, tensor in expected_weights.items():
                torch.testing.assert_close(
                    weights[name], tensor, rtol=1e-4, atol=5e-5, msg=lambda m, n=name, s=stage: f"ZeRO-{s} {n}: {m}"
                )
            for name in ("loss/total", "learner/grad_norm", "policy/entropy", "max/ratio", "learner/tokens_trained"):
                assert metrics[name] == pytest.approx(expected_metrics[name], rel=2e-3, abs=1e-5), (stage, name)
            assert list(sequences) == list(expected_sequences)
            for rollout_id, values in expected_sequences.items():
                assert sequences[rollout_id] == pytest.approx(values, rel=1e-3, abs=1e-3)
            assert repeats, f"ZeRO-{stage}: a loaded learner went on differently"


@pytest.mark.slow
def test_ranks_keep_the_first_log_probs_and_the_last_clip_fraction_of_what_moves_between_them(tmp_path: Path) -> None:
    one, two = (run_ranks(world_size, tmp_path, PASSES_PROGRAM) for world_size in (1, 2))
    for steps, (weights, metrics, clipped, logprobs) in one.items():
        other_weights, other_metrics, other_clipped, other_logprobs = two[steps]
        torch.testing.assert_close(other_weights, weights, rtol=1e-4, atol=5e-5, msg=lambda m, s=steps: f"{s}: {m}")
        for name in ("max/ratio", "ratio/mean", "clip/high", "kl/step"):
            assert other_metrics[name] == pytest.approx(metrics[name], rel=1e-3, abs=1e-5), (steps, name)
        assert any(clipped.values()), "nothing was clipped: the steps are too small for this test"
        assert other_clipped == pytest.approx(clipped), steps
        for rollout_id, expected in logprobs.items():
            assert other_logprobs[rollout_id] == pytest.approx(expected, abs=1e-4), (steps, rollout_id)


def run_alone(program: str, **env: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "TMPDIR", "HF_HUB_OFFLINE")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=kept | env, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_one_process_needs_no_compiler_launcher_or_open_port() -> None:
    program = """
import torch, socket
torch.set_num_threads(1)
bind = socket.socket.bind
def refuse(*args): raise OSError("no port may be opened")
socket.socket.bind = refuse
from winnowrl.training.learner.selftest import one_step_on_a_tiny_model
print(one_step_on_a_tiny_model())
"""
    said = run_alone(program, PATH="/nowhere", CC="/nowhere/cc", CXX="/nowhere/c++")
    assert "one step on 1 threads" in said
    # Quiet: nothing but our own line (other packages may warn on import).
    assert "DeepSpeed" not in said
    assert "INFO" not in said


@pytest.mark.slow
def test_a_group_that_another_part_of_the_process_made_is_joined() -> None:
    # What an in-process vLLM does before the learner starts.
    program = """
import torch, tempfile
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
from winnowrl.training.learner.selftest import one_step_on_a_tiny_model
print(one_step_on_a_tiny_model(), one_step_on_a_tiny_model())
assert torch.distributed.is_initialized()
"""
    assert run_alone(program, PATH=os.environ["PATH"]).count("one step") == 2
