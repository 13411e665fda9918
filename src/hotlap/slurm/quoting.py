"""Words that others chose, in a job's script: each arrives as it is, and none becomes a command.

In the script's body they are bash's words; in an `#SBATCH` line they are sbatch's, which has quotes
of its own, reads one line, and fills in some patterns where it expects a file's name.
"""

from __future__ import annotations

import re
import shlex

from hotlap.errors import UsageError


def bash_word(text: str, what: str = "an argument") -> str:
    """One word for bash, on one line: sbatch refuses a script with the line ends of DOS."""
    if "\0" in text:
        raise UsageError(f"{what} is {text!r}; no program can be given a zero byte")
    if not re.search(r"[\x00-\x1f\x7f]", text):
        return shlex.quote(text)
    return "$'" + "".join(map(_ansi_c, text)) + "'"


def _ansi_c(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    return f"\\{ord(character):03o}" if character < " " or character == "\x7f" else character


def bash_words(words: tuple[str, ...] | list[str]) -> str:
    """Several words for bash."""
    return " ".join(map(bash_word, words))


def directive(option: str, value: str) -> str:
    """A line by which sbatch gets a value as it is."""
    what = f"--{option}"
    if re.search(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]", value):
        raise UsageError(f"{what} is {value!r}; Slurm takes one line without control characters")
    if not _is_text(value):
        raise UsageError(f"{what} is {value!r}; Slurm takes text, and these bytes are none")
    if re.fullmatch(r"[A-Za-z0-9_.,:=@%+/&|*()\[\]{}-]+", value):
        return f"#SBATCH {what}={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'#SBATCH {what}="{escaped}"'


def file_pattern(folder: str, pattern: str) -> str:
    """A file below a folder for `--output`: only the pattern's own signs are filled in."""
    if "\\" in folder:
        raise UsageError(f"the folder {folder} has a backslash; Slurm cannot write its logs there")
    return f"{folder.replace('%', '%%')}/{pattern}"


def job_name(text: str) -> str:
    """A name that Slurm carries as it is."""
    if not text.strip():
        raise UsageError(f"--name is {text!r}; a job needs a name that can be read")
    if text != text.strip():
        raise UsageError(f"--name is {text!r}; Slurm cuts off blanks at its ends: leave them out")
    if "|" in text:
        # Slurm's own tables have bars between their cells.
        raise UsageError(f"--name is {text!r}; a bar (|) in it would break Slurm's own tables")
    if len(text.encode("utf-8", "surrogateescape")) > 200:
        raise UsageError(f"--name has {len(text)} characters; at most 200 bytes are sensible")
    return text


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
