"""Models of a document, which variables of the environment override.

Strategy: pydantic-settings merges both. It takes 3 MiB of memory and a twentieth of a daemon's start, most of it for
sources that nothing here uses; so only a configuration that has variables imports this module.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Self

from pydantic import BaseModel
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from consumerd.service.config.problems import DELIMITER, PREFIX, UnreadableVariableError


class FileSettings(BaseSettings):
    """Settings of a document, which variables of the environment override."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment wins over the file (whose content comes in as init arguments)."""
        return env_settings, init_settings

    @classmethod
    def read(cls, document: dict[str, Any]) -> Self:
        """Validate `document` with the environment. Raises ValidationError, UnreadableVariableError."""
        try:
            return cls(**document)
        except SettingsError as error:
            raise UnreadableVariableError(str(error)) from None  # the cause has the text of the variable


@cache
def config_with_environment(model: type[BaseModel]) -> Any:
    """The `model` of the whole configuration, under the environment: CONSUMERD_GROUP__ID sets `[group] id`."""

    class ConfigWithEnvironment(FileSettings, model):  # type: ignore[misc, valid-type]
        model_config = SettingsConfigDict(
            env_prefix=PREFIX,
            env_nested_delimiter=DELIMITER,
            env_nested_max_split=2,
            defer_build=True,
        )

    return ConfigWithEnvironment
