from sim.fluid.grid import classified


def test_as_many_deployments_are_flagged_as_published() -> None:
    """§5.1, Fig. 9b: all 17 cache-first deployments and eight of the 19 decode-first ones; within the tolerances of
    claims A-fluid-flag and A-fluid-over."""
    found = classified()
    assert len(found) == 36
    assert abs(sum(c.flagged for c in found) - 25) <= 3


def test_the_deployments_that_the_text_names_are_on_their_side() -> None:
    """§4.2: on 1P1D with a host tier decode is the first bottleneck except at the longest tool times; on 1P3D the
    cache is, with GPU-only caching or a host tier of twice the GPU cache, and of ten times at tool time x30."""
    flagged = {(c.deployment.decode, c.deployment.host_ratio, c.tool_time): c.flagged for c in classified()}
    assert not any(flagged[1, host, tool] for host in (2, 10) for tool in (1, 3))
    assert all(flagged[3, host, tool] for host in (0, 2) for tool in (1, 3, 10, 30))
    assert flagged[3, 10, 30]
