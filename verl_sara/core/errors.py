"""The errors of the decision core. Each also is the built-in it refines."""


class SaraError(Exception):
    """Base of every error raised by verl_sara."""


class ConfigError(SaraError, ValueError):
    """An option has an unknown name, a wrong type or a value out of range."""


class IllegalTransition(SaraError, RuntimeError):
    """An event that the group or the step cannot take in its present phase; nothing was changed."""


class NoCommittedGroup(SaraError, RuntimeError):
    """Step after step ended without one effective group: training cannot go on."""
