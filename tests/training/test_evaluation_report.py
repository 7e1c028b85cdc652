"""What a report of an evaluation says."""

from __future__ import annotations

from winnowrl.training.evaluate import EvaluationReport, TaskRow


def test_a_pass_rate_over_fewer_tasks_says_over_how_many() -> None:
    easy = TaskRow("easy", "", [1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 1.0], [1] * 4, 0, [""] * 4)
    # Three samples of the hard task failed, so it says nothing about two or four tries.
    hard = TaskRow("hard", "", [0.0], [0.0], [1], 3, [""] * 4)
    report = EvaluationReport([easy, hard], 4, 0.95)
    assert report.tasks_at_k() == {1: 2, 2: 1, 4: 1}
    assert list(report.measures()) == ["mean@4", "pass@1", "pass@2 (1 of 2 tasks)", "pass@4 (1 of 2 tasks)"]
    assert report.to_dict()["tasks_at_k"] == {"1": 2, "2": 1, "4": 1}
    assert "| pass@4 (1 of 2 tasks) | 1.000 |" in report.to_markdown()
