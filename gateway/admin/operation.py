"""An operation of /admin/v1, written once: its handler's signature says what is read, checked, answered and documented.

    class ProjectOperations:
        def __init__(self, gateway: Gateway) -> None: ...

        @operation("POST", "/admin/v1/tenants/{tenant:str}/projects", demands("projects.write"), status=201)
        async def create_project(self, call: Call, tenant: Tenant, body: NewProject) -> ProjectObject:
            '''Add a project. It has no keys yet.'''

- `call`: who asks, and the request.
- A name in the path is a `str` or `int`. `tenant: Tenant` is the tenant of that name, where the caller has the policy's
  permission; `tenant: PartOfTenant` also has the projects to which the permission is limited; `project:
  ProjectOfTenant` is a project with its tenant. `Annotated[<type>, InPath(...)]` is another object that the path names.
- `body` is a struct, decoded from JSON. With `body_required=False` an empty body is `{}`.
- `page: PageQuery` are `limit` and `after`; `Annotated[PageQuery, PageSizes(...)]` has other bounds.
- All else are query parameters: `Annotated[<type>, Query("What it says.", example=...)]`, with a default if they need
  not be there. `from_` is the parameter `from`. A `list` comes as `name` or `name[]`, once for each item.
- The return type says the answers; several are a union. A `Response` is passed on as it is; `files` says what
  it is, or `Annotated[Response[bytes], <type>]`. `Annotated[<type>, <instance>]` has the instance for an example.
  `Ok[X]` is an X that is answered with 200, where the other X are answered with another status.

They are read in the order of the signature. What is read cannot be found, is not allowed or is wrong: then the handler
is not called.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from inspect import Parameter, isawaitable, signature
from types import NoneType, UnionType
from typing import Annotated, Any, Generic, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from litestar import Request, Response
from litestar.handlers import HTTPRouteHandler
from msgspec import UNSET, Meta, Struct

from gateway.admin.access import PartOfTenant, partly_visible_tenant, principal_of, visible_project, visible_tenant
from gateway.admin.refusals import refusals
from gateway.dialects.query_parameters import Parameters
from gateway.endpoints.request_body import read_management_body
from gateway.errors import InvalidField
from gateway.http.operations import Files, QueryParameter, Shape, describes, page
from gateway.http.policies import POLICY
from gateway.http.responses import json_response
from gateway.http.shapes import Answer, Instant, PageQuery, decode_value
from gateway.services import Gateway
from storage.free_text import problem_of_text
from tenancy.rights.permissions import Permission
from tenancy.rights.principals import Principal
from tenancy.tables import Project, Tenant

Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])
_Read: TypeAlias = Callable[["Call", Parameters], Any]
_OPERATION = "__operation__"
MADE_BY = "__made_by__"
"""Attribute of a route's function: the class that the operation is of, as MODULE:CLASS."""


class Call(Struct, frozen=True):
    """A request of an operation, and the worker that answers it."""

    gateway: Gateway
    request: Request[Any, Any, Any]

    @property
    def principal(self) -> Principal:
        """Who asks."""
        return principal_of(self.request)


class InPath(Struct, frozen=True):
    """How to find an object that the path names. `find` gets the name of the path's parameter, and the policy's
    permission."""

    find: Callable[[Call, str, Permission], Awaitable[Any]]


async def _find_project(call: Call, name: str, permission: Permission) -> tuple[Tenant, Project]:
    return await visible_project(call.gateway, call.request, call.request.path_params["tenant"], name, permission)


ProjectOfTenant: TypeAlias = Annotated[tuple[Tenant, Project], InPath(_find_project)]
"""The project of a path, with its tenant."""


class Query(Struct, frozen=True):
    """What a query parameter says. An example is needed where its type does not give one. `shown`: the type in the
    document, if it is another."""

    description: str
    example: Any = UNSET
    shown: Any = UNSET


class PageSizes(Struct, frozen=True):
    """How many objects a page may have, and has without `limit`."""

    most: int = 100
    default: int = 20
    least: int = 1


class Ok(Struct, Generic[Answer], frozen=True):
    """An answer whose status is 200, where others of its type have another."""

    answer: Answer


def operation(
    method: Method,
    path: str,
    opt: Mapping[str, Any],
    /,
    *,
    status: int | Mapping[Any, int] = 200,
    example: Shape = None,
    files: Files | None = None,
    **described: Any,
) -> Callable[[Handler], Handler]:
    """Make a method an operation. `opt`: its policy. `status`: of its answers, or of each of their types. `example`: of
    its body. `files`: what its `Response` is. `described`: what else `describes` takes, such as `errors` and `path`."""

    def mark(handler: Handler) -> Handler:
        setattr(handler, _OPERATION, partial(_route, method, path, opt, status, example, files, described))
        return handler

    return mark


def operations_of(gateway: Gateway, part: type[Any]) -> list[HTTPRouteHandler]:
    """The routes of a class whose methods are operations, for one worker. Its `errors`, else `refusals`, turn errors of
    other rooms into errors of the request."""
    operations, errors = part(gateway), getattr(part, "errors", refusals)
    methods = [getattr(operations, name) for name, value in vars(part).items() if hasattr(value, _OPERATION)]
    return [getattr(method, _OPERATION)(gateway, method, errors) for method in methods]


def _route(  # noqa: PLR0917  # what `operation` was told, and what it is made for
    method: Method,
    path: str,
    opt: Mapping[str, Any],
    status: int | Mapping[Any, int],
    example: Shape,
    files: Files | None,
    described: Mapping[str, Any],
    gateway: Gateway,
    handler: Callable[..., Awaitable[Any]],
    errors: Callable[[], AbstractContextManager[None]],
) -> HTTPRouteHandler:
    hints, readers, query = get_type_hints(handler, include_extras=True), dict[str, _Read](), list[QueryParameter]()
    for name, parameter in signature(handler).parameters.items():
        if name == "call":
            readers[name] = lambda call, _: call
        elif name == "body":
            readers[name] = _body_reader(hints[name], b"" if described.get("body_required", True) else b"{}")
        elif f"{{{name}:" in path:
            readers[name] = _path_reader(name, hints[name], opt)
        else:
            documented, readers[name] = _query_reader(name.rstrip("_"), hints[name], parameter.default)
            query += documented
    kinds = [(kind, _shape_of(kind, files)) for kind in _members(hints["return"])]
    statuses = [
        (shape, status[kind if get_origin(kind) is Ok else shape] if isinstance(status, Mapping) else status)
        for kind, shape in kinds
    ]
    codes = {
        _type_of(shape): code
        for (kind, shape), (_, code) in zip(kinds, statuses, strict=True)
        if get_origin(kind) is not Ok
    }

    async def answer(request: Request[Any, Any, Any]) -> Response[Any]:
        call, parameters, values = Call(gateway, request), Parameters.of(request), dict[str, Any]()
        for name, read in readers.items():
            value = read(call, parameters)
            values[name] = await value if isawaitable(value) else value
        if query:
            parameters.reject_unknown()
        with errors():
            result = await handler(**values)
        if isinstance(result, Ok):
            return json_response(result.answer)
        return result if isinstance(result, Response) else json_response(result, codes[type(result)])

    answer.__name__, answer.__doc__ = handler.__name__, handler.__doc__
    setattr(answer, MADE_BY, f"{handler.__module__}:{handler.__qualname__.rpartition('.')[0]}")
    answers = {code: tuple(shape for shape, its in statuses if its == code) for _, code in statuses}
    says = describes(
        {code: same if len(same) > 1 else same[0] for code, same in answers.items()},
        body=example or hints.get("body"),
        query=query,
        **described,
    )
    return HTTPRouteHandler(path, http_method=method, status_code=min(answers), opt={**opt, **says})(answer)


def _body_reader(kind: Any, default: bytes) -> _Read:
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, dec_hook=decode_value)

    def read(call: Call, _: Parameters) -> Awaitable[Any]:
        timeout = call.gateway.services.options.client_timeout
        return read_management_body(call.request, timeout, decoder, default=default)

    return read


def _path_reader(name: str, hint: Any, opt: Mapping[str, Any]) -> _Read:
    permission = opt[POLICY].permission
    if hint is Tenant:
        return lambda call, _: visible_tenant(call.gateway, call.request, call.request.path_params[name], permission)
    if hint == PartOfTenant:
        return lambda call, _: partly_visible_tenant(
            call.gateway, call.request, call.request.path_params[name], permission
        )
    finder = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, InPath)), None)
    if finder is not None:
        return lambda call, _: finder.find(call, call.request.path_params[name], permission)
    return lambda call, _: call.request.path_params[name]


def _query_reader(name: str, hint: Any, default: Any) -> tuple[Sequence[QueryParameter], _Read]:
    kind, *metadata = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if kind is PageQuery:
        sizes = next((each for each in metadata if isinstance(each, PageSizes)), PageSizes())
        return page(sizes.most, sizes.default, sizes.least), lambda _, parameters: PageQuery(
            parameters.page_size(sizes.default, sizes.least, sizes.most), parameters.text("after")
        )
    says = next(each for each in metadata if isinstance(each, Query))
    (kind,) = (each for each in _members(kind) if each is not NoneType)
    if repeated := get_origin(kind) is list:
        (kind,) = get_args(kind)
    bounds = [each for each in metadata if isinstance(each, Meta)]
    documented = says.shown or (Annotated[(kind, *bounds)] if bounds else str if kind is Instant else kind)
    bound = bounds[0] if bounds else Meta()
    required = default is Parameter.empty
    read_value = _value_reader(kind, repeated=repeated)

    def read(_: Call, parameters: Parameters) -> Any:
        if required:
            parameters.required(name)
        value = read_value(parameters, name)
        if bound.max_length is not None and (problem := problem_of_text(value or "", bound.max_length, empty=True)):
            raise InvalidField(name, problem)
        if value is not None and bound.ge is not None and bound.le is not None and not bound.ge <= value <= bound.le:
            raise InvalidField(name, f"it must be from {bound.ge} to {bound.le}")
        return default if value is None else value

    return [QueryParameter(name, documented, says.description, required, says.example, repeated)], read


def _value_reader(kind: Any, *, repeated: bool) -> Callable[[Parameters, str], Any]:
    if get_origin(kind) is Literal:
        read = Parameters.choices if repeated else Parameters.choice
        return lambda parameters, name: read(parameters, name, get_args(kind))
    if repeated:
        return Parameters.texts
    return {bool: Parameters.boolean, int: Parameters.integer, Instant: Parameters.instant, str: Parameters.text}[kind]


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _shape_of(kind: Any, files: Files | None) -> Shape:
    if get_origin(kind) is Ok:
        return get_args(kind)[0]
    if get_origin(kind) is Annotated:
        return get_args(kind)[1]
    return files if issubclass(get_origin(kind) or kind, Response) else kind


def _type_of(shape: Shape) -> Any:
    return getattr(shape, "__origin__", shape if isinstance(shape, type) else type(shape))
