"""Why somebody is not let in by an identity provider or a passkey: one name for each reason."""

from __future__ import annotations

from collections.abc import Mapping

from tenancy.users.errors import UserError

SENTENCES: Mapping[str, str] = {
    # the answer that the browser brings back
    "unknown_state": "This sign-in is not one that was begun here, or it was finished or is too old. Begin again.",
    "other_browser": "This sign-in was begun in another browser. Begin again here.",
    "mixed_up_providers": "The answer comes from another identity provider than the one that was asked.",
    "provider_said_no": "The identity provider did not let you in.",
    "no_code": "The identity provider's answer has no code.",
    "code_refused": "The identity provider does not accept its own code: it was used before, or is too old.",
    "provider_off": "This identity provider is switched off, or is no more.",
    # the provider as it is reached
    "address_refused": "The identity provider's address is not allowed here: it must be https to a public address.",
    "provider_unreachable": "The identity provider does not answer; try again shortly.",
    "answer_too_large": "The identity provider answers more than is read.",
    "metadata_refused": "The identity provider's metadata is not that of an OpenID provider with this issuer.",
    "keys_refused": "The identity provider's keys cannot be read.",
    # its tokens
    "no_id_token": "The identity provider's answer has no ID token.",
    "malformed_token": "The token is not a signed JWT.",
    "algorithm_refused": "The token is signed with an algorithm that is not accepted.",
    "header_refused": "The token's header demands what is not understood.",
    "unknown_key": "The token is signed with a key that the identity provider does not publish.",
    "bad_signature": "The token's signature is wrong.",
    "wrong_issuer": "The token is of another issuer.",
    "wrong_audience": "The token is for another client.",
    "wrong_authorized_party": "The token was issued to another client.",
    "no_subject": "The token does not say whose it is.",
    "no_expiry": "The token does not say when it ends.",
    "expired": "The token has expired.",
    "not_yet_valid": "The token is not valid yet.",
    "issued_in_the_future": "The token was issued in the future: compare the clocks.",
    "issued_too_long_ago": "The token was issued too long ago.",
    "wrong_nonce": "The token belongs to another sign-in.",
    "stale_sign_in": "The identity provider did not ask you again: a fresh sign-in was demanded.",
    "weak_sign_in": "The identity provider did not ask for what this change demands (acr).",
    "no_logout_event": "The token is not one that ends sessions.",
    # whom it knows
    "other_person": "The identity provider knows somebody else there.",
    "already_linked": "Somebody else is linked to this identity.",
    "not_linked": "Nobody here is linked to this identity. Sign in another way and link it on your account's page, or "
    "ask for an invitation.",
    "email_not_verified": "The identity provider does not say that your e-mail address is verified, and nobody here is "
    "linked to this identity.",
    "account_exists": "Somebody here has this e-mail address already: sign in another way and link it on the account's "
    "page.",
    "groups_not_sent": "The identity provider sends a link in place of your groups, since there are too many. Let it "
    "send only the groups that are assigned to the application.",
    "left": "You have left this tenant: its directory says that you are not active.",
    "no_role": "You have no role here. Ask an administrator.",
    "user_disabled": "This user is disabled.",
    "bound_session": "You are signed in by an identity provider of a tenant, which changes nothing of an account. Sign "
    "in with your password or a passkey.",
    # passkeys
    "passkey_unknown": "This passkey is not known here.",
    "passkey_refused": "The passkey's answer cannot be verified.",
    "passkey_cloned": "The passkey may have been copied: its count of signatures went back. Remove it and add another.",
}
"""Name of a reason -> what whoever is refused reads."""


class IdentityRefused(UserError):
    """Somebody is not let in. `reason` is a name of SENTENCES; `detail` is for the log alone."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(SENTENCES[reason])
        self.reason = reason
        self.detail = detail
