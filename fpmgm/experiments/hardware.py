"""Hardware by name: what its makers say of its rate and memory."""

import re
from dataclasses import dataclass

from fpmgm.names import choose

CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One device, as its maker describes it."""

    name: str
    bf16: float
    """Operations a second in bfloat16, dense, a multiply-add being two."""
    float32: float
    bytes: float
    """Memory; 0 if it is not known."""


TABLE: dict[str, Hardware] = {
    each.name: each
    for each in (
        Hardware(name="H200", bf16=989e12, float32=67e12, bytes=141e9),
        Hardware(name="H100", bf16=989e12, float32=67e12, bytes=80e9),
        Hardware(name="A100", bf16=312e12, float32=19.5e12, bytes=80e9),
        Hardware(name="A100-40GB", bf16=312e12, float32=19.5e12, bytes=40e9),
        Hardware(name="L40S", bf16=362e12, float32=91.6e12, bytes=48e9),
        Hardware(name="RTX4090", bf16=165e12, float32=82.6e12, bytes=24e9),
        Hardware(name=CPU, bf16=384e9, float32=192e9, bytes=0.0),
    )
}
"""Peak rates of data sheets. A core of a CPU is taken as 64 operations a cycle at 3 GHz, and in
bfloat16 as twice as many."""


def hardware_of(text: str) -> tuple[int, Hardware]:
    """The number of devices and what they are.

    >>> hardware_of("8xH200")[0], hardware_of("2xcpu")[1].name
    (8, 'cpu')
    """
    found = re.fullmatch(r"(?:([1-9][0-9]{0,5})x)?([A-Za-z].*)", text)
    if not found:
        raise ValueError(f"hardware is {text!r}; write a number and a device, as in 8xH200 or 2xcpu")
    by_name = {name.lower(): each for name, each in TABLE.items()}
    return int(found[1] or 1), choose("hardware", found[2].lower(), by_name)
