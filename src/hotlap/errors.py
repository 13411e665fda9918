"""The errors that hotlap raises on purpose.

HotlapError
└── UsageError      something a user can cause: one sentence, exit code 2
    └── RecordError a file of ours that cannot be read as what it should be
"""


class HotlapError(Exception):
    """Base of every error raised on purpose."""


class UsageError(HotlapError):
    """A user can cause it: the message names the thing, what was found, what would be right."""


class RecordError(UsageError):
    """A record on disk is damaged, of a newer schema, or not what was asked for."""
