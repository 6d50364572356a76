"""Endpoints of the screen recording by ffmpeg: the start returns at the first frame, the end returns the video."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import threading
import time
from pathlib import Path

from ..server.answers import Answer, Table, as_json, failed
from .files import read_regular

RATE = 30  # frames per second, as in OSWorld's server
FIRST_FRAME = 20.0  # seconds for ffmpeg to record its first frame
LAST_FRAME = 15.0  # seconds for ffmpeg to finish the file


class Recording:
    """``/start_recording`` and ``/end_recording``; one at a time.

    Args:
        env: the desktop's environment.
        size: (width, height) of the screen in pixels.
        folder: where the video is written.
    """

    def __init__(self, env: dict[str, str], size: tuple[int, int], folder: Path) -> None:
        self._env, self._size, self._path = env, size, folder / "recording.mp4"
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def routes(self) -> Table:
        return {
            ("POST", "/start_recording"): lambda _: self.start(),
            ("POST", "/end_recording"): lambda _: self.end(),
        }

    def own(self) -> set[int]:
        """Process ids of the children that this object waits for."""
        process = self._process
        return {process.pid} if process is not None else set()

    def start(self) -> Answer:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return failed("Recording is already in progress.", 400)
            if shutil.which("ffmpeg", path=self._env["PATH"]) is None:
                fix = "fix: apt-get update && apt-get install -y ffmpeg"
                return failed(f"Failed to start recording. No ffmpeg in this desktop; {fix}")
            self._path.unlink(missing_ok=True)
            self._process = process = self._spawn()
            assert process.stdout is not None
            if not _filmed(process.stdout.fileno()):
                process.kill()
                process.wait()
                self._process = None
                return failed(f"Failed to start recording. ffmpeg recorded no frame; its log: {self._said()}")
            threading.Thread(target=_drain, args=(process.stdout.fileno(),), daemon=True).start()
            return as_json({"status": "success", "message": "Started recording successfully."})

    def _spawn(self) -> subprocess.Popen[bytes]:
        width, height = self._size
        source = ["-f", "x11grab", "-draw_mouse", "1", "-framerate", str(RATE), "-video_size", f"{width}x{height}"]
        codec = ["-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-pix_fmt", "yuv420p"]
        even = ["-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2"]  # yuv420p requires even sizes
        progress = ["-loglevel", "error", "-progress", "pipe:1", "-stats_period", "0.1"]
        with self._path.with_suffix(".log").open("wb") as log:
            return subprocess.Popen(
                ["ffmpeg", "-y", *progress, *source, "-i", self._env["DISPLAY"], *even, *codec, str(self._path)],
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def end(self) -> Answer:
        with self._lock:
            process, self._process = self._process, None
            if process is None or process.poll() is not None:
                return failed("No recording in progress to stop.", 400)
            assert process.stdin is not None
            try:
                process.stdin.write(b"q")
                process.stdin.close()
                process.wait(LAST_FRAME)
            except (BrokenPipeError, subprocess.TimeoutExpired):
                process.kill()
                process.wait()
                return failed(f"Recording process was unresponsive and had to be killed. Stderr: {self._said()}")
            if not self._path.is_file() or not self._path.stat().st_size:
                return failed(f"Recording failed. The output file is missing or empty. ffmpeg stderr: {self._said()}")
            film = read_regular(self._path)
            self._path.unlink()
            return Answer(film, kind="video/mp4", headers={"Content-Disposition": "attachment; filename=recording.mp4"})

    def _said(self) -> str:
        return self._path.with_suffix(".log").read_text(errors="replace")[-500:].strip() or "nothing"


def _filmed(progress: int) -> bool:
    """Waits until ffmpeg's progress reports a frame; False if it ends or reports none in time."""
    text, end = b"", time.monotonic() + FIRST_FRAME
    while not any(line.startswith(b"frame=") and line != b"frame=0" for line in text.splitlines()[:-1]):
        ready, _, _ = select.select([progress], [], [], max(0.0, end - time.monotonic()))
        part = os.read(progress, 4096) if ready else b""
        if not part:
            return False
        text += part
    return True


def _drain(progress: int) -> None:
    """Reads ffmpeg's progress until it ends, so that it never blocks on a full pipe."""
    while os.read(progress, 65536):
        continue
