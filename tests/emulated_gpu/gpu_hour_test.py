"""scripts/gpu_hour: its short form on the emulated GPU, and what it does with programs that fail, hang, crash or fall short, which are
played by scripts.

  gpu_hour_test.py BUILD_FOLDER
"""
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "scripts", "gpu_hour")
BUILD = ""

loader = importlib.machinery.SourceFileLoader("gpu_hour", SCRIPT)
sys.dont_write_bytecode = True
gpu_hour = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_hour", loader))
loader.exec_module(gpu_hour)


class GpuHour(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.out = os.path.join(folder.name, "out")

    def hour(self, *arguments, build=None):
        return subprocess.run([sys.executable, SCRIPT, "--out", self.out, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(os.environ, CP_GPU_BUILD=build or BUILD), universal_newlines=True)

    def state(self):
        with open(os.path.join(self.out, "state.json")) as file:
            return json.load(file)

    def read(self, name):
        with open(os.path.join(self.out, name)) as file:
            return file.read()

    def stands_in(self, **programs):
        """A build folder of scripts that stand for programs."""
        build = os.path.join(self.folder, "build")
        os.makedirs(os.path.join(build, "bin"))
        for name, text in programs.items():
            path = os.path.join(build, "bin", name)
            with open(path, "w") as file:
                file.write("#!/bin/sh\n" + text)
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return build

    def test_the_short_form_passes_on_the_emulated_gpu(self):
        ended = self.hour("--emulated", "--short")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        stages = self.state()["stages"]
        self.assertEqual(list(stages), [stage.name for stage in gpu_hour.STAGES])
        passed = {name for name, stage in stages.items() if stage["status"] == "passed"}
        self.assertLessEqual({"machine", "kernels", "fused", "identity", "profile", "device", "late"}, passed, ended.stdout)
        page = self.read("emulated-gpu.md")
        for stage in gpu_hour.STAGES:
            self.assertRegex(page, r"\n\| {} \| ".format(stage.name))
        for row in (r"\| GPU \| Emulated GPU \(sm_90\) \|", r"\| CUDA runtime \| \d+\.\d+ \|", r"\| NCCL \| \d+\.\d+\.\d+ \|",
                    r"\| cuDNN \| emulated \|", r"\| glibc \| \d\.\d+ \|", r"\| commit \| \S+ \|", r"Of the emulated GPU",
                    r"\| Ring/forward/\* \| not measured \| share at least 0\.92 \|", r"\| several machines, InfiniBand \|",
                    r"`emulated-gpu\.txtpb`, with .*14 of 14 points; cpsim plan reads it"):
            self.assertRegex(page, row)
        if os.path.exists(os.path.join(BUILD, "bin", "gpu_benchmark_emulated")):
            self.assertRegex(page, r"\| HostCost/idle/steps_to_a_stream:128 \| us/step [\d.e+]+ \| at most [\d.]+ \| not judged")
        preset = os.path.join(self.out, "emulated-gpu.txtpb")
        read = subprocess.run([os.path.join(BUILD, "bin", "cpsim"), "plan", "--model", "llama-3.1-8b", "--cluster", preset, "--software",
                               preset.replace(".txtpb", ".software.txtpb"), "--seq-len", "8192", "--global-batch", "8"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        self.assertEqual(read.returncode, 0, read.stdout)

        # Goes on at a stage: what is before it stays as it was, to the second.
        before = self.state()["stages"]
        ended = self.hour("--emulated", "--short", "--from", "late")
        self.assertEqual(ended.returncode, 0, ended.stdout)
        after = self.state()["stages"]
        self.assertEqual({name: before[name] for name in list(before)[:-2]}, {name: after[name] for name in list(after)[:-2]})
        self.assertNotIn("kernels", ended.stdout)
        self.assertIn("goes on with", self.hour("--emulated", "--from", "late", "--out", self.folder + "/none").stdout)

    def test_a_bundle_does_the_same(self):
        bundle = os.path.join(self.folder, "bundle")
        os.makedirs(os.path.join(bundle, "bin"))
        for name in ("cprun_emulated", "cpsim", "emulated_gpu_test", "late_rank_emulated"):
            os.symlink(os.path.join(BUILD, "bin", name), os.path.join(bundle, "bin", name))
        os.symlink(os.path.join(ROOT, "examples", "scenarios"), os.path.join(bundle, "scenarios"))
        shutil.copy(SCRIPT, os.path.join(bundle, "gpu_hour"))
        shutil.copy(os.path.join(ROOT, "scripts", "bundle_run"), os.path.join(bundle, "run"))
        os.chmod(os.path.join(bundle, "run"), 0o755)
        for name, text in (("commit", "0123456789ab"), ("needs", "glibc=2.28\ncuda=\n")):
            with open(os.path.join(bundle, name), "w") as file:
                file.write(text)
        ended = subprocess.run([os.path.join(bundle, "gpu_hour"), "--out", self.out, "--emulated", "--short"], cwd=self.folder,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
        self.assertEqual(ended.returncode, 0, ended.stdout)
        page = self.read("emulated-gpu.md")
        for row in (r"By `gpu_hour` of the bundle", r"\| commit \| 0123456789ab \|", r"cpsim plan reads it", r"\| late \| .* \| passed \|",
                    r"\| benchmarks and their targets \| not on the emulation \|"):
            self.assertRegex(page, row)

    def test_what_was_done_before_ctrl_c_is_kept(self):
        out = self.folder + "/said"
        with open(out, "w") as file:
            hour = subprocess.Popen([sys.executable, SCRIPT, "--out", self.out, "--emulated"], stdout=file, stderr=subprocess.STDOUT,
                                    env=dict(os.environ, CP_GPU_BUILD=BUILD))
        until = time.monotonic() + 120
        log = os.path.join(self.out, "kernels.log")
        while time.monotonic() < until and not (os.path.exists(log) and "[ RUN" in self.read("kernels.log")):
            time.sleep(0.02)
        hour.send_signal(signal.SIGINT)
        self.assertEqual(hour.wait(timeout=120), 130)
        with open(out) as file:
            said = file.read()
        self.assertIn("--from kernels", said)
        stages = self.state()["stages"]
        self.assertEqual((list(stages), stages["kernels"]["status"]), (["machine", "kernels"], "stopped"), said)
        self.assertIn("the run ended before it: gpu_hour --from fused", self.read("emulated-gpu.md"))

    def test_tests_that_fail_crash_and_hang_are_told_and_the_others_run(self):
        build = self.stands_in(cprun_emulated="echo no; exit 3\n", cpsim="exit 3\n", emulated_gpu_test=r"""
case "$*" in *--gtest_list_tests*) printf 'GpuA.\n  Good\n  Bad\n  Crash\n  Hang\n  Skips\n  Last\n'; exit ;; esac
filter=${*##*--gtest_filter=}
IFS=:
for name in $filter; do
  echo "[ RUN      ] $name"
  case $name in
    *Bad) printf 'a.cc:7: Failure\nExpected 1, is 2\n\n[  FAILED  ] %s (0 ms)\n' "$name" ;;
    *Crash) kill -SEGV $$ ;;
    *Hang) exec sleep 1000 ;;
    *Skips) printf 'a.cc:9: Skipped\nfor a reason\n\n[  SKIPPED ] %s (0 ms)\n' "$name" ;;
    *) echo "[       OK ] $name (0 ms)" ;;
  esac
done
""")
        ended = self.hour("--emulated", "--from", "kernels", build=build)
        self.assertIn("goes on with", ended.stdout)  # nothing to go on with
        ended = self.hour("--emulated", build=build)  # no GPU, so that nothing else runs
        self.assertEqual((ended.returncode, list(self.state()["stages"])), (1, ["machine"]), ended.stdout)
        ended = self.hour("--emulated", "--from", "kernels", "--test-seconds", "3", build=build)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        stage = self.state()["stages"]["kernels"]
        self.assertEqual(stage["status"], "FAILED")
        self.assertEqual(stage["passed"], 2, ended.stdout)  # Good and Last
        self.assertEqual(stage["skips"], [["GpuA.Skips", "for a reason"]])
        failures = dict(stage["failures"])
        self.assertEqual(list(failures), ["GpuA.Bad", "GpuA.Crash", "GpuA.Hang"])
        self.assertIn("Expected 1, is 2", failures["GpuA.Bad"])
        self.assertIn("killed by signal 11", failures["GpuA.Crash"])
        self.assertIn("had not ended after 3 s", failures["GpuA.Hang"])
        page = self.read("gpu.md")
        self.assertRegex(page, r"\| kernels \| GpuA.Hang \| had not ended")
        self.assertRegex(page, r"\| profile \| .* \| \*\*failed\*\* \|")  # and the run went on to it

    def test_scenarios_of_copy_engines_run_where_each_rank_has_a_gpu(self):
        class Options:
            out, emulated, minutes, short = self.out, False, 25, False
        build = self.stands_in(cprun="echo identical: 4 ranks\n")
        os.makedirs(self.out)
        name = "cprun --verify copy_engines.txtpb"
        with mock.patch.dict(os.environ, CP_GPU_BUILD=build):
            for gpus, skips in ((3, [(name, "copy engines need a GPU for each of 4 ranks, and here are 3")]), (4, [])):
                hour, result = gpu_hour.Hour(Options), gpu_hour.Result()
                hour.stage, hour.limit, hour.state["machine"] = gpu_hour.STAGES[3], time.monotonic() + 1000, {"gpus": ["H100"] * gpus}
                hour.identity(result)
                self.assertEqual((result.failures, result.left_out, result.skips), ([], 0, skips))
                self.assertEqual(result.passed, len(hour.scenarios()) - len(skips))
        own = [line for line in self.read("identity.log").splitlines() if line.startswith("$") and "--allow-shared-gpu" not in line]
        self.assertEqual([os.path.basename(line) for line in own], ["copy_engines.txtpb"])

    def test_a_missing_cpsim_is_no_missing_gpu(self):
        build = self.stands_in(cprun_emulated="exit 0\n", emulated_gpu_test="exit 0\n")
        ended = self.hour("--emulated", "--short", build=build)
        self.assertEqual(ended.returncode, 1, ended.stdout)
        self.assertNotIn("there is no GPU", ended.stdout)
        self.assertRegex(ended.stdout, r"cpsim: it cannot say of which GPU the trace is: .*No such file")
        self.assertIn("kernels", self.state()["stages"])

    def test_a_stage_ends_at_its_limit_and_what_has_no_time_is_told(self):
        build = self.stands_in(
            cprun="exit 0\n", cpsim="echo 'rank 0: vm, cpsim 0.1.0, cuda 13.0, cudnn 9.1, gpu NVIDIA H100 (sm_90), nccl 2.3.4, scenario 1'\n",
            gpu_benchmark="exit 0\n", gpu_test="""
case "$*" in *--gtest_list_tests*) printf 'GpuA.\n  One\n  Two\n'; exit ;; esac
trap '' INT  # as a program does that is stuck in the driver
echo '[ RUN      ] GpuA.One'
while :; do sleep 1; done
""")
        begun = time.monotonic()
        ended = self.hour("--minutes", "0.25", build=build)
        self.assertGreater(time.monotonic() - begun, 8)
        self.assertEqual(ended.returncode, 0, ended.stdout)  # nothing failed, and little ran
        stages = self.state()["stages"]
        self.assertEqual(list(stages), [stage.name for stage in gpu_hour.STAGES])
        self.assertEqual((stages["machine"]["status"], stages["kernels"]["status"]), ("passed", "not run"), ended.stdout)
        self.assertEqual((stages["kernels"]["left_out"], stages["kernels"]["notes"]), (2, ["its time was over in GpuA.One"]))
        for name in list(stages)[2:]:
            self.assertEqual(stages[name]["why_left"], "no time was left of 0.25 minutes", name)
        page = self.read("h100.md")
        for row in (r"\| GPU \| NVIDIA H100 \(sm_90\) \|", r"\| cuDNN \| 9\.1 \|", r"\| profile \| .* \| not run \| no time was left",
                    r"\| Attention/\* \| not measured \| share at least 0\.98 \|"):
            self.assertRegex(page, row)

    def test_what_is_below_its_target_is_told(self):
        class Options:
            out, emulated, minutes = self.out, False, 25
        hour, result = gpu_hour.Hour(Options), gpu_hour.Result()
        for row in ({"name": "Attention/forward/causal/4k/16x16/iterations:21/manual_time", "share": 0.985, "ours_us": 101.0},
                    {"name": "Ring/backward/head_tail/iterations:21/manual_time", "share": 0.899},
                    {"name": "Ring/forward/head_tail/iterations:21/manual_time", "share": 0.9199},
                    {"name": "Moves/cast/64MiB/iterations:21/manual_time", "share": 0.85},
                    {"name": "Moves/cast/256MiB/iterations:21/manual_time", "share": 0.1},
                    {"name": "HostCost/busy/steps_to_a_stream:1/iterations:200/manual_time", "us/step": 5.01},
                    {"name": "Moves/pack/64MiB", "error_occurred": True, "error_message": "out of memory"}):
            hour.judge(result, row)
        self.assertEqual([figure["holds"] for figure in result.figures], [True, False, False, True, None, False])
        self.assertEqual((result.below, result.passed, result.failures), (3, 6, [("Moves/pack/64MiB", "out of memory")]))
        stage = gpu_hour.STAGES[4]
        made = result.as_json(stage, 1, False)
        made["failures"] = []
        page = gpu_hour.page_of({"emulated": False, "stages": {"benchmarks": made}})
        self.assertIn("| Ring/backward/head_tail | share 0.899 | at least 0.9 | **no** |  |", page)
        self.assertIn("| Attention/forward/causal/4k/16x16 | share 0.985 | at least 0.98 | yes | ours_us 101 |", page)
        self.assertIn("| Moves/cast/256MiB | share 0.1 | - | no target |  |", page)

    def test_targets_are_those_of_the_benchmarks(self):
        path = os.path.join(ROOT, "benchmarks", "gpu", "targets.cc")
        if not os.path.exists(path):
            self.skipTest("gpu_benchmark has no targets of its own")
        with open(path) as file:
            found = re.findall(r'\{"([^"]+)", "([^"]*)", "([^"]+)", Kind::at_(least|most), ([\d.]+)\}', file.read())
        self.assertEqual(sorted((begin, end, counter, "at " + sense, float(limit)) for begin, end, counter, sense, limit in found),
                         sorted(tuple(target) for target in gpu_hour.TARGETS))

    def test_benchmarks_that_were_ended_keep_their_whole_lines(self):
        path = os.path.join(self.folder, "b.json")
        whole = {"context": {"caches": [{"type": "Data"}]}, "benchmarks": [{"name": "a", "share": 1}, {"name": "b", "share": 2}]}
        text = json.dumps(whole, indent=2)
        for length, names in ((len(text), ["a", "b"]), (text.rindex("share"), ["a"]), (text.index('"a"'), []), (0, [])):
            with open(path, "w") as file:
                file.write(text[:length])
            self.assertEqual([row["name"] for row in gpu_hour.benchmark_rows(path)], names)
        self.assertEqual(gpu_hour.benchmark_rows(path + ".none"), [])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: gpu_hour_test.py BUILD_FOLDER [TEST...]")
    BUILD = os.path.abspath(sys.argv.pop(1))
    unittest.main()
