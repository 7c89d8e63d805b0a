"""Wire formats, a folder for each vendor: JSON to `GenerationRequest`, and generated text to the vendor's JSON.

A vendor's folder has these modules, and so will a new one's:

- `…_request.py`, one for each endpoint: the body as msgspec structs, and `parse` from bytes to `GenerationRequest`;
- `…_response.py`, one for each endpoint: a writer of the whole response and of its events
  (`gateway.endpoints.generation_response.ResponseWriter`);
- `errors.py`: `envelope` and `plain`, the vendor's error bodies;
- `completion_usage.py`, `message_usage.py`: what the vendor calls our usage in responses, and back; `usage.py`: in
  reports;
- `tools.py`: tools and the choice among them, to `Tool` and `ToolChoice`; `diagnostics.py`: why a prompt missed, in the
  vendor's words;
- `models.py`: the vendor's list of models, if it is not OpenAI's, which `gateway.endpoints.models` has.

What two endpoints of a vendor share is in `common_request.py` and `common_response.py`. Vendors do not import each
other: what they share is in the modules beside their folders. A dialect's route is a module of `gateway.endpoints`.

docs/changes.md lists what another endpoint, and what another vendor, touches.
"""
