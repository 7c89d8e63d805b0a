"""The names of attributes: OpenTelemetry's for generative AI and for servers, and our own.

Every `gen_ai.*` name is still "in development", so names may change with a version of the conventions. They are written
here alone, as `VERSION` has them. Attributes for prompts and answers exist there too, and are never set here; nor are
`gen_ai.request.stop_sequences` and `gen_ai.conversation.id`, which clients fill with text of their own.
"""

from __future__ import annotations

VERSION = "1.39.0"
"""The version of the semantic conventions whose names these are."""
SCHEMA_URL = f"https://opentelemetry.io/schemas/{VERSION}"

PROVIDER = "turnpike"

OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_CHOICES = "gen_ai.request.choice.count"
REQUEST_STREAM = "gen_ai.request.stream"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_MODEL = "gen_ai.response.model"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""Seconds."""
INPUT_TOKENS = "gen_ai.usage.input_tokens"
"""All of the prompt, with what was cached."""
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"

ERROR_TYPE = "error.type"
HTTP_STATUS = "http.response.status_code"
SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"

TENANT = "turnpike.tenant.id"
PROJECT = "turnpike.project.id"
KEY = "turnpike.key.id"
LANE = "turnpike.lane"
SURFACE = "turnpike.surface"
STATUS = "turnpike.status"
REPLICA = "turnpike.replica"
ATTEMPT = "turnpike.attempt"
AFTER = "turnpike.attempt.after"
EMITTED = "turnpike.attempt.emitted_tokens"
OTHER_NUMERICS = "turnpike.attempt.other_numerics"
COMPUTED = "turnpike.prompt.computed_tokens"
RESTORED = "turnpike.prompt.restored_tokens"
DECODE_STEPS = "turnpike.decode.steps"
STAGE = "turnpike.stage."
"""And a stage of the waterfall: how long it took within the span, in microseconds."""
