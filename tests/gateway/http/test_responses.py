"""Errors in the dialect of the route, or of the path that none has."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.stack import running_stack


async def test_unknown_paths_answer_in_their_dialect(database_url: str, tmp_path: Path, model_folder: Path) -> None:
    async with running_stack(database_url, tmp_path, model_folder) as stack:
        theirs = await stack.http.post("/v1/messages/nothing", json={})
        assert (theirs.status_code, theirs.json()["type"]) == (404, "error")
        assert theirs.json()["error"]["type"] == "not_found_error"
        ours = await stack.http.get("/v1/nothing")
        assert (ours.status_code, ours.json()["error"]["code"]) == (404, "not_found")
        assert "access-control-allow-origin" not in ours.headers
