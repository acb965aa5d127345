"""gRPC service as in the examples of gRPC: the main thread waits, and nothing handles signals."""

from __future__ import annotations

import sys
from concurrent import futures

import grpc


def main() -> None:
    """Serve one method on the port of the command line."""
    method = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Shop", {"Predict": method}),))
    server.add_insecure_port(f"127.0.0.1:{sys.argv[1]}")
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    main()
