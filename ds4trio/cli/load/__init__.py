"""The load generator of ``ds4trio bench``."""
