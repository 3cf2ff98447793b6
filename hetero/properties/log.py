"""Names of logging properties: ``hetero.properties.log``."""

import logging
from enum import StrEnum
from typing import Final

from hetero.properties.property_name import PropertyName


class Level(StrEnum):
    """Values of LOG_LEVEL."""

    NO = "LOG_NONE"
    ERR = "LOG_ERROR"
    WARNING = "LOG_WARNING"
    INFO = "LOG_INFO"
    DEBUG = "LOG_DEBUG"
    TRACE = "LOG_TRACE"


level: Final = PropertyName("LOG_LEVEL", str)

#: Value of LOG_LEVEL -> level of Python's loggers.
LOGGING_LEVELS: Final = {
    "LOG_NONE": logging.CRITICAL + 1,
    "LOG_ERROR": logging.ERROR,
    "LOG_WARNING": logging.WARNING,
    "LOG_INFO": logging.INFO,
    "LOG_DEBUG": logging.DEBUG,
    "LOG_TRACE": logging.DEBUG,
}


def set_logging_level(plugin: str, log_level: str) -> None:
    """Set the level of a plugin's logger, or of the logger ``hetero`` if `plugin` is empty."""
    logger = logging.getLogger(f"hetero.devices.{plugin.lower()}" if plugin else "hetero")
    if log_level:
        logger.setLevel(LOGGING_LEVELS[log_level])
