"""What a route is, for those who call it: its parameters, body, answers and errors. The OpenAPI document is made of it.

A handler declares it in its `opt`, beside its policy:

    @post(
        "/admin/v1/tenants/{tenant:str}/projects",
        status_code=201,
        opt=demands("projects.write")
        | describes(ProjectObject, status=201, body=NewProject(name="search"), errors={"name_taken": 409}),
    )
    async def create_project(request: Request[Any, Any, Any], tenant: FromPath[str]) -> Response[bytes]:
        '''Add a project. It has no keys yet.'''

    @get(
        "/admin/v1/tenants/{tenant:str}/projects",
        opt=demands("projects.read")
        | describes(ProjectList, query=(*page(), query("state", Literal["live", "suspended"], "Only those in it."))),
    )

- The structs are those that the handler decodes and encodes. What a struct or field means is said by its docstring and
  by `Annotated[..., Meta(description=...)]`.
- An instance in place of a type is also the example. Without one, the example is made of the fields' defaults,
  `Literal`s, `Meta(examples=[...])` and the values that `gateway.openapi.examples` has for common names.
- The docstring of the handler is the description, its first sentence the summary. The operation's id is the handler's
  name, after `admin_` below /admin/v1, and clients are generated from it: a renamed handler is another operation.
- Not to be declared: the parameters in the path, the errors that follow from the rest (401 and 403 of the policy, 400,
  408, 413 and 415 of a body, 404 of a path with a parameter, 503), headers that all answers have, security schemes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from litestar.types import RouteHandlerType
from msgspec import UNSET, Meta, Struct, UnsetType

OPERATION = "operation"
"""The key of the operation in a handler's `opt`."""
Shape: TypeAlias = Any
"""A struct type, a union or tuple of them, or an instance, which says both the type and the example."""


class QueryParameter(Struct, frozen=True):
    """A parameter in the query; see `query`."""

    name: str
    type: Any
    description: str
    required: bool = False
    example: Any = UNSET
    repeated: bool = False


class HeaderParameter(Struct, frozen=True):
    """A header of requests. `values`: all that it may be, if they are few."""

    name: str
    description: str
    required: bool = False
    example: str = ""
    values: tuple[str, ...] = ()


class Files(Struct, frozen=True):
    """An answer that is a file, of one of these media types."""

    media_types: tuple[str, ...]
    description: str
    example: str | UnsetType = UNSET


class Events(Struct, frozen=True):
    """An answer that is a stream of server-sent events. `types`: of their data; `example`: the lines of a short stream.

    `shape` is what the route answers where a stream is not asked for; None if it always streams.
    """

    types: tuple[type[Struct], ...]
    example: str
    shape: Shape = None


Answer: TypeAlias = Any
"""A `Shape`, `Files`, a tuple of both, `Events`, or None for an answer without a body."""


class ErrorForm(Struct, frozen=True):
    """How errors of an operation are written: media type, JSON schema, an example."""

    media_type: str
    schema: Mapping[str, Any]
    example: Any


class Operation(Struct, frozen=True, kw_only=True):
    """What `describes` was told."""

    answers: Mapping[int, Answer]
    body: Shape = None
    body_required: bool = True
    body_type: str = "application/json"
    query: tuple[QueryParameter, ...] = ()
    headers: tuple[HeaderParameter, ...] = ()
    answer_headers: Mapping[str, str]
    errors: Mapping[str, int]
    path: Mapping[str, Any]
    tags: tuple[str, ...] = ()
    summary: str | None = None
    operation_id: str | None = None
    deprecated: bool = False
    error_form: ErrorForm | None = None


def describes(
    answer: Answer | Mapping[int, Answer],
    *,
    status: int = 200,
    body: Shape = None,
    body_required: bool = True,
    body_type: str = "application/json",
    query: Sequence[QueryParameter] = (),
    headers: Sequence[HeaderParameter] = (),
    answer_headers: Mapping[str, str] | None = None,
    errors: Mapping[str, int] | None = None,
    path: Mapping[str, Any] | None = None,
    tags: Sequence[str] = (),
    summary: str | None = None,
    operation_id: str | None = None,
    deprecated: bool = False,
    error_form: ErrorForm | None = None,
) -> dict[str, Any]:
    """A handler's `opt` that describes its operation, merged with that of its policy: `demands(…) | describes(…)`.

    `answer`: what is answered with `status`, or the answer of each status from 200 to 399. `body`: what is decoded;
    `body_required`: false where an empty body is taken for `{}`; `body_type`: its media type. `errors`: codes of errors
    beside those that follow from the rest, with their status as OpenAI's dialect has it. `answer_headers`: name -> what
    it says. `path`: examples of path parameters whose names are not common. `tags`: groups, else the object of the
    policy's permission. `error_form`: how errors are written that no dialect of ours writes.
    """
    answers = dict(answer) if isinstance(answer, Mapping) else {status: answer}
    operation = Operation(
        answers=answers,
        body=body,
        body_required=body_required,
        body_type=body_type,
        query=tuple(query),
        headers=tuple(headers),
        answer_headers=dict(answer_headers or {}),
        errors=dict(errors or {}),
        path=dict(path or {}),
        tags=tuple(tags),
        summary=summary,
        operation_id=operation_id,
        deprecated=deprecated,
        error_form=error_form,
    )
    return {OPERATION: operation}


def query(
    name: str, type: Any, description: str, *, required: bool = False, example: Any = UNSET, repeated: bool = False
) -> QueryParameter:
    """A parameter in the query. `type`: as in a struct, such as `Literal["a", "b"]` or `Annotated[int, Meta(ge=1)]`.
    `repeated`: it may come several times, also as `name[]`. An example is needed where the type does not give one."""
    return QueryParameter(name, type, description, required, example, repeated)


def page(most: int = 100, default: int = 20, least: int = 1) -> tuple[QueryParameter, QueryParameter]:
    """The parameters of a list that `Parameters.page_size` and a cursor `after` read."""
    size = Annotated[int, Meta(ge=least, le=most)]
    return (
        QueryParameter("limit", size, f"How many objects to list; {default} without it.", example=default),
        QueryParameter("after", str, "The id of the last object of the page before.", example=UNSET),
    )


def files(*media_types: str, description: str, example: str | UnsetType = UNSET) -> Files:
    """An answer that is a file: `files("application/pdf", description="The invoice.")`."""
    return Files(media_types, description, example)


def operation_of(handler: RouteHandlerType) -> Operation | None:
    """What the handler's operation was described as; None if it was not."""
    operation: Operation | None = handler.opt.get(OPERATION)
    return operation
