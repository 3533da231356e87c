"""Which GPUs a module has machine code for, read from its .nv_fatbin section: cuda_code.py MODULE ARCHITECTURE...

Fails unless every named architecture (90, 100, ...) is there as machine code and the last one as PTX too, so that
nothing is compiled when the module is loaded and later GPUs can still run it, and unless oh_backend_v1 is all that the
module exports: the CUDA runtime in it must not be taken for another's. cuobjdump would say the same, but belongs
to another package than nvcc.
"""
import struct
import subprocess
import sys
import tempfile

FATBIN_MAGIC = 0xBA55ED50
PTX, MACHINE_CODE = 1, 2


def section(module, name):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run(["objcopy", "-O", "binary", f"--only-section={name}", module, out.name], check=True)
        return out.read()


def entries(data):
    """(kind, architecture) of each entry. A fatbin is a 16-byte header (magic, version, header size, payload size) and
    entries, each with a header (kind, version, header size, payload size, ..., architecture at byte 28)."""
    at = 0
    while at + 16 <= len(data):
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != FATBIN_MAGIC:
            at += 8
            continue
        entry, end = at + header, at + header + size
        while entry < end:
            kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", data, entry)
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            yield kind, architecture
            entry += entry_header + entry_size
        at = end


def exports(module):
    listed = subprocess.run(["nm", "-D", "--defined-only", module], check=True, capture_output=True, text=True).stdout
    return [line.split()[-1] for line in listed.splitlines()]


def main(module, architectures):
    if exports(module) != ["oh_backend_v1"]:
        sys.exit(f"exports {exports(module)}, expected oh_backend_v1 alone")
    found = sorted(set(entries(section(module, ".nv_fatbin"))))
    wanted = [(MACHINE_CODE, architecture) for architecture in architectures] + [(PTX, architectures[-1])]
    print(f"{module}: {[('PTX ' if kind == PTX else 'sm_') + str(architecture) for kind, architecture in found]}")
    missing = [entry for entry in wanted if entry not in found]
    if missing:
        sys.exit(f"missing: {missing} (kind 1: PTX, 2: machine code)")


if __name__ == "__main__":
    main(sys.argv[1], [int(argument) for argument in sys.argv[2:]])
