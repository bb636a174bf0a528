"""Plain data from YAML and JSON files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from geminid.documents import load_json, load_yaml
from geminid.fields import MAX_TEXT_LENGTH, InvalidInput, Problem


def read_data(file: Path) -> Any:
    """The data in a file; which of both languages it is in goes by its name.

    Raises:
        InvalidInput: it cannot be read.
    """
    try:
        with file.open(encoding="utf-8") as stream:
            text = stream.read(MAX_TEXT_LENGTH + 1)  # one more is enough to be refused
    except OSError as error:
        expected = f"must be a file that can be read ({error.strerror})"
        raise InvalidInput([Problem("file", str(file), expected)]) from None
    except UnicodeDecodeError:
        raise InvalidInput([Problem("file", str(file), "must be text in UTF-8")]) from None
    return load_json(text) if file.suffix == ".json" else load_yaml(text)
