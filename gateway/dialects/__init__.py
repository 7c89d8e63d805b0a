"""Wire formats, a folder for each vendor: JSON to `GenerationRequest`, and generated text to the vendor's JSON.

A vendor's folder has these modules, and so will a new one's:

- `…_request.py`, one for each endpoint: the body as msgspec structs, and `parse` from bytes to `GenerationRequest`;
- `…_response.py`, one for each endpoint: a writer of the whole response and of its events
  (`gateway.endpoints.generation_response.ResponseWriter`);
- `errors.py`: `envelope` and `plain`, the vendor's error bodies;
- `completion_usage.py`, `message_usage.py`: what the vendor calls our usage in responses, and back; `usage.py`: in
  reports.

What two endpoints of a vendor share is in `common_request.py` and `common_response.py`: a third of another shape, as
OpenAI's Responses (`openai/responses/`) is, changes them, `structured_outputs.py`, `unsupported_fields.py` and the ids
that `turnpike/commands/tenants.py` takes; JSON paths of its own that stand before all messages also belong into
`_is_head` of `prompt_cache/history/diagnosis.py`. Vendors do not import each other: what they share is in the
modules beside their folders. A dialect's route is a module of `gateway.endpoints`.

Bounds on a body's lists are in `large_bodies.py`; docs/api.md describes the dialect. A new vendor also needs: `Surface`
and its markers' meaning in `CacheDirectives` (`gateway/generation_request.py`), its errors in `_dialect`
(`gateway/http/responses.py`), its limits' headers in `gateway/limits/headers.py`, its key's header in
`gateway/http/authentication.py`, its reports in `gateway/endpoints/usage.py`, its caching rules in
`prompt_cache/promise/rule_sets.py` and `gateway/metering/billable_usage.py`.
"""
