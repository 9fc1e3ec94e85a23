"""The commands of a Markdown page: its ```bash blocks, in their order."""

import re
from pathlib import Path

_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[str]:
    return _BLOCK.findall(page.read_text(encoding="utf-8"))
