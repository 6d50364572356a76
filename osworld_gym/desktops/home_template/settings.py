"""The applications' settings in a template: files written before their first start, and changes made after it.

No tips, first-run pages, recovery, automatic saving or blinking: an application's first screen is always the same, and
only the policy's input changes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

THUNDERBIRD = "t5q2a5hp.default-release"  # profile folder that OSWorld's evaluators expect

#: (path, property, value) of LibreOffice's registrymodifications.xcu
_LIBREOFFICE = (
    ("Office.Common/Misc", "ShowTipOfTheDay", "false"),
    ("Office.Common/Misc", "FirstRun", "false"),
    ("Office.Common/Misc", "CrashReport", "false"),
    ("Office.Common/Misc", "UseSystemFileDialog", "true"),
    ("Office.Recovery/AutoSave", "Enabled", "false"),
    ("Office.Recovery/RecoveryInfo", "Enabled", "false"),
    ("Office.Recovery/RecoveryInfo", "Crashed", "false"),
    ("Office.UI.Infobar/Enabled", "WhatsNew", "false"),
    ("Office.UI.Infobar/Enabled", "GetInvolved", "false"),
    ("Office.UI.Infobar/Enabled", "Donate", "false"),
    ("Office.Impress/Misc/NewDoc", "AutoPilot", "false"),
    ("Office.Jobs/Jobs/org.openoffice.Office.Jobs:Job['UpdateCheck']/Arguments", "AutoCheckEnabled", "false"),
    ("Setup/Product", "ooSetupLastVersion", "{version}"),
    ("Setup/L10N", "ooSetupSystemLocale", "en-US"),
)

_XCU = """<?xml version="1.0" encoding="UTF-8"?>
<oor:items xmlns:oor="http://openoffice.org/2001/registry" xmlns:xs="http://www.w3.org/2001/XMLSchema" \
xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance">
{items}</oor:items>
"""
_ITEM = '<item oor:path="/org.openoffice.{path}"><prop oor:name="{name}" oor:op="fuse"><value>{value}</value></prop>'


def libreoffice(version: str) -> str:
    """registrymodifications.xcu for LibreOffice ``version`` (``7.4``); with another version it shows "What's new"."""
    rows = ((path, name, value.format(version=version)) for path, name, value in _LIBREOFFICE)
    items = "".join(_ITEM.format(path=path, name=name, value=value) + "</item>\n" for path, name, value in rows)
    return _XCU.format(items=items)


#: Local Folders, and an account that stores its mail there, so that messages can be written; its server does not exist
_THUNDERBIRD_PREFS: dict[str, Any] = {
    "app.donation.eoy.version.viewed": 999,
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.cache.disk.enable": False,
    "calendar.timezone.local": "UTC",
    "datareporting.healthreport.uploadEnabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.getAddons.cache.enabled": False,
    "extensions.update.enabled": False,
    "mail.account.account1.server": "server1",
    "mail.account.account2.identities": "id1",
    "mail.account.account2.server": "server2",
    "mail.accountmanager.accounts": "account1,account2",
    "mail.accountmanager.defaultaccount": "account2",
    "mail.accountmanager.localfoldersserver": "server1",
    "mail.identity.id1.draft_folder": "mailbox://nobody@Local%20Folders/Drafts",
    "mail.identity.id1.fcc_folder": "mailbox://nobody@Local%20Folders/Sent",
    "mail.identity.id1.fullName": "User",
    "mail.identity.id1.smtpServer": "smtp1",
    "mail.identity.id1.stationery_folder": "mailbox://nobody@Local%20Folders/Templates",
    "mail.identity.id1.useremail": "user@example.org",
    "mail.identity.id1.valid": True,
    "mail.provider.suppress_dialog_on_startup": True,
    "mail.rights.version": 1,
    "mail.server.server1.directory-rel": "[ProfD]Mail/Local Folders",
    "mail.server.server1.hostname": "Local Folders",
    "mail.server.server1.name": "Local Folders",
    "mail.server.server1.type": "none",
    "mail.server.server1.userName": "nobody",
    "mail.server.server2.check_new_mail": False,
    "mail.server.server2.deferred_to_account": "account1",
    "mail.server.server2.directory-rel": "[ProfD]Mail/mail.example.org",
    "mail.server.server2.hostname": "mail.example.org",
    "mail.server.server2.login_at_startup": False,
    "mail.server.server2.name": "user@example.org",
    "mail.server.server2.type": "pop3",
    "mail.server.server2.userName": "user",
    "mail.shell.checkDefaultClient": False,
    "mail.smtpserver.smtp1.hostname": "mail.example.org",
    "mail.smtpserver.smtp1.username": "user",
    "mail.smtpservers": "smtp1",
    "mail.spotlight.firstRunDone": True,
    "mail.winsearch.firstRunDone": True,
    "mailnews.start_page.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
    "ui.caretBlinkTime": 0,
}


def _thunderbird_prefs() -> str:
    lines = (f'user_pref("{name}", {json.dumps(value)});' for name, value in sorted(_THUNDERBIRD_PREFS.items()))
    return "\n".join(lines) + "\n"


_GIMPRC = """(check-updates no)
(default-image
    (width 1920)
    (height 1080))
(show-tips no)
"""

_INSTALL = "FDC34C9F024745EB"  # Thunderbird's hash of /usr/lib/thunderbird, on Debian as on Ubuntu
_PROFILES = f"""[Profile0]
Name=default-release
IsRelative=1
Path={THUNDERBIRD}
Default=1

[General]
StartWithLastProfile=1
Version=2

[Install{_INSTALL}]
Default={THUNDERBIRD}
Locked=1
"""

#: file of HOME → text, written before an application's first start
SEEDS = {
    f".thunderbird/{THUNDERBIRD}/prefs.js": _thunderbird_prefs(),
    ".thunderbird/profiles.ini": _PROFILES,
    ".thunderbird/installs.ini": f"[{_INSTALL}]\nDefault={THUNDERBIRD}\nLocked=1\n",
    ".config/GIMP/2.10/gimprc": _GIMPRC,
}

#: VLC options to set; vlcrc lists every option as a comment, in sections
_VLC = {
    "qt-privacy-ask": "0",
    "metadata-network-access": "0",
    "http-password": "password",
    "http-port": "8080",
    "extraintf": "http",
}


#: Chrome's search engine; Debian's Chromium has another default. The ids are Chromium's own for Google
_GOOGLE = {
    "id": "2",
    "input_encodings": ["UTF-8"],
    "keyword": "google.com",
    "prepopulate_id": 1,
    "safe_for_autoreplace": True,
    "short_name": "Google",
    "synced_guid": "485bf7d3-0215-45af-87dc-538868000001",
    "url": "{google:baseURL}search?q={searchTerms}&ie={inputEncoding}",
}


def fix_profiles(home: Path) -> None:
    """Changes the profiles that the applications wrote to the state in which every episode starts."""
    for fix in (_fix_chrome, _fix_gimp):
        fix(home)


def _fix_chrome(home: Path) -> None:
    """Removes "restore pages", preset permissions and client ids; makes Google the search engine."""
    profile = home / ".config/google-chrome"
    if not profile.is_dir():
        return
    _edit_json(profile / "Default/Preferences", _chrome_preferences)
    _edit_json(profile / "Local State", _chrome_state)
    (profile / "First Run").touch()


def _chrome_preferences(data: dict[str, Any]) -> None:
    profile = data.setdefault("profile", {})
    profile |= {"exit_type": "Normal", "exited_cleanly": True}
    profile.pop("default_content_setting_values", None)
    data["default_search_provider"] = {"guid": _GOOGLE["synced_guid"]}
    data["default_search_provider_data"] = {"template_url_data": _GOOGLE}
    data.pop("enterprise_profile_guid", None)
    data.get("google", {}).pop("services", None)
    data.setdefault("browser", {}).pop("window_placement", None)


def _chrome_state(data: dict[str, Any]) -> None:
    for name in ("user_experience_metrics", "variations_compressed_seed", "variations_seed_date", "uninstall_metrics"):
        data.pop(name, None)


def _edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def _fix_gimp(home: Path) -> None:
    """Places the window at the screen's corner and maximises it, for any screen size."""
    for session in home.glob(".config/GIMP/*/sessionrc"):
        text = session.read_text(encoding="utf-8")
        text = re.sub(r"\(position -?\d+ -?\d+\)", "(position 0 0)", text)
        session.write_text(text.replace('(maximized "no")', '(maximized "yes")'), encoding="utf-8")


def vlc(text: str) -> str:
    """Sets our options in a vlcrc with VLC's defaults.

    Raises:
        ValueError: the file lacks one of the options.
    """
    for name, value in _VLC.items():
        text, replaced = re.subn(rf"(?m)^#?{re.escape(name)}=.*$", f"{name}={value}", text)
        if not replaced:
            raise ValueError(f"vlcrc: expected the option {name!r}, which this version of VLC does not have")
    return text
