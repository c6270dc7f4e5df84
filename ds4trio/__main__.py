"""``python -m ds4trio`` is the command ``ds4trio``."""

from __future__ import annotations

from ds4trio.cli.main import main

main(prog_name="ds4trio")
