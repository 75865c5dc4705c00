#!/bin/sh
# Applies mods in a running container three times, as its start-up does: for the first time, after a restart, and one
# whose anchor is wrong. The files must be what the first time left.
set -u

apply() { python3 -m images.shipped.mods.at_start /mods "$@"; }

apply mark
echo "first: $?"
python3 - <<'END'
import hashlib, json, pathlib, sysconfig
site = pathlib.Path(sysconfig.get_path("purelib"))
files = [site / "vllm/version.py", pathlib.Path("/usr/share/imagefactory/mods.json"), *site.glob("vllm*.dist-info/RECORD")]
pathlib.Path("/tmp/before").write_text(json.dumps({str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}))
END
apply mark
echo "restart: $?"
apply mark wrong
echo "wrong: $?"
python3 - <<'END'
import base64, csv, hashlib, json, pathlib, sysconfig
before = json.loads(pathlib.Path("/tmp/before").read_text())
assert len(before) >= 3, before
for file, digest in before.items():
    assert hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest() == digest, file
site = pathlib.Path(sysconfig.get_path("purelib"))
source = (site / "vllm/version.py").read_text()
print(next(line for line in source.splitlines() if line.startswith("MARK")).partition("'")[2].rstrip("'"))
[row] = [
    row
    for record in site.glob("vllm*.dist-info/RECORD")
    for row in csv.reader(record.open(newline=""))
    if row[0] == "vllm/version.py"
]
digest = base64.urlsafe_b64encode(hashlib.sha256(source.encode()).digest()).decode().rstrip("=")
print("records:", row == ["vllm/version.py", f"sha256={digest}", str(len(source.encode()))])
END
