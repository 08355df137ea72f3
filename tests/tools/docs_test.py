#!/usr/bin/env python3
"""Holds the pages of docs/ and the README to the headers: what they name must exist.

- `accelerator.NAME` is declared in hasten/train/accelerator.h.
- `ROOM::NAME`, for a room of hasten, is declared in a public header of that room.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = ROOT / "include" / "hasten"


def declared(text, name):
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def main():
    accelerator = (INCLUDE / "train" / "accelerator.h").read_text()
    rooms = {path.name: "\n".join(header.read_text() for header in path.glob("*.h")) for path in INCLUDE.iterdir()
             if path.is_dir()}
    rooms["environment"] = rooms["base"]
    faults = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text()
        for name in set(re.findall(r"\baccelerator\.(\w+)", text)):
            if not declared(accelerator, name):
                faults.append(f"{page.name}: accelerator.{name} is not declared in hasten/train/accelerator.h")
        for room, name in set(re.findall(r"(?<![\w:])(?:hasten::)?(\w+)::(\w+)", text)):
            if room in rooms and not declared(rooms[room], name):
                faults.append(f"{page.name}: {room}::{name} is in no public header of that room")
    print("\n".join(faults) or "docs: every name exists")
    sys.exit(1 if faults else 0)


main()
