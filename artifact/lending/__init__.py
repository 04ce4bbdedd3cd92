"""The SGLang extension: ordering, late reservation, unit lending, TTL pins, elastic prefill (paper A §6.2, §6.3, §7.1).

**Install** beside SGLang 0.5.23, into the engine's own environment; no engine file is changed:

    pip install sglang==0.5.23 nixl        # as on any GPU node
    pip install --no-deps .                # this package; SGLang finds it by its entry point

**Switch on** with one variable, on every engine of the deployment. Unset, nothing is registered:

    BASIN_SGLANG=order,late,lend  python -m sglang.launch_server --disaggregation-mode prefill ... \\
        --disaggregation-transfer-backend nixl --disaggregation-decode-allocation-policy prefill_complete
    BASIN_SGLANG=order,late,lend  python -m sglang.launch_server --disaggregation-mode decode ... \\
        --disaggregation-transfer-backend nixl --disaggregation-decode-allocation-policy prefill_complete \\
        --disaggregation-decode-enable-radix-cache

    order    sorts every queue by the request's `priority`, smaller first, ties by arrival
    late     lets `prefill_complete` go with NIXL, decode's radix cache, HiCache in host memory, recurrent state
    lend     decode keeps marked prompts as units, prefill fetches them layer by layer
    pin      TTL pins on prefill's cache (Continuum)
    elastic  decode computes the prompts of calls sent to it alone, under a lease (Crossflow)

Each engine logs `basin: N of N hooks applied; features: ...` and exports `basin_*` metrics on its `/metrics`; it stops
at start where a hook did not apply or a flag stands in the way, naming it.

**Per call**, in `sampling_params.custom_params["basin"]` what `hints` reads: `{"session": "s1", "retain": true}`.
**At run time**, any setting of `settings.Settings` but those marked "at start", e.g. to stop lending and sort no more:

    curl -X POST $ENGINE/set_internal_state -H 'Content-Type: application/json' \\
        -d '{"server_args": {"basin_lending": 0, "basin_ordering": 0, "basin_phi": 0.5}}'

SGLang loads `artifact.lending.plugin` in each of its processes. What decides (`settings`, `hints`, `order`, `units`,
`index`, `fetches`, `pins`) is plain Python and imports no engine; the hooks around it (`engine_*`) are thin and
imported only by an engine that asked for them. Limits: tensor parallelism 1 on both sides, NIXL, the unified radix
cache; HiCache on prefill without a storage backend, and no other external linker there.
"""
