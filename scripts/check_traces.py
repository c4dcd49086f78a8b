#!/usr/bin/env python3
"""Opens what `cpsim estimate --trace` writes with the tools that people use.

    scripts/check_traces.py [CPSIM]        [build/release/bin/cpsim]

Needs packages from PyPI, and says which one is missing: HolisticTraceAnalysis reads ranks, communication kernels and their
overlap; perfetto has Perfetto's whole trace format, against which our subset of it is checked. Fails (1) where a tool reads
something else than cpsim wrote.
"""

import contextlib
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile

SCENARIO = (
    "--cluster a800 --mesh cp=16 --strategy ring --balance none --seq-len 65536 --q-heads 32 --kv-heads 32 "
    "--head-dim 128 --dtype bf16 --causal --pass both --software ring-flash-attention"
)
RANKS = 16
FAILURES = []
CHECKS = 0


def expect(holds, what):
    global CHECKS
    CHECKS += 1
    print("  ", "ok  " if holds else "FAIL", what)
    if not holds:
        FAILURES.append(what)


def kernels_of(file):
    """Slices of streams: kernels in a folder's files, compute and communication in the file of all ranks."""
    categories = ("kernel", "compute", "communication")
    return [event for event in json.loads(file.read_text())["traceEvents"] if event.get("cat") in categories]


def check_holistic_trace_analysis(folder):
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # it would cut kernels to whole microseconds
    try:
        from hta.trace_analysis import TraceAnalysis
    except ImportError:
        print("HolisticTraceAnalysis is not installed: not checked")
        return
    print("HolisticTraceAnalysis")
    logging.disable(logging.WARNING)
    with contextlib.redirect_stderr(open(os.devnull, "w")):
        analysis = TraceAnalysis(trace_dir=str(folder))
        types, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, duration_ratio=1.0, num_kernels=100)
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        temporal = analysis.get_temporal_breakdown(visualize=False)
    print(types.to_string(), overlap.to_string(), temporal.to_string(), sep="\n")
    expect(sorted(analysis.t.traces) == list(range(RANKS)), f"reads ranks 0 to {RANKS - 1}")
    for rank in range(RANKS):
        ours = kernels_of(folder / f"rank_{rank}.json")
        for kind, is_communication in (("COMMUNICATION", True), ("COMPUTATION", False)):
            written = sum(k["dur"] for k in ours if k["name"].startswith("ncclDevKernel") == is_communication)
            read = kernels[(kernels["rank"] == rank) & (kernels["kernel_type"] == kind)]["sum (us)"].sum()
            if abs(read - written) > 1e-3 * len(ours):
                expect(False, f"rank {rank}: {kind} {read} us, written were {written} us")
    expect(not FAILURES, "each rank's kernels are communication or computation for as long as was written")
    frame = analysis.t.traces[0]
    launched = frame[frame["stream"] > 0]
    expect((launched["index_correlation"] > 0).all(), "finds the launch of every kernel")
    expect((launched["iteration"] == 0).all(), "every kernel belongs to ProfilerStep#0")


def unknown_fields(message):
    from google.protobuf.unknown_fields import UnknownFieldSet

    count = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is not None:
            parts = [value] if hasattr(value, "ListFields") else value
            count += sum(unknown_fields(part) for part in parts)
    return count


def check_perfetto(file, chrome):
    try:
        from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
    except ImportError:
        print("perfetto is not installed: not checked")
        return
    print("perfetto")
    trace = Trace()
    trace.ParseFromString(file.read_bytes())
    print("  ", len(trace.packet), "packets,", file.stat().st_size, "bytes")
    expect(sum(unknown_fields(packet) for packet in trace.packet) == 0, "every field is one of Perfetto's")
    tracks, open_slices, slices = {}, {}, []
    for packet in trace.packet:
        if packet.HasField("track_descriptor"):
            thread = packet.track_descriptor.thread
            tracks[packet.track_descriptor.uuid] = (thread.pid, thread.tid)
        event = packet.track_event
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_slices[event.track_uuid] = (event.name, packet.timestamp)
        elif event.type == TrackEvent.TYPE_SLICE_END:
            name, begin = open_slices.pop(event.track_uuid)
            slices.append((*tracks[event.track_uuid], name, begin, packet.timestamp - begin))
    written = [
        (k["pid"], k["tid"], k["name"], round(k["ts"] * 1e3), round(k["dur"] * 1e3)) for k in kernels_of(chrome)
    ]
    expect(not open_slices and sorted(slices) == sorted(written), f"the same {len(written)} slices as Chrome's file")


def main():
    cpsim = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin/cpsim"
    with tempfile.TemporaryDirectory() as folder:
        files = [pathlib.Path(folder) / name for name in ("ranks", "all.json", "all.pftrace")]
        for file in files:
            name = f"{file}/" if file.name == "ranks" else str(file)
            subprocess.run([cpsim, "estimate", *SCENARIO.split(), "--trace", name], check=True, stdout=subprocess.DEVNULL)
        check_holistic_trace_analysis(files[0])
        check_perfetto(files[2], files[1])
    print(f"traces: {len(FAILURES)} of {CHECKS} checks failed" if FAILURES else f"traces: {CHECKS} checks hold")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
