"""`python -m basin_engine_support.router ...`: the engine's own router, made able to import on CPU."""

import basin_engine_support.torchvision_cpu  # noqa: F401

if __name__ == "__main__":
    from sglang_router.launch_router import main

    main()
