"""The peer's side of ``benchmarks/collector.py``: the same episodes through verifiers' in-process ``MultiTurnEnv``.

Runs in the peer's own virtual environment. Reads lines ``PATH EPISODES`` and answers each with the wall-clock and the
processor seconds it took. ``rollout`` is the bare rollout loop; ``run_group`` adds the scoring and the output records
that a trainer gets.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import verifiers.legacy as vf
from verifiers.legacy.clients import Client
from verifiers.legacy.types import Response, ResponseMessage, ResponseTokens, Usage

TURNS = 4
GROUP = 8
REPLY = "go to drawer 3\n"
REPLY_IDS = list(range(10, 18))


class ScriptedClient(Client):  # type: ignore[misc]
    """Answers at once with the same reply and its token ids."""

    def setup_client(self, config: Any) -> None: ...
    async def to_native_tool(self, tool: Any) -> Any: ...
    async def to_native_prompt(self, messages: Any) -> Any: ...
    async def get_native_response(self, *args: Any, **kwargs: Any) -> Any: ...
    async def raise_from_native_response(self, response: Any) -> None: ...
    async def from_native_response(self, response: Any) -> Any: ...
    async def close(self) -> None: ...

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **kwargs: Any) -> Any:
        tokens = ResponseTokens(
            prompt_ids=list(range(20 * len(prompt))),
            prompt_mask=[0] * (20 * len(prompt)),
            completion_ids=REPLY_IDS,
            completion_mask=[1] * 8,
            completion_logprobs=[-0.5] * 8,
        )
        message = ResponseMessage(content=REPLY, finish_reason="stop", is_truncated=False, tokens=tokens)
        usage = Usage(prompt_tokens=20, reasoning_tokens=0, completion_tokens=8, total_tokens=28)
        return Response(id="0", created=0, model=model, usage=usage, message=message)


class FourTurns(vf.MultiTurnEnv):  # type: ignore[misc, name-defined]
    """Answers each reply with a line; over after four turns."""

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        return [vf.UserMessage(content=f"You are at drawer {len(state['trajectory'])}. It is closed.\n")]


def reward(completion: Any, **kwargs: Any) -> float:
    return float(len(completion) % 2)


async def collect(env: Any, client: Any, path: str, num_episodes: int) -> tuple[float, float]:
    prompt = [{"role": "user", "content": "You are in a room with ten drawers. Your task: find the key.\n"}]
    inputs = [{"prompt": prompt, "answer": "", "example_id": i // GROUP} for i in range(num_episodes)]
    begun, begun_cpu = time.perf_counter(), time.process_time()
    if path == "rollout":
        states = await asyncio.gather(*(env.rollout(each, client, "m", {}) for each in inputs))
        assert all(len(state["trajectory"]) == TURNS for state in states)
    else:
        groups = [inputs[i : i + GROUP] for i in range(0, num_episodes, GROUP)]
        done = await asyncio.gather(*(env.run_group(group, client, "m", {}) for group in groups))
        assert sum(map(len, done)) == num_episodes
    return time.perf_counter() - begun, time.process_time() - begun_cpu


def main() -> None:
    os.sched_setaffinity(0, {int(sys.argv[1])})
    from datasets import Dataset

    env = FourTurns(
        max_turns=TURNS,
        dataset=Dataset.from_list([{"question": "q", "answer": "a"}]),
        rubric=vf.Rubric(funcs=[reward]),
    )
    client = ScriptedClient(None)
    print("ready", flush=True)
    for line in sys.stdin:
        path, count = line.split()
        print(*asyncio.run(collect(env, client, path, int(count))), flush=True)


if __name__ == "__main__":
    main()
