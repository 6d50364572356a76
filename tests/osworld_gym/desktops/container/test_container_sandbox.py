"""No program in a container reaches this machine, another desktop, or what belongs to our processes beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sandbox_checks import attack, check_report, check_works, host_servers

from osworld_gym.desktops.container.desktop import PORTS, ContainerDesktop

pytest_plugins = ("docker_engine",)
pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]


@pytest.fixture
def desktop(image: str) -> Iterator[ContainerDesktop]:
    with ContainerDesktop(640, 480, image=image) as made:
        made.reset(0)
        yield made


def test_an_attack_gets_nothing(desktop: ContainerDesktop, image: str) -> None:
    with ContainerDesktop(640, 480, image=image) as other:
        other.reset(0)
        ports = [other.forwarded(port) for port in PORTS]
        with host_servers(*[address for address in ports if address is not None]) as host:
            report = attack(desktop, host)
            check_report(report, host, ours=3)  # process 1, the guest, and the Python that forks
        check_works(other)
    check_works(desktop)
