"""The equal handler: the same stack, the same request parsed, the same response serialized, and nothing between.

Run as a program of its own by `serving.equal`: the full name of a method, and a file that holds the response.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from tidegate.v1 import admission_pb2, flow_pb2, selection_pb2
from tidegate_server.config import Configuration
from tidegate_server.wiring import event_loop
from tidegate_server.wiring.listeners import server_options

FILES = (admission_pb2, flow_pb2, selection_pb2)


async def serve(service: str, method: str, answer: bytes) -> None:
    """Serve one method until SIGTERM; the address goes to standard output."""
    descriptor = next(
        file.DESCRIPTOR.services_by_name[service] for file in FILES if service in file.DESCRIPTOR.services_by_name
    ).methods_by_name[method]
    request_type, response_type = GetMessageClass(descriptor.input_type), GetMessageClass(descriptor.output_type)
    response = response_type.FromString(answer)

    async def handler(request: Any, context: Any) -> Any:
        return response

    handlers = {
        method: grpc.unary_unary_rpc_method_handler(handler, request_type.FromString, response_type.SerializeToString)
    }
    server = grpc.aio.server(options=server_options(Configuration.model_validate(EMPTY)))
    name = descriptor.containing_service.full_name
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
    server.add_registered_method_handlers(name, handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await server.stop(None)


EMPTY: dict[str, Any] = {"providers": {}, "managedRouting": {"routes": {}}}

if __name__ == "__main__":
    full_name, file = sys.argv[1:]
    service_name, method_name = full_name.removeprefix("/tidegate.v1.").split("/")
    event_loop.run(serve(service_name, method_name, Path(file).read_bytes()))
