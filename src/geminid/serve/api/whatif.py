"""What if: the live jobs simulated to their end, as they are and with something changed, in a process of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, NoReturn

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from geminid.policies.registry import make_policy
from geminid.serve import pageschemas
from geminid.serve.api.context import Caller, Context
from geminid.serve.api.requests import JsonBody, body_schema
from geminid.serve.api.status import snapshot_document
from geminid.serve.inbox import Refused
from geminid.serve.whatif_process import Change

#: Time that both simulations together may take.
TIME_LIMIT_S = 60.0

#: Simulations at a time; others wait for their turn.
AT_A_TIME = 2

_turn = asyncio.Semaphore(AT_A_TIME)

#: The users whose simulation runs or waits: one each.
_simulating: set[str] = set()

router = APIRouter()


@router.post("/what-if", response_model=pageschemas.WhatIf, openapi_extra=body_schema(pageschemas.WhatIfChange))
async def what_if(context: Context, caller: Caller, given: JsonBody) -> JSONResponse:
    """Simulate the live jobs twice: as things are, and with another ``policy``, ``cluster``, or one ``job`` more.

    ``cluster`` is in short form, such as ``a100:2x8``; ``job`` has ``slots``, ``seconds`` and perhaps ``name``.
    """
    try:
        change = await asyncio.to_thread(Change.of, given)
    except ValueError as problem:
        raise Refused(422, str(problem)) from None
    if change.policy is not None:
        _check_policy(change.policy)
    if caller.user in _simulating:
        raise Refused(429, f"another simulation of {caller.user} has not ended: one at a time for each user")
    _simulating.add(caller.user)
    try:
        async with _turn:
            question = {"snapshot": snapshot_document(context, caller), "change": given}
            answer = await _simulated(question)
    finally:
        _simulating.discard(caller.user)
    if "error" in answer:
        raise Refused(422, str(answer["error"]))
    return JSONResponse(answer)


def _check_policy(text: str) -> None:
    """Refuse anything but a built-in policy: a policy in a file is code, and options may name files to read.

    Raises:
        Refused, InvalidInput: it is not built in, or its options are wrong.
    """

    def refuse(path: str) -> NoReturn:
        raise Refused(422, "policy must be one that is built in, without options that name files")

    make_policy(text, refuse, refuse)


async def _simulated(question: dict[str, Any]) -> dict[str, Any]:
    """Ask a process of its own: a long simulation must not delay the service."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "geminid.serve.whatif_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(json.dumps(question).encode()), TIME_LIMIT_S)
    except TimeoutError:
        command = "`geminid simulate --from-live` has no limit"
        raise Refused(504, f"the simulation took longer than {TIME_LIMIT_S:.0f} s; {command}") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        answer: dict[str, Any] = json.loads(output)
    except ValueError:
        last = errors.decode(errors="replace").strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
        raise Refused(500, f"the simulation failed: {last[0][:300]}") from None
    return answer
