"""Window titles of real applications: which name the opened file, and which only seem to."""

from __future__ import annotations

from pathlib import Path

import pytest

from osworld_gym.guest.x11.titles import shows

NAMING = [
    ("t.txt", "t.txt - Mousepad"),
    ("t.txt", "*t.txt (~/Desktop) - gedit"),
    ("t.txt", "T.TXT"),
    ("report.docx", "report.docx - LibreOffice Writer"),
    ("slides.pptx", "slides - LibreOffice Impress"),
    ("photo.png", "[photo] (imported)-1.0 (RGB color 8-bit gamma integer, 1 layer) 640x480 – GIMP"),
    ("lecture.pdf", "lecture.pdf — 6.006 Introduction to Algorithms"),
    ("my notes (2).odt", "my notes (2).odt - LibreOffice Writer"),
    ("Fundings", "Fundings"),
    ("größe.csv", "größe.csv - LibreOffice Calc"),
]
LOOKING_SO = [
    ("t.txt", "user@user-virtual-machine: ~"),
    ("t.txt", "attic.txt - Mousepad"),
    ("t.txt", "not.t.txt - Mousepad"),
    ("a.xlsx", "data.xlsx - LibreOffice Calc"),
    ("report.docx", "report-2.docx - LibreOffice Writer"),
    ("report.docx", "old report2.docx"),
    ("report.docx", "report.odt - LibreOffice Writer"),
    ("x.csv", ""),
]


@pytest.mark.parametrize(("name", "title"), NAMING)
def test_a_title_that_names_the_file(name: str, title: str) -> None:
    assert shows(title, Path("/home/user") / name)


@pytest.mark.parametrize(("name", "title"), LOOKING_SO)
def test_a_title_that_is_only_similar(name: str, title: str) -> None:
    assert not shows(title, Path("/home/user") / name)
