"""Plays one episode in the terminal: a person types, or a model writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from winnowrl.envs.base import TextEnv
from winnowrl.envs.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = '"""'


class Player(Protocol):
    """Whoever answers. None gives up."""

    def reply(self, observation: str, info: dict[str, Any]) -> str | None: ...


class PersonPlayer:
    """Reads replies from the terminal: a line, or several between two lines of three quotes."""

    def __init__(self, read: Callable[[str], str] = input) -> None:
        self._read = read

    def reply(self, observation: str, info: dict[str, Any]) -> str | None:
        try:
            line = self._read("you> ")
            if line.strip() != BLOCK:
                return line
            lines = []
            while (line := self._read("...> ")).strip() != BLOCK:
                lines.append(line)
            return "\n".join(lines)
        except EOFError:
            return None


class ModelPlayer:
    """A Hugging Face model; with a chat template as a conversation, without one as plain text that goes on.

    Args:
        model: Folder, hub name, or ``smollm2-135m``.
        environment: Its system prompt and stop strings are used.
        max_tokens: Of one reply. temperature: 0 is greedy. seed: Of the sampling.

    Raises:
        ValueError: no model, or none with a tokenizer, can be read there.
    """

    def __init__(self, model: str, environment: TextEnv, *, max_tokens: int, temperature: float, seed: int) -> None:
        import torch

        from winnowrl.training.model_loading import load_model, load_tokenizer, resolve_model_path

        path = str(resolve_model_path(model))
        self._model = load_model(path, dtype="auto", device="cuda" if torch.cuda.is_available() else "cpu").eval()
        self._tokenizer = load_tokenizer(path)
        self._stop = list(environment.stop)
        self._max_tokens, self._temperature, self._seed = max_tokens, temperature, seed
        # An environment whose replies end with a line shows a base model how to go on; it is no conversation.
        self._is_chat = bool(self._tokenizer.chat_template) and "\n" not in self._stop
        self._messages: list[dict[str, str]] = []
        if environment.system_prompt:
            self._messages.append({"role": "system", "content": environment.system_prompt})

    def reply(self, observation: str, info: dict[str, Any]) -> str | None:
        import torch

        self._messages.append({"role": "user", "content": observation})
        if self._is_chat:
            prompt = self._tokenizer.apply_chat_template(self._messages, tokenize=False, add_generation_prompt=True)
        else:
            prompt = "".join(message["content"] for message in self._messages)
        inputs = self._tokenizer(prompt, return_tensors="pt", add_special_tokens=False).to(self._model.device)
        sampling: dict[str, Any] = {"do_sample": False}
        if self._temperature > 0:
            sampling = {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0}
        if self._stop:
            sampling |= {"stop_strings": self._stop, "tokenizer": self._tokenizer}
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(self._seed + len(self._messages))
            written = self._model.generate(**inputs, max_new_tokens=self._max_tokens, **sampling)
        reply = str(self._tokenizer.decode(written[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
        self._messages.append({"role": "assistant", "content": reply})
        print(f"model> {reply}")
        return reply


def play_episode(
    environment: TextEnv, task: Task, player: Player, *, seed: int = 0, max_turns: int | None = None
) -> float:
    """Play ``task`` to its end or ``max_turns``, printing what happens. Returns the sum of the rewards."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.rule(f"task {escape(task.id)}", style="dim")
    if environment.system_prompt:
        console.print(environment.system_prompt, markup=False, style="dim")
    observation, info = environment.reset(seed=seed, options={"task": task})
    total, turn = 0.0, 0
    while True:
        console.print(observation, markup=False)
        if info.get("admissible_actions"):
            console.print("allowed: " + " | ".join(info["admissible_actions"]), markup=False, style="dim")
        reply = player.reply(observation, info)
        if reply is None:
            console.print("\ngiven up", style="dim")
            return total
        observation, reward, terminated, truncated, info = environment.step(reply)
        turn += 1
        total += reward
        is_over = terminated or truncated or (max_turns is not None and turn >= max_turns)
        _tell(console, turn, reward, info)
        if is_over:
            if observation:
                console.print(observation, markup=False)
            why = "the environment ended it" if terminated else "the turn limit ended it"
            console.rule(f"reward {total:g} in {turn} turns; {why}", style="dim")
            return total


def _tell(console: Any, turn: int, reward: float, info: dict[str, Any]) -> None:
    told = f"turn {turn}: reward {reward:g}"
    verdict = info.get("verdict")
    if verdict is not None:
        told += f", {verdict.status}" + (f" ({verdict.reason})" if verdict.reason else "")
    console.print(told, markup=False, style="dim")
