"""The gateway on uvicorn, stopped gracefully: the waiting are sent away at once, what runs may end."""

import math
from types import FrameType

import uvicorn

from artifact.gateway.app import Gateway


class GatewayServer(uvicorn.Server):
    """A uvicorn server that tells the gateway's desk first when it is asked to stop."""

    def __init__(self, gateway: Gateway, host: str, port: int) -> None:
        self.gateway = gateway
        timeouts, limits = gateway.config.timeouts, gateway.config.limits
        super().__init__(
            uvicorn.Config(
                gateway,
                host=host,
                port=port,
                loop="uvloop",
                http="httptools",
                ws="none",
                lifespan="on",
                access_log=False,
                proxy_headers=False,
                log_config=None,
                server_header=False,
                date_header=False,
                limit_concurrency=limits.connections,
                backlog=4096,
                timeout_graceful_shutdown=math.ceil(timeouts.drain_s / gateway.config.time_scale),
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.gateway.desk.drain()
        super().handle_exit(sig, frame)
