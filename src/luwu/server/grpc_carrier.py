"""gRPC as the carrier of the control plane: an error of a method travels as its class and message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import grpc

from luwu.control import control_pb2 as pb
from luwu.control import control_pb2_grpc
from luwu.control.rpc import ERROR_METADATA, error_text
from luwu.core.errors import AuthenticationError, LuwuError
from luwu.server.service import ControlService, error_to_tell


def servicer_of(service: ControlService[Any]) -> control_pb2_grpc.ControlServicer:
    """Return what gRPC calls, for a service whose callers are gRPC's contexts."""
    servicer = control_pb2_grpc.ControlServicer()
    for method in pb.DESCRIPTOR.services_by_name["Control"].methods:
        setattr(servicer, method.name, _answering(method.name, getattr(service, method.name)))
    return servicer


def _answering(name: str, method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Let a method's errors travel to the caller."""

    def answer(request: Any, context: Any) -> Any:
        try:
            return method(request, context)
        except Exception as error:
            _abort(context, error_to_tell(name, error))

    return answer


def _abort(context: Any, error: LuwuError) -> NoReturn:
    authentic = not isinstance(error, AuthenticationError)
    context.set_trailing_metadata(((ERROR_METADATA, type(error).__name__),))
    context.abort(grpc.StatusCode.ABORTED if authentic else grpc.StatusCode.UNAUTHENTICATED, error_text(error))
    raise AssertionError("abort raises")
