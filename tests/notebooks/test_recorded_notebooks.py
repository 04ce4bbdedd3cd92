"""Notebooks on real runs that come with the artifact."""

import pytest
from test_notebooks import execute, outputs


@pytest.mark.slow
def test_first_aid_is_worked_out_on_recorded_runs(tmp_path):
    executed = execute("first_aid", tmp_path)
    words = "".join(outputs(executed, "text/markdown"))
    assert len(outputs(executed, "image/png")) == 2 and len(outputs(executed, "text/html")) == 3
    assert "Not evaluated" not in words and "tips beyond about" in words and "admission-only" in words
