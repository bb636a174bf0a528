"""What if: the live jobs simulated to their end, as they are and with something changed, in a process of their own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, NoReturn

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from geminid.policies.registry import make_policy
from geminid.serve import schemas
from geminid.serve.api.context import Caller, Context
from geminid.serve.api.requests import JsonBody, body_schema
from geminid.serve.api.status import snapshot_document
from geminid.serve.inbox import Refused

#: Time that a simulation may take.
TIME_LIMIT_S = 60.0

#: Longest policy with its options, in characters.
MAX_POLICY_LENGTH = 500

#: What can be changed.
CHANGES = ("policy", "cluster", "job")

#: One simulation at a time: the others wait their turn.
_turn = asyncio.Semaphore(1)

router = APIRouter()


@router.post("/what-if", response_model=schemas.WhatIf, openapi_extra=body_schema(schemas.WhatIfChange))
async def what_if(context: Context, caller: Caller, given: JsonBody) -> JSONResponse:
    """Simulate the live jobs twice: as things are, and with another ``policy``, ``cluster``, or one ``job`` more.

    ``cluster`` is in short form, such as ``a100:2x8``; ``job`` has ``slots``, ``seconds`` and perhaps ``name``.
    """
    if not isinstance(given, dict) or not given or not given.keys() <= set(CHANGES):
        raise Refused(422, f"what can be changed is {', '.join(CHANGES)}: at least one of them")
    question = {"snapshot": snapshot_document(context, caller), "change": given}
    if "policy" in given:
        _check_policy(given["policy"])
    async with _turn:
        answer = await _simulated(question)
    if "error" in answer:
        raise Refused(422, str(answer["error"]))
    return JSONResponse(answer)


def _check_policy(text: Any) -> None:
    """Refuse anything but a built-in policy: a policy in a file is code, and options may name files to read.

    Raises:
        Refused, InvalidInput: it is not built in, or its options are wrong.
    """
    if not isinstance(text, str) or len(text) > MAX_POLICY_LENGTH:
        raise Refused(422, f"policy must be a text of at most {MAX_POLICY_LENGTH} characters")

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
        raise Refused(504, f"the simulation took longer than {TIME_LIMIT_S:.0f} s") from None
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
