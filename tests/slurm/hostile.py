"""Words and names that have meant something else to a shell, to sbatch or to a terminal."""

from __future__ import annotations

ATTACKS = (
    *("$(touch ran)", "`touch ran`", "; touch ran", "& touch ran", "| touch ran", "&& touch ran"),
    *("|| touch ran", "> ran", ">> ran", "< ran", "$(< ran)", "<(touch ran)", "${IFS}", "$IFS"),
    *("$HOME", "${HOME}", "~", "~root", "*", "?", "[a-z]", "{a,b}", "!!", "!ran", "#ran", "a #b"),
    *("\\", "\\\\", "\\n", "\\$HOME", "'", "''", '"', '""', "it's", 'say "so"', "'; touch ran; '"),
    *('"; touch ran; "', "'$(touch ran)'", '"$(touch ran)"', "\\'; touch ran", '\\"; touch ran'),
    *("$'\\ntouch ran'", "--", "-", "-rf", "--help", "-c", "=", "a=b", "a b", "(", ")", "()", "{"),
    *("}", "[", "]", "[[ a ]]", "$((1+1))", "$", "$$", "$!", "$?", "$0", "$@", "$*", "${!x}"),
    *("%j", "%x", "%%", "%A_%a", "%", "100%", "EOF", "<<EOF", "if", "done", "exit 1", "exec x"),
    *("é", "日本語", "🚀", "ünï cödé", "a\u00a0b", "a\u200bb", "\u202egnp.exe", ".", "..", "/"),
    *("../../etc/passwd", "/dev/null", "C:\\temp", "\\\\server\\share", "x" * 1000, "0", "null"),
)
CONTROLS = (
    *("", " ", "  a  ", "\t", "a\tb", "\n", "a\nb", "\n\n", "a\n", "\r", "a\r\nb", "\r\n", "\x01"),
    *("\x07", "\x08", "\x1b[31mred\x1b[0m", "\x7f", "\x0b", "\x0c", "a\n#SBATCH --nodes=99\nb"),
    *("\ntouch ran\n", "\n; touch ran\n", "'\ntouch ran\n'", '"\ntouch ran\n"', "\\\ntouch ran"),
    *("\n\n#!/bin/sh\ntouch ran", "\x85", "\u2028touch ran", "\u2029touch ran", "\udcff\udcfe"),
)
HOSTILE_WORDS = ATTACKS + CONTROLS

HOSTILE_NAMES = tuple(
    word for word in ATTACKS if "|" not in word and len(word) <= 200 and word == word.strip()
)
"""Those that a job can be called; the tests of what is refused name the others."""
