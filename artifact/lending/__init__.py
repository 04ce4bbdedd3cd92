"""The SGLang extension: ordering, late reservation, unit lending and TTL pins (paper A §6.2, §6.3, §6.6).

SGLang loads `artifact.lending.plugin` in each of its processes. What decides (`settings`, `hints`, `order`, `units`,
`index`, `pins`) is plain Python and imports no engine; the hooks around it (`engine_*`) are thin and imported only by
an engine that asked for them through `BASIN_SGLANG`.
"""
