"""A learner whose state is a line of text: for tests where only its files and its timing matter."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path


class TextSaving:
    """A write that is going on; it stands still while the learner's ``gate`` is shut."""

    def __init__(self, writing: Future[None]) -> None:
        self._writing = writing

    def wait(self) -> None:
        self._writing.result()


class TextLearner:
    """``text`` is all that it has learned. ``error`` is raised by the next writes, behind its back."""

    def __init__(self, text: str = "", error: OSError | None = None) -> None:
        self.text = text
        self.error = error
        self.gate = threading.Event()
        self.gate.set()
        self._writer = ThreadPoolExecutor(max_workers=1)

    def save(self, folder: Path, *, model_folder: Path | None = None) -> TextSaving:
        return TextSaving(self._writer.submit(self._write, self.text, folder, model_folder))

    def _write(self, text: str, folder: Path, model_folder: Path | None) -> None:
        folder.mkdir()
        self.gate.wait(10)
        if self.error:
            raise self.error
        (folder / "state").write_text(text)
        if model_folder is not None:
            model_folder.mkdir()
            (model_folder / "model.safetensors").write_text(text)

    def load(self, folder: Path) -> None:
        self.text = (folder / "state").read_text()

    def close(self) -> None:
        self.gate.set()
        self._writer.shutdown()
