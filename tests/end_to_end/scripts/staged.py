"""A rank that says what it finds of a staged file: its digest, where it is, and who looked; then it waits to be ended."""

import hashlib
import os
import sys
import time
from pathlib import Path

file = Path(os.environ["HOLDFAST_STAGED"]) / "data/train/one"
said = Path(sys.argv[1]) / f"saw-{os.environ['HOLDFAST_GENERATION']}-{os.environ['RANK']}"
part = said.with_name(f"part-{os.environ['RANK']}")
part.write_text(f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file} {os.getpid()}")
part.rename(said)
time.sleep(600)
