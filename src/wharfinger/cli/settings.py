"""Settings for commands: what the environment says, and one line for what is wrong with it."""

from __future__ import annotations

from pydantic import ValidationError

from wharfinger.cli.output import CliError, Exit
from wharfinger.settings import Settings


def settings_from(**options: object) -> Settings:
    """Settings from the environment, overridden by the options that were given.

    Raises:
        CliError: naming the setting, the value and what is accepted.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = "WHARF_" + "_".join(str(part) for part in first["loc"]).upper()
        raise CliError(f"{name}: {first['msg']} (given: {first['input']!r})", Exit.USAGE) from error
