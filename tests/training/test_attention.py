from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch

from winnowrl.training.attention import IMPLEMENTATIONS, plan_blocks, tree_attention, tree_layout
from winnowrl.training.batch import TrainingSequence
from winnowrl.training.packing import Pack, build_pack


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small are faster on one thread, and on a busy machine many times faster."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_pack(seed: int, *, groups: int = 3, longest_prompt: int = 300, longest: int = 90) -> Pack:
    rng = random.Random(seed)
    sequences = []
    for group in range(groups):
        prompt = [group, *(rng.randrange(50) for _ in range(rng.randint(2, longest_prompt)))]
        for _ in range(5):
            ids = prompt + [rng.randrange(2) for _ in range(rng.randint(2, longest))]
            mask = [t >= len(prompt) for t in range(len(ids))]
            sequences.append(TrainingSequence(ids, mask, [0.0] * len(ids), 1.0, group, 0))
    return build_pack(sequences, range(len(sequences)))


def attend_by_loop(query, key, value, pack, scale, window=None):
    """[P, H, D]: softmax over each token's own ancestors, in float64."""
    heads, size, _ = query.shape
    share = heads // key.shape[0]
    out = torch.zeros(size, heads, query.shape[2], dtype=torch.float64)
    for q in range(size):
        seen = [k for k in range(q + 1) if q < pack.subtree_end[k]]
        seen = [k for k in seen if window is None or pack.positions[q] - pack.positions[k] < window]
        for h in range(heads):
            weights = torch.softmax(key[h // share, seen].double() @ query[h, q].double() * scale, 0)
            out[q, h] = weights @ value[h // share, seen].double()
    return out


def inputs(pack: Pack, heads: int = 6, groups: int = 2, width: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, pack.num_tokens, width), *[(1, groups, pack.num_tokens, width)] * 2]
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # on a CPU we mean to
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("window", [None, 3])
def test_every_implementation_equals_a_loop_over_ancestors(implementation: str, window: int | None) -> None:
    pack = random_pack(0, longest_prompt=12, longest=8)
    query, key, value = (tensor.detach() for tensor in inputs(pack))
    layout = tree_layout(pack.positions, pack.subtree_end, implementation=implementation)
    with torch.no_grad():
        out, _ = tree_attention(None, query, key, value, None, tree=layout, scaling=0.3, sliding_window=window)
    expected = attend_by_loop(query[0], key[0], value[0], pack, 0.3, window)
    torch.testing.assert_close(out[0].double(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_blocks_equal_those_of_the_dense_mask(seed: int) -> None:
    pack = random_pack(seed)
    found = {}
    for implementation in ("blocks", "dense"):
        tensors = inputs(pack)
        layout = tree_layout(pack.positions, pack.subtree_end, implementation=implementation)
        out, _ = tree_attention(None, *tensors, None, tree=layout)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        found[implementation] = [out.detach(), *(tensor.grad for tensor in tensors)]
    for blocks, dense in zip(found["blocks"], found["dense"], strict=True):
        torch.testing.assert_close(blocks, dense, rtol=1e-4, atol=2e-5)


def test_in_bfloat16_only_what_goes_in_and_comes_out_is_rounded() -> None:
    pack = random_pack(1)
    halves = [(4 * tensor).to(torch.bfloat16).detach().requires_grad_() for tensor in inputs(pack)]
    exact = [half.detach().double().requires_grad_() for half in halves]
    found = {}
    for name, tensors in (("half", halves), ("exact", exact)):
        layout = tree_layout(pack.positions, pack.subtree_end, implementation="blocks" if name == "half" else "dense")
        out, _ = tree_attention(None, *tensors, None, tree=layout)
        out.backward(torch.linspace(-1, 1, out.numel()).view_as(out).to(out.dtype))
        found[name] = [out.detach(), *(tensor.grad for tensor in tensors)]
    for half, expected in zip(found["half"], found["exact"], strict=True):
        # bfloat16 resolves 2^-8; log-sums rounded to it would be off by several per cent of the largest logits.
        assert (half.double() - expected).norm() < 0.01 * expected.norm()


def test_blocks_cover_the_pack_once_and_skip_what_is_not_seen() -> None:
    pack = random_pack(1)
    blocks = plan_blocks(pack.positions.numpy(), pack.subtree_end.numpy())
    assert [block.start for block in blocks[1:]] == [block.end for block in blocks[:-1]]
    assert (blocks[0].start, blocks[-1].end) == (0, pack.num_tokens)
    computed = sum(block.hidden.numel() for block in blocks)
    assert pack.num_attention_pairs <= computed < 0.5 * pack.num_tokens**2


def test_a_long_chain_is_cut_so_that_the_causal_half_is_skipped() -> None:
    size = 2000
    positions, ends = torch.arange(size), torch.full((size,), size)
    blocks = plan_blocks(positions.numpy(), ends.numpy())
    assert sum(block.hidden.numel() for block in blocks) < 0.6 * size**2


def test_an_unknown_implementation_and_an_unsupported_feature_are_refused() -> None:
    with pytest.raises(ValueError, match="allowed: blocks, flex, dense"):
        tree_layout(torch.arange(2), torch.tensor([2, 2]), implementation="magic")
    layout = tree_layout(torch.arange(2), torch.tensor([2, 2]))
    with pytest.raises(ValueError, match="softcap"):
        tree_attention(torch.nn.Identity(), *[torch.zeros(1, 1, 2, 4)] * 3, None, tree=layout, softcap=30.0)
