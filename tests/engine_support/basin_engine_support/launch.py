"""`python -m basin_engine_support.launch ...`: the engine's own launcher, made able to import on CPU."""

import sys

# At module level: a spawned engine process imports this main module again before anything else.
import basin_engine_support.torchvision_cpu  # noqa: F401


def main() -> None:
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    run_server(prepare_server_args(sys.argv[1:]))


if __name__ == "__main__":
    main()
