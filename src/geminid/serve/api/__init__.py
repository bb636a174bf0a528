"""The service's HTTP interface: JSON under ``/api/v1``, described by ``/api/v1/openapi.json``.

One router per subject; ``context.py`` has the dependencies that routers share, ``access.py`` decides who may send
requests, and ``requests.py`` how they are read and refused.
"""

from geminid.serve.api.app import make_app
from geminid.serve.api.context import ApiContext

__all__ = ["ApiContext", "make_app"]
