"""``winnowrl/GuessNumber-v0``: a multi-turn game; the environment answers each guess with higher or lower."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from winnowrl.envs.base import StepResult, TextEnv
from winnowrl.envs.tasks import Task, TaskSet
from winnowrl.envs.verdict import Verdict


class GuessNumberEnv(TextEnv):
    """Find a secret integer in ``1..highest`` within ``max_guesses`` guesses.

    Args:
        highest: Largest secret (3 or more). Multiples of three are held out, the others are train tasks.
        max_guesses: The game is lost (terminated, reward 0) after this many guesses.
        num_train: Train tasks; ``num_eval``: held-out tasks.
        seed: Decides the order of the secrets.

    Reward: 1 at the right guess, else 0. A reply without an integer costs a guess.
    """

    stop = ("\n",)

    def __init__(
        self,
        highest: int = 100,
        max_guesses: int = 7,
        num_train: int = 1024,
        num_eval: int = 256,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(render_mode)
        if highest < 3:
            raise ValueError(f"highest is {highest}; allowed: 3 or more")
        if max_guesses < 1:
            raise ValueError(f"max_guesses is {max_guesses}; allowed: 1 or more")
        self.highest, self.max_guesses, self.seed = highest, max_guesses, seed
        self.counts = {"train": num_train, "eval": num_eval}
        self._guesses = 0

    def task_set(self, split: str) -> TaskSet:
        if split not in self.counts:
            raise ValueError(f"GuessNumber has no split {split!r}; it has: train, eval")
        # Every third secret is held out, so no held-out secret is ever a train task.
        secrets = [n for n in range(1, self.highest + 1) if (n % 3 == 0) == (split == "eval")]
        order = np.random.default_rng([self.seed, len(split)]).permutation(len(secrets))
        chosen = [secrets[i] for i in order.tolist()][: self.counts[split]]
        prompt = (
            f"I am thinking of a whole number from 1 to {self.highest}. You have {self.max_guesses} guesses.\n"
            "Reply with one number a line; I answer higher or lower.\nGuess: "
        )
        return TaskSet([Task(f"guess-{self.highest}-{n}", prompt, str(n)) for n in chosen], f"guess_number/{split}")

    def begin(self, task: Task) -> tuple[str, dict[str, Any]]:
        self._guesses = 0
        return task.prompt, {}

    def respond(self, action: str) -> StepResult:
        assert self.task is not None
        self._guesses += 1
        secret = int(self.task.answer or "")
        found = re.search(r"\d{1,9}", action)
        guess = int(found.group()) if found else None
        is_correct = guess == secret
        is_last = self._guesses >= self.max_guesses
        if is_correct:
            observation = "Right."
        elif guess is None:
            observation = "That was no number.\nGuess: "
        else:
            observation = ("Higher" if guess < secret else "Lower") + ".\nGuess: "
        verdict = Verdict("correct" if is_correct else "wrong", f"guess {self._guesses} was {guess}")
        info = {
            "action": "none" if guess is None else str(guess),
            "success": is_correct,
            "verdict": verdict,
            "reward_parts": {"accuracy": float(is_correct)},
        }
        return observation, float(is_correct), is_correct or is_last, False, info
