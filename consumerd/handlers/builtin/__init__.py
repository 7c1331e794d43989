"""The handlers that come with consumerd; each is named by an entry point in pyproject.toml."""
