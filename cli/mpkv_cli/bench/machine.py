"""What the figures were measured on."""

import importlib.metadata
import os
import platform
from datetime import UTC, datetime
from typing import Any

import psutil
import zmq

from mpkv_cli.vllm_dist import vllm_version


def describe_machine() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "virtual": _hypervisor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "vllm": vllm_version() or "none",
        "nixl": _version("nixl"),
        "zeromq": zmq.zmq_version(),
        "load_before": round(os.getloadavg()[0], 2),
        # Known when the measuring is over; see Stolen.
        "stolen_share": 0.0,
    }


class Stolen:
    """How much of its time a virtual machine did not get, from construction on."""

    def __init__(self) -> None:
        self._before = psutil.cpu_times()

    def share(self) -> float:
        now = psutil.cpu_times()
        spent: float = sum(now) - sum(self._before)
        stolen: float = now.steal - self._before.steal
        return stolen / max(spent, 0.01)


def machine_line(machine: dict[str, Any]) -> str:
    kind = "virtual machine" if machine["virtual"] else "machine"
    return (
        f"{kind}: {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_bytes'] / (1 << 30):.0f} GiB, Linux {machine['kernel']}, "
        f"Python {machine['python']}, vLLM {machine['vllm']}, NIXL {machine['nixl']}, "
        f"ZeroMQ {machine['zeromq']}; {machine['transport']}; "
        f"load {machine['load_before']} before, "
        f"{machine['stolen_share']:.1%} of its time stolen meanwhile"
    )


def _cpu_model() -> str:
    found: dict[str, str] = {}
    with open("/proc/cpuinfo") as file:
        for line in file:
            name, _, value = line.partition(":")
            found.setdefault(name.strip(), value.strip())
    model = found.get("model name") or found.get("Processor") or platform.machine()
    # Virtual machines often hide the model's name behind a family and a number.
    speed = f" at {float(found['cpu MHz']) / 1000:.1f} GHz" if "cpu MHz" in found else ""
    return model + speed


def _hypervisor() -> bool:
    with open("/proc/cpuinfo") as file:
        return any(line.startswith("flags") and " hypervisor" in line for line in file)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"
