"""A mail server on the loopback that keeps what it is given, and fails as it is told."""

from __future__ import annotations

import asyncio
from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Literal, cast

Fault = Literal["busy", "no such user", "hang up", "hang up after"]


class MailSink:
    """Takes mail for anybody. `faults`: what is done with the next messages, one each. `features`: what EHLO says."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, EmailMessage]] = []
        self.faults: list[Fault] = []
        self.features: list[str] = []
        self.port = 0

    async def __aenter__(self) -> MailSink:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 sink\r\n")
        recipient = ""
        fault: Fault | None = self.faults.pop(0) if self.faults else None
        while line := (await reader.readline()).strip():
            verb = line[:4].upper()
            if verb == b"RCPT":
                recipient = line.decode().partition("<")[2].partition(">")[0]
                writer.write(
                    b"450 busy\r\n"
                    if fault == "busy"
                    else b"550 who?\r\n"
                    if fault == "no such user"
                    else b"250 ok\r\n"
                )
            elif verb == b"EHLO":
                lines = ["sink", *self.features]
                writer.write("".join(f"250{' ' if line is lines[-1] else '-'}{line}\r\n" for line in lines).encode())
            elif verb == b"AUTH":
                writer.write(b"334 UGFzc3dvcmQ6\r\n")
            elif verb == b"DATA":
                if fault == "hang up":
                    break
                writer.write(b"354 go on\r\n")
                await writer.drain()
                content = (await reader.readuntil(b"\r\n.\r\n"))[:-3].replace(b"\r\n..", b"\r\n.")
                self.messages.append(
                    (recipient, cast(EmailMessage, message_from_bytes(content, policy=policy.default)))
                )
                if fault == "hang up after":
                    break
                writer.write(b"250 taken\r\n")
            elif verb == b"QUIT":
                writer.write(b"221 bye\r\n")
                break
            else:
                writer.write(b"250 ok\r\n")
            await writer.drain()
        writer.close()
