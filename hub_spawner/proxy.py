"""configurable-http-proxy from PyPI, the proxy in Python, with room for a class: ``python -m hub_spawner.proxy`` with its
options.

As it comes it hands on ten requests at a time, and gives each 20 seconds, those behind the ten included.  A kernel's start may wait as
long for its slice, so ten students who queue would shut everybody else out.  The proxy that needs Node has no such limits.
"""

from __future__ import annotations

from tornado.httpclient import AsyncHTTPClient

__all__ = ["main"]

REQUESTS = 2000
SECONDS = 300.0


def main() -> None:
    """Run the proxy with the command line's options."""
    from configurable_http_proxy.cli import main as proxy  # type: ignore[import-untyped]

    AsyncHTTPClient.configure(None, max_clients=REQUESTS, defaults={"request_timeout": SECONDS})
    proxy()


if __name__ == "__main__":
    main()
