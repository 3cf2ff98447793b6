"""Names of logging properties: ``hetero.properties.log``."""

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
