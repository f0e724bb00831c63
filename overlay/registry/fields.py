"""What every section of a registry file shares: no unknown keys, printable words, problems with a code."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

__all__ = ["Fields", "Word", "check_printable", "wrong"]


class Fields(BaseModel):
    """A section of the file: no key that it does not know."""

    # Built when first used: a whole file needs one validator, and one for each section costs every command 40 ms.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def wrong(code: str, message: str, hint: str = "") -> PydanticCustomError:
    """What a validator raises, in the words of the file."""
    # The message goes in as a value: it may hold braces, which pydantic would take for a template.
    return PydanticCustomError("registry", "{message}", {"message": message, "code": code, "hint": hint})


def check_printable(text: str) -> str:
    """The text as given, if a terminal and a log can show it.

    Raises:
        PydanticCustomError: It has control characters.
    """
    if not text.isprintable():
        raise wrong("not-printable", f"{text!r} has control characters")
    return text


Word = Annotated[str, AfterValidator(check_printable)]
