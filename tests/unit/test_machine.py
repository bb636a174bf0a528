"""Which of a machine's devices become slots; the driver's tool is a script that says what it would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from geminid.fields import InvalidInput
from geminid.node.machine import chosen_devices, machine, slot_environment

THREE = [
    ("0", "GPU-aaaa-1", "Disabled", "NVIDIA H200"),
    ("1", "GPU-bbbb-2", "[N/A]", "NVIDIA L4"),
    ("2", "GPU-aacc-3", "Disabled", "NVIDIA H200"),
]


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Have nvidia-smi list these devices."""

    def say(rows, *, knows_mig: bool = True) -> None:
        tool = Path(tmp_path, "nvidia-smi")
        old = "" if knows_mig else 'case "$1" in *mig*) exit 2;; esac\n'
        kept = rows if knows_mig else [(row[0], row[1], row[0], row[3]) for row in rows]
        tool.write_text(f"#!/bin/sh\n{old}cat <<EOF\n" + "".join(", ".join(row) + "\n" for row in kept) + "EOF\n")
        tool.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return say


def nodes(cluster):
    return [(node.name, node.gpu_type, node.slots) for node in cluster.nodes]


@pytest.mark.parametrize(
    ("visible", "wanted", "expected"),
    [
        (None, None, ["0", "2", "1"]),
        ("1", None, ["1"]),
        ("2,0", None, ["2", "0"]),
        ("GPU-bbbb-2, GPU-aac", None, ["1", "2"]),
        ("", None, []),
        ("-1", None, []),
        ("0,-1,2", None, ["0"]),
        ("1", "0,2", ["0", "2"]),
    ],
)
def test_the_devices_that_are_visible_or_wanted_are_used(nvidia_smi, monkeypatch, visible, wanted, expected):
    nvidia_smi(THREE)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [device.index for device in chosen_devices(wanted)] == expected


def test_each_type_is_a_node(nvidia_smi):
    nvidia_smi(THREE)
    assert nodes(machine(None, chosen_devices())) == [("local-h200", "h200", 2), ("local-l4", "l4", 1)]
    assert nodes(machine(None, chosen_devices("2,0"))) == [("local", "h200", 2)]
    assert [node.gpu_type for node in machine(3, []).nodes] == ["cpu"]


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("3", r"devices is '3', but must name a device that is here, by its number \(0, 1, 2\) or its UUID"),
        ("GPU-aa", "must name a device that is here"),
        ("0,0", "must name a device once"),
        ("MIG-1234", "must be a whole device: MIG instances are no slots"),
    ],
)
def test_devices_that_cannot_be_used_are_refused(nvidia_smi, wanted, told):
    nvidia_smi(THREE)
    with pytest.raises(InvalidInput, match=told):
        chosen_devices(wanted)


def test_a_divided_device_is_refused_unless_it_is_left_out(nvidia_smi):
    nvidia_smi([("0", "GPU-a", "Enabled", "NVIDIA A100"), ("1", "GPU-b", "Disabled", "NVIDIA A100")])
    with pytest.raises(InvalidInput, match="devices is '0', but must be left out with --devices, or MIG turned off"):
        chosen_devices()
    assert [device.index for device in chosen_devices("1")] == ["1"]


def test_a_tool_that_knows_no_mig_is_asked_again(nvidia_smi):
    nvidia_smi(THREE, knows_mig=False)
    assert [device.name for device in chosen_devices()] == ["NVIDIA H200", "NVIDIA H200", "NVIDIA L4"]


def test_without_devices_none_can_be_wanted(nvidia_smi):
    nvidia_smi([])
    assert chosen_devices() == []
    with pytest.raises(InvalidInput, match="nvidia-smi finds no CUDA devices"):
        chosen_devices("0")


def test_a_process_sees_its_devices_in_the_order_of_the_bus():
    assert slot_environment([0, 2], ["4", "5", "7"]) == {
        "CUDA_VISIBLE_DEVICES": "4,7",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GEMINID_SLOTS": "0,2",
    }
    assert slot_environment([0, 1]) == {"CUDA_VISIBLE_DEVICES": "", "GEMINID_SLOTS": "0,1"}
