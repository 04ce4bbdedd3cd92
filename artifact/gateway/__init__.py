"""The HTTP session gateway: what a serving team puts before its engine (paper A §6, Figure 11, §6.6 "Gateway").

A call's way, top to bottom:

    server, app     uvicorn and one raw ASGI application: routes, background loops, graceful stop
    proxy           one call: read the body, name its session, wait for admission, forward byte for byte, close
    identity        which session a call belongs to, by the conventions in use; `lineage` for clients without an id
    desk            admission as a transaction, hosting a `Policy`; `session`, `table` hold what it knows
    ordering        the policy's order as the request's priority, and whether the engine heeds it
    upstream        pooled connections to the engine; retries only where nothing was sent
    usage           tokens of a call, read from the bytes that pass by

Beside it, every few seconds:

    telemetry       reads `engines` (SGLang, vLLM) through their Prometheus pages, gives the policy its `Signals`
    accounting      the gateway's own books, which take over when the engines' readings are gone

For people: `operator` (health, sessions, explanations, admin), `metrics`, `ui.html`, `operations/` (Grafana dashboard,
Prometheus alert rules), `logs`. `config` is what an operator decides, `policies` builds what `cli` asks for.

Three rules hold everywhere. A call is opened once and closed once, whatever the exit: end, error, disconnect or
time-out at any stage. A parked session holds nothing of the engine. Traffic fails open: lost metrics or a policy
that raises never stop a call.
"""
