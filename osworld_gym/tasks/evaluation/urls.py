"""Comparison of URLs by OSWorld's rule, which ignores a site's ``www.`` or leading dot, and the public suffix."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

#: suffixes of one label that are ignored. OSWorld downloads the public suffix list; of a host with any other suffix
#: nothing is ignored here, so that no hosts are the same that are different there
_ONE = """
    com org net edu gov mil int info biz name pro io ai app dev me tv cc xyz online site store shop blog tech
    ae ar at au be bg br by ca ch cl cn co cz de dk ee eg es eu fi fr gr hk hr hu id ie il in ir is it jp kr lt lu lv ma
    mx my ng nl no nz pe ph pk pl pt ro rs ru sa se sg si sk th tr tw ua uk us vn za
"""
#: second labels that belong to the suffix of a country, and the countries of which that is known
_TWO = """
    ac: ae at be cn id il in ir jp kr ma nz pk rs se th uk vn za
    co: ae at id il in ir it jp kr ma nz pk rs th uk us za
    com: ar au br by cn co ee eg es fr gr hk hr mx my ng pe ph pk pl pt ro sa sg tr tw ua vn
    edu: ar au br cn co ee eg es gr hk mx my ng pe ph pk pl pt rs sa sg tr tw ua vn za
    gob: ar cl es mx pe pk
    gov: ae ar au br cn co ee eg gr hk ie il in ir it lt lv ma my ng ph pk pl pt sa sg tr tw ua uk vn za
    go: id it jp kr th
    mil:
    ne: jp kr
    net: ae ar au br cn co eg gr hk id il in ir lv ma mx my ng nz pe ph pk pl pt sa sg th tr tw ua uk vn za
    nic:
    or: at id it jp kr th
    org: ae ar au br cn co ee eg es gr hk hu il in ir lv ma mx my ng nz pe ph pk pl pt ro rs sa se sg tr tw ua uk vn za
    sch:
"""
_SUFFIXES = frozenset(_ONE.split())
_COUNTRIES = {
    second.strip(): frozenset(countries.split())
    for second, _, countries in (line.partition(":") for line in _TWO.strip().splitlines())
}


def normal_url(url: str) -> tuple[str, str, str, str, str]:
    """(scheme, site without suffix and ``www.``, path, query, fragment); a missing scheme is ``http``."""
    split = urlsplit(url if re.match(r"^[a-zA-Z][a-zA-Z0-9+\-.]*://", url) else f"http://{url}")
    path = "" if split.path == "/" else split.path
    return split.scheme.lower(), _site((split.hostname or "").strip()), path, split.query, split.fragment


def same_url(left: str | None, right: str | None) -> bool:
    """Whether both URLs are of the same page."""
    if left is None or right is None:
        return left == right
    return normal_url(left) == normal_url(right)


def _site(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        labels = host.lower().rstrip(".").split(".")
    if len(labels) > 1:
        del labels[len(labels) - _suffix(labels) :]
    if len(labels) == 2 and labels[0] in ("", "www"):  # no other subdomain: "www.shop.a.com" is not "shop.a.com"
        del labels[0]
    return ".".join(labels)


def _suffix(labels: list[str]) -> int:
    """The number of labels that are the host's suffix, as far as it is known."""
    if len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _COUNTRIES:
        return 2 if labels[-1] in _COUNTRIES[labels[-2]] else 0
    return int(labels[-1] in _SUFFIXES)
