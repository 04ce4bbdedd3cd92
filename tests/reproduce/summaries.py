"""Summaries of runs written by hand: a healthy run of 100 good sessions an hour, but for what is given."""

from artifact.reproduce.summaries import Summary

HEALTHY = {
    "goodput": 100.0,
    "in_time": 100.0,
    "in_time_over_itl": 0.0,
    "state": "healthy",
    "slowdown": 2.0,
    "completed": 1.0,
    "shed": 0.0,
    "shed_sessions": 0,
    "wait_p50_s": 1.0,
    "wait_p90_s": 10.0,
    "wait_p99_s": 20.0,
    "over_itl": 0.0,
    "ttft_p90_s": 1.0,
    "second_hour_s": 0.5,
    "late_ttft_s": 0.5,
    "active": 100.0,
    "queue": 5.0,
    "elastic_calls": 0,
}


def summary(goodput=100.0, seed=0, rate_per_min=7.0, **fields):
    unknown = set(fields) - set(HEALTHY)
    assert not unknown, unknown
    meta = {"source": "sim", "seed": seed, "scenario": {"load": {"rate_per_min": rate_per_min}}}
    return Summary(**(HEALTHY | {"goodput": goodput} | fields), meta=meta)


def everywhere(names, seeds=(0,), **by_policy):
    """Arms of one summary a seed: `by_policy` gives the fields of a policy (dashes as underscores), 50 sessions/h
    otherwise, and 100 for Basin."""
    given = {name.replace("_", "-"): fields for name, fields in by_policy.items()}
    found = {}
    for name in names:
        policy = name.split("/")[1]
        usual = {"goodput": 100.0 if policy == "basin" else 50.0}
        found[name] = [summary(seed=seed, **(usual | given.get(policy, {}))) for seed in seeds]
    return found
