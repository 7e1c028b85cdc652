"""The ledger as tables for the console."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from winnowrl.agents.accounts import CLASSES, Account
from winnowrl.agents.ledger import Ledger

if TYPE_CHECKING:
    from rich.table import Table


def ledger_table(ledger: Ledger) -> Table:
    """Tokens, rollouts and episode seconds by class, then what was prefilled, audited, replayed and saved."""
    from rich.table import Table

    total = ledger.total
    table = Table(title=f"Tokens of {ledger.num_steps} steps, {ledger.collect_s:,.1f} s of collection")
    table.add_column("what became of them")
    for name in ("tokens", "share", "rollouts", "episode s"):
        table.add_column(name, justify="right")
    for name, meaning in CLASSES.items():
        if total.tokens[name] or total.rollouts[name]:
            label = f"{name.replace('_', ' ')}: {meaning}"
            rollouts, seconds = f"{total.rollouts[name]:,}", f"{total.seconds[name]:,.1f}"
            table.add_row(label, f"{total.tokens[name]:,}", _share(total.tokens[name], total), rollouts, seconds)
    table.add_section()
    all_seconds = f"{sum(total.seconds.values()):,.1f}"
    table.add_row("generated", f"{total.generated:,}", "100.0%", f"{total.num_rollouts:,}", all_seconds)
    table.add_section()
    for label, count, more in _memoranda(ledger):
        table.add_row(label, "unknown" if count is None else f"{count:,}", more, "", "")
    return table


def type_table(ledger: Ledger) -> Table:
    """Tokens by environment and task type, one column per class in use."""
    from rich.markup import escape
    from rich.table import Table

    used = [name for name in CLASSES if ledger.total.tokens[name]]
    table = Table(title="Share of tokens by task type")
    for name in ("environment: task type", "rollouts", "tokens", *(name.replace("_", " ") for name in used)):
        table.add_column(name, justify="left" if name.startswith("environment") else "right")
    for key, account in sorted(ledger.by_type.items()):
        shares = [_share(account.tokens[name], account) for name in used]
        table.add_row(escape(key), f"{account.num_rollouts:,}", f"{account.generated:,}", *shares)
    return table


def _memoranda(ledger: Ledger) -> list[tuple[str, int | None, str]]:
    total = ledger.total
    rows: list[tuple[str, int | None, str]] = [
        ("prompt tokens computed", total.prefill - total.cached, ""),
        ("prompt tokens from cache", total.cached, f"{total.cached / max(1, total.prefill):.1%} of prompts"),
    ]
    if total.stopped_members or total.audited_members:
        if math.isnan(ledger.saved_tokens):
            rows.append(("saved by the gate", None, "no group ran on"))
        else:
            saved = round(ledger.saved_tokens)
            share = saved / max(1, saved + total.generated)
            rows.append(("saved by the gate (estimate)", saved, f"{share:.1%} had all run on"))
        if total.respent:
            rows.append(("respent on fresh tasks", total.respent, _share(total.respent, total)))
        rows.append(("spent in audits of the gate", total.audit, _share(total.audit, total)))
    if total.replayed:
        rows.append(("replayed from earlier steps", total.replayed, ""))
    if total.lost_requests:
        rows.append(("requests lost under way", total.lost_requests, ""))
    return rows


def _share(count: int, account: Account) -> str:
    return f"{count / account.generated:.1%}" if account.generated else "-"
