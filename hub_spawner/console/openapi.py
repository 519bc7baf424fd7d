"""The OpenAPI description of the JSON API, from the same table and types that answer it."""

from __future__ import annotations

from typing import Any

import pydantic

from hub_spawner.console.api_calls import CALLS, ApiCall
from hub_spawner.console.history import MOST_DAYS

__all__ = ["description"]

_REF = "#/components/schemas/{model}"
_ERRORS = {
    400: "The address or the body makes no sense; the message says where.",
    401: "There is no token, or the Hub does not know it.",
    403: "Not allowed.",
    404: "There is no such slice, request or page.",
    409: "The pool refused; the message is its sentence.",
    415: "The body is not JSON.",
    502: "The pool failed.",
    503: "The pool does not answer now.",
}


def description(at: str) -> dict[str, Any]:
    """Return the whole description of the API below the path `at`."""
    schemas: dict[str, Any] = {
        "Error": {
            "type": "object",
            "properties": {"message": {"type": "string"}},
            "required": ["message"],
        }
    }
    paths: dict[str, Any] = {}
    for call in CALLS:
        paths.setdefault(f"/{call.path}", {})[call.method.lower()] = _operation(call, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpukernel console",
            "version": "1",
            "description": "What the pages of the console show and do.  Authenticate with a JupyterHub token.",
        },
        "servers": [{"url": at}],
        "security": [{"hub": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "hub": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A JupyterHub token that may access the service gpukernel; for administration with custom:gpukernel:admin",
                }
            },
        },
    }


def _schema(kind: Any, schemas: dict[str, Any], mode: Any) -> dict[str, Any]:
    found = pydantic.TypeAdapter(kind).json_schema(ref_template=_REF, mode=mode)
    for name, schema in found.pop("$defs", {}).items():
        schemas[name] = schema
    if found.get("type") == "object" and "title" in found:
        schemas[found["title"]] = found
        return {"$ref": _REF.format(model=found["title"])}
    return dict(found)


def _operation(call: ApiCall, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1, "maxLength": 256},
        }
        for name in call.parameters
    ]
    if call.query:
        number = {"type": "integer", "minimum": 1, "maximum": MOST_DAYS, "default": 14}
        parameters.append({"name": call.query, "in": "query", "required": False, "schema": number})
    statuses = [status for status in _ERRORS if call.body or status != 415]
    error = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    answer = {"application/json": {"schema": _schema(call.answer, schemas, "serialization")}}
    operation: dict[str, Any] = {
        "operationId": call.do.__name__,
        "summary": call.summary,
        "tags": ["administration" if call.admin else "courses"],
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done", "content": answer},
            **{str(s): {"description": _ERRORS[s], "content": error} for s in statuses},
        },
    }
    if call.body:
        body = {"application/json": {"schema": _schema(call.body, schemas, "validation")}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation
