"""The SGLang extension: ordering, late reservation, unit lending and TTL pins (paper A §6.2, §6.3, §6.6).

To use it, install this package beside SGLang 0.5.23 and start the engines with one variable more:

    BASIN_SGLANG=order,late,lend  python -m sglang.launch_server --disaggregation-mode prefill ... \\
        --disaggregation-transfer-backend nixl --disaggregation-decode-allocation-policy prefill_complete
    BASIN_SGLANG=order,late,lend  python -m sglang.launch_server --disaggregation-mode decode ... \\
        --disaggregation-transfer-backend nixl --disaggregation-decode-allocation-policy prefill_complete \\
        --disaggregation-decode-enable-radix-cache

A call says what it wants in `sampling_params.custom_params["basin"]` (`hints`) and its place in the request's own
`priority` (smaller first). Run-time settings are switched per engine:

    curl -X POST $ENGINE/set_internal_state -H 'Content-Type: application/json' \\
        -d '{"server_args": {"basin_lending": 1, "basin_ordering": 0, "basin_phi": 0.5}}'

SGLang loads `artifact.lending.plugin` in each of its processes. What decides (`settings`, `hints`, `order`, `units`,
`index`, `fetches`, `pins`) is plain Python and imports no engine; the hooks around it (`engine_*`) are thin and
imported only by an engine that asked for them. Limits: tensor parallelism 1 on both sides, NIXL, the unified radix
cache; HiCache on prefill without a storage backend, and no other external linker there.
"""
