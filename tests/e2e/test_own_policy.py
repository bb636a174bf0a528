"""The policy that docs/writing-a-policy.md shows runs a live service, and decides as soon as something happens."""

from __future__ import annotations

import json
import re
from pathlib import Path

from live import Live

GUIDE = Path(__file__).parents[2] / "docs" / "writing-a-policy.md"


def test_the_policy_of_the_guide_decides_at_once_when_run_live(tmp_path: Path) -> None:
    code = re.search(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    assert "paper" not in code.group(1)
    file = tmp_path / "my_policy.py"
    file.write_text(code.group(1), encoding="utf-8")
    with Live(2, f"{file}:OldestFirst") as live:
        submit = ("submit", "--json", "--", "sleep", "0.5")
        first, second, third = (json.loads(live.run(*submit).stdout)["id"] for _ in range(3))
        # With rounds of a minute, the second or the third would wait for longer than this.
        assert live.run("wait", first, second, third, "--timeout", "50").returncode == 0
        status = live.json("status")
        assert (status["rejected_decisions"], status["notes"]) == (0, [])
        jobs = {job["id"]: job for job in live.json("queue", "--all")}
        assert jobs[third]["started_at_s"] >= min(jobs[job]["finished_at_s"] for job in (first, second))
