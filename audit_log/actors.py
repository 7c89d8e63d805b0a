"""Who acts now. Every change is recorded with its actor, so whatever changes something runs inside `acting_as`.

The actor travels in a context variable, not in arguments: tasks inherit it, and no call on the way can leave it out.
The gateway sets it when it has authenticated a request, `turnpike` when a command begins, and a worker for its jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, TypeAlias
from unicodedata import normalize

from msgspec import Struct

Means: TypeAlias = Literal["session", "project_key", "admin_key", "operator_key", "command", "anonymous", "system"]
"""How it is known who acts. `command`: a command on this machine, known by its user only. `anonymous`: a request that
has not proven who sends it, such as one that signs in. `system`: a job of ours."""


class NoActor(Exception):
    """Something was about to change, and nobody was named who does it: a defect of ours."""


class Actor(Struct, frozen=True):
    """Who makes a change. `id` is a user's id, a key's public id, or USER@HOST; `name` is for people to read.

    `through`: a second fact about how, such as the USER@HOST of a command that presented a key. `address`: the
    client's. `request_id`: as clients see it, empty outside a request. `user`: the public id of the user who is signed
    in, or whose an operator's key is.
    """

    means: Means
    id: str
    name: str
    through: str = ""
    address: str = ""
    request_id: str = ""
    user: str = ""

    @property
    def person(self) -> str:
        """Who that is, by what stays: see `person_of`."""
        return person_of(self.name, self.user)


def anonymous(address: str = "", request_id: str = "") -> Actor:
    """Whoever sends a request, as long as nothing proves who that is."""
    return Actor("anonymous", "anonymous", "anonymous", address=address, request_id=request_id)


def person_of(name: str, user: str = "") -> str:
    """Who a user or an operator's key is: the user's public id, else the key's name, which cannot be changed.
    Neither case nor width tells two names apart, nor any other form that Unicode counts as the same (NFKC).
    Letters that only look alike are told apart here, and not by `are_two_people`."""
    return user or f"operator {normalize('NFKC', name).strip().casefold()}"


def are_two_people(one: str, other: str) -> bool:
    """Whether two are known to be different people. A user, and a key that says of no user, may be the same; so may two
    names that look alike: whoever may make keys would else be two people."""
    if "" in (one, other):
        return False
    of_users = [person.startswith(_USER) for person in (one, other)]
    if all(of_users):
        return one != other
    return not any(of_users) and one.translate(_LOOKS) != other.translate(_LOOKS)


_USER = "user_"
_LOOKS = str.maketrans(
    "авекмнорстухіїјѕԁһӏԛԝгαβεζηικμνορτυχıl1|0ɑɡ",  # Cyrillic, Greek, others
    "abekmhopctyxiijsdhiqwrabezhikmvoptyxiiiioag",
)
"""Letters of names, in lower case → the Latin letter that they may be read as."""
OPERATOR = "operator"
"""Through what somebody acts who has a role for the whole platform: tenants do not learn more of them than the name."""
OPERATOR_MEANS: tuple[Means, ...] = ("command", "system", "operator_key")
"""By what nobody but those who run the platform acts."""
THIS_MACHINE = "operator"
"""What tenants read in place of the name of who gives commands, which is USER@HOST."""
_actor: ContextVar[Actor] = ContextVar("actor")


@contextmanager
def acting_as(actor: Actor) -> Iterator[None]:
    """Whatever runs inside, and the tasks begun there, act as this actor."""
    token = _actor.set(actor)
    try:
        yield
    finally:
        _actor.reset(token)


def become(actor: Actor) -> None:
    """Act as this actor from here on, until the innermost `acting_as` or this task ends."""
    _actor.set(actor)


def current_actor() -> Actor:
    """Who acts now. Raises NoActor outside `acting_as`."""
    try:
        return _actor.get()
    except LookupError:
        raise NoActor("a change needs an actor: run it inside acting_as") from None
