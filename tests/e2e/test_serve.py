"""`turnpike serve`: from nothing to an answer, and every way in which it can refuse to start."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from openai import OpenAI

from tests.awake import Awake
from tests.e2e.processes import bring_trials, first_key, get, process, run, used, wait_ready
from tests.servers import free_port, postgres_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def curl_line(output: str) -> str:
    match = re.search(r"^\s*(curl .*(?:\\\n.*)*)$", output, re.M)
    assert match is not None, output
    return match.group(1)


@pytest.mark.alone
def test_first_start_prints_a_curl_line_that_works_and_the_second_is_quick(tmp_path: Path) -> None:
    port, data = free_port(), tmp_path / "data"
    arguments = ("serve", "--port", str(port), "--data-dir", str(data))
    with process(tmp_path / "first", *arguments) as first:
        first.wait_for_output(r"curl ")
        file = data / "api-key"
        assert str(file) in first.output
        assert file.stat().st_mode & 0o777 == 0o600
        assert re.fullmatch(r"tp_live_\w+", first_key(first))
        assert "tp_live_" not in first.output + first.errors, "a key in a log stays there"
        assert "sign_in=" not in first.output + first.errors, "a link in a log stays there"
        owner = data / "sign-in-link"
        assert str(owner) in first.output
        assert owner.stat().st_mode & 0o777 == 0o600
        assert (data / "address").read_text() == f"http://127.0.0.1:{port}\n"
        page, _, token = owner.read_text().strip().partition("#sign_in=")
        assert get(page)[0] == 200
        headers = {"x-turnpike-csrf": "1"}
        redeem = f"http://127.0.0.1:{port}/admin/v1/session/link"
        with httpx.Client() as browser:
            assert browser.post(redeem, json={"token": token}, headers=headers).status_code == 200
            me = browser.get(f"http://127.0.0.1:{port}/admin/v1/users/me").json()
            assert (me["email"], me["memberships"][0]["role"]) == ("owner@localhost", "owner")
            assert browser.post(redeem, json={"token": token}, headers=headers).status_code == 401
        pasted = subprocess.run(
            ["bash", "-c", curl_line(first.output)], capture_output=True, text=True, timeout=60, check=True
        )
        assert "indent" in pasted.stdout or "whitespace" in pasted.stdout, pasted.stdout
        children = first.children()
        assert children, "no replica"
        assert first.stop() == 0, first.errors
        _, alive = psutil.wait_procs(children, 30)
        assert not alive
    assert used({"TURNPIKE_DATA_DIR": str(data)}).requests == 1

    file.unlink()
    with Awake() as awake, process(tmp_path / "second", *arguments) as second:
        second.wait_for_output(r"curl ")
        assert awake.seconds < 10
        assert not re.search(r"tp_live_\w{20}", second.output), "a key is shown once"
        assert "first owner" not in second.output
        key = run("keys", "create", "--tenant", "demo", "--project", "default", "--data-dir", str(data)).stdout.strip()
        assert re.fullmatch(r"tp_live_\w+", key)
        line = curl_line(second.output)
        pasted = subprocess.run(
            ["bash", "-c", line],
            env=os.environ | {"TURNPIKE_API_KEY": key},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert '"choices"' in pasted.stdout, pasted.stdout
        second.popen.send_signal(signal.SIGINT)
        assert second.popen.wait(30) == 0


def test_on_a_terminal_the_key_is_shown_and_not_written(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    bring_trials(tmp_path / "data")
    arguments = ["serve", "--port", str(free_port()), "--data-dir", str(tmp_path / "data")]
    with (tmp_path / "stderr").open("wb") as err:
        running = subprocess.Popen(
            [sys.executable, "-m", "turnpike.cli", *arguments], stdout=theirs, stderr=err, stdin=subprocess.DEVNULL
        )
    os.close(theirs)
    shown = b""
    try:
        while b"Ctrl-C" not in shown:
            shown += os.read(ours, 65536)
    finally:
        running.terminate()
        status = running.wait(45)
        os.close(ours)
    assert re.search(rb"tp_live_\w{20}", shown)
    assert status == 0
    assert re.search(rb"http://\S+/console/link#sign_in=[\w-]{43}", shown)
    assert not (tmp_path / "data" / "api-key").exists()
    assert not (tmp_path / "data" / "sign-in-link").exists()


def test_a_fresh_database_server_needs_one_start(tmp_path: Path) -> None:
    with postgres_server() as postgres:
        data = tmp_path / "data"
        data.mkdir(mode=0o755)
        arguments = ("--data-dir", str(data), "--database-url", postgres.url)
        port = free_port()
        with process(tmp_path / "logs", "serve", "--port", str(port), *arguments) as running:
            key = first_key(running)
            with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=60) as client:
                assert client.completions.create(model="stdlib-qa", prompt="hi", max_tokens=2).usage
            assert running.stop() == 0, running.errors
            assert "chmod 700" in running.errors
        files = [path for path in data.rglob("*") if path.is_file()]
        assert {path.name for path in files} >= {"secrets.json", "journal", "api-key"}
        assert {path.stat().st_mode & 0o077 for path in files} == {0}
        (data / "secrets.json").unlink()
        again = run("serve", "--port", str(free_port()), *arguments)
        assert again.returncode == 2, "secrets that the keys in the database depend on are not made anew"
        assert "secrets_file" in again.stderr


def test_a_reader_of_the_output_that_goes_away_ends_nothing(tmp_path: Path) -> None:
    """As in `turnpike serve 2>&1 | head`."""
    port = free_port()
    reading, writing = os.pipe()
    bring_trials(tmp_path / "data")
    command = [sys.executable, "-m", "turnpike.cli", "serve", "--port", str(port), "--data-dir", str(tmp_path / "data")]
    running = subprocess.Popen(command, stdout=writing, stderr=writing, stdin=subprocess.DEVNULL)
    os.close(writing)
    try:
        os.read(reading, 1)
        os.close(reading)
        wait_ready(f"http://127.0.0.1:{port}")
        assert get(f"http://127.0.0.1:{port}/v1/models")[0] == 401
    finally:
        running.terminate()
        assert running.wait(45) == 0


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = run("serve", "--port", str(taken.getsockname()[1]), "--data-dir", str(tmp_path / "data"))
    assert answer.returncode != 0
    assert len(answer.stderr.strip().splitlines()) == 1
    assert "port" in answer.stderr
    assert "in use" in answer.stderr


def test_an_unwritable_folder_is_one_clear_line() -> None:
    answer = run("serve", "--port", "0", "--data-dir", "/proc/turnpike")
    assert answer.returncode != 0
    assert len(answer.stderr.strip().splitlines()) == 1
    assert "/proc/turnpike" in answer.stderr


def test_a_missing_model_is_one_clear_line(tmp_path: Path) -> None:
    answer = run("serve", "--port", "0", "--data-dir", str(tmp_path / "data"), "--model", str(tmp_path / "nothing"))
    assert answer.returncode != 0
    assert len(answer.stderr.strip().splitlines()) == 1
    assert str(tmp_path / "nothing") in answer.stderr


def test_a_missing_one_of_several_models_is_one_clear_line(tmp_path: Path) -> None:
    answer = run("serve", "--port", "0", "--data-dir", str(tmp_path / "data"), "--model", "models/a,models/b")
    assert answer.returncode != 0
    assert len(answer.stderr.strip().splitlines()) == 1
    assert answer.stderr == "turnpike: models/a: there is no such model folder\n"


def test_two_serves_do_not_share_a_data_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with process(tmp_path, "serve", "--port", str(free_port()), "--data-dir", str(data)) as first:
        first.wait_for_output(r"curl ")
        answer = run("serve", "--port", str(free_port()), "--data-dir", str(data))
        assert answer.returncode != 0
        assert len(answer.stderr.strip().splitlines()) == 1
        assert str(data) in answer.stderr


def test_killing_serve_leaves_no_replica(tmp_path: Path) -> None:
    port = free_port()
    with process(tmp_path, "serve", "--port", str(port), "--data-dir", str(tmp_path / "data")) as running:
        running.wait_for_output(r"curl ")
        children = running.children()
        running.kill()
        _, alive = psutil.wait_procs(children, 30)
        assert not alive
    assert get(f"http://127.0.0.1:{port}/healthz")[0] == 0


def test_a_small_memory_is_served_with_kv_and_weights_in_few_bits(tmp_path: Path) -> None:
    port = free_port()
    small = ("--kv-dtype", "fp8", "--quantize", "fp8", "--weights", "packed", "--kv-memory", str(8 << 20))
    with process(tmp_path, "serve", "--port", str(port), "--data-dir", str(tmp_path / "data"), *small) as running:
        key = first_key(running)
        question = "What does str.split return? " * 40
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=key, max_retries=0, timeout=60) as client:
            cold, warm = (
                client.chat.completions.create(
                    model="stdlib-qa", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=24
                )
                for _ in range(2)
            )
        assert cold.choices[0].message.content
        assert warm.choices[0].message.content == cold.choices[0].message.content
        assert warm.usage is not None
        assert warm.usage.prompt_tokens_details is not None
        assert (warm.usage.prompt_tokens_details.cached_tokens or 0) >= 64
        said = [json.loads(line) for line in running.errors.splitlines() if line.startswith("{")]
        (memory,) = (line for line in said if line["event"] == "memory for KV")
        assert running.stop() == 0, running.errors
    # A byte for each element and four for the scale of each head.
    config = json.loads((Path(__file__).resolve().parents[2] / "models/stdlib-qa/config.json").read_text())
    heads, layers = config["num_key_value_heads"], config["num_hidden_layers"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    assert memory["blocks"] == [(8 << 20) // (2 * layers * heads * 64 * (dim + 4))]


def test_a_make_target_stands_behind_each_command_of_the_readme() -> None:
    text = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    targets = (Path(__file__).resolve().parents[2] / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z-]+)", text):
        assert re.search(rf"^{shlex.quote(target)}:", targets, re.M), target
