"""All that lets people in beside passwords and links, put together for one process."""

from __future__ import annotations

import ssl

from storage.database.database import Database
from tenancy.identity.directories import Directories
from tenancy.identity.directory_people import DirectoryPeople
from tenancy.identity.known_people import KnownPeople
from tenancy.identity.passkeys import Passkeys
from tenancy.identity.provider_client import TIMEOUT_S, ProviderClient
from tenancy.identity.provider_sign_in import ProviderSignIn
from tenancy.identity.providers import Providers
from tenancy.repositories import Tenancy
from tenancy.users.service import Users
from webhooks.addresses import AddressPolicy
from webhooks.checked_requests import CheckedRequests


class Identity:
    """Identity providers, passkeys and directories. `policy`: which addresses of providers are asked; `verify`: whose
    certificates are trusted there, by default the system's."""

    def __init__(
        self,
        database: Database,
        users: Users,
        tenancy: Tenancy,
        policy: AddressPolicy,
        verify: ssl.SSLContext | None = None,
    ) -> None:
        client = ProviderClient(CheckedRequests(policy, verify, TIMEOUT_S))
        self.providers = Providers(database, users.secrets, client)
        self.people = KnownPeople(database, users)
        self.sign_in = ProviderSignIn(database, users, self.providers, self.people, client)
        self.directories = Directories(database, users.secrets)
        self.directory = DirectoryPeople(database, users, tenancy, self.directories)
        self.passkeys = Passkeys(database, users)
