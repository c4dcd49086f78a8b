"""scripts/bundle_glibc, scripts/bundle_run and scripts/bundle_prove: what a bundle needs of the C library and of NVIDIA's, and what it says
of a machine.

  bundle_test.py BUILD_FOLDER
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BIND = os.path.join(ROOT, "scripts", "bundle_glibc")
LIMIT = "2.28"
BUILD = ""

# Constructors, exceptions, threads, waits by both clocks, functions that newer versions of glibc have anew, random bits, names of signals,
# sizes and folders of files.
PROGRAM = r"""
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <sys/stat.h>

static const std::string made = std::string("made") + " before main";
struct Late { ~Late() { std::puts("and undone"); } };
static Late late;
__attribute__((constructor)) static void first() { std::puts("first"); }

int main(int argc, char** argv) {
  std::cout << made << ", " << argc << " arguments" << std::endl;
  try {
    std::thread([] {
      try { throw std::runtime_error("of a thread"); } catch (const std::exception& error) { std::cout << error.what() << std::endl; }
    }).join();
    std::stoi(argv[1]);
  } catch (const std::invalid_argument&) {
    std::cout << "caught" << std::endl;
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::unique_lock lock(mutex);
  const auto begin = std::chrono::steady_clock::now();
  const bool timed_out = changed.wait_for(lock, std::chrono::milliseconds(50)) == std::cv_status::timeout;
  const auto waited = std::chrono::steady_clock::now() - begin;
  bool done = false;
  std::thread other([&] { std::lock_guard guard(mutex); done = true; changed.notify_all(); });
  const bool seen = changed.wait_for(lock, std::chrono::minutes(10), [&] { return done; });
  lock.unlock();
  other.join();
  std::cout << (timed_out && waited >= std::chrono::milliseconds(40) && seen ? "waited" : "did not wait") << std::endl;
  const double x = argc + 1;
  std::cout << std::pow(x, 10) << " " << std::log2(x) << " " << std::exp(x - 2) << " " << std::log(x - 1) << " "
            << std::hypot(x + 1, x + 2) << std::endl;
  std::random_device random;
  const auto a = random(), b = random(), c = random();
  std::cout << (a == b && b == c ? "not random" : "random") << std::endl;
  struct stat status;
  std::cout << stat(argv[0], &status) << " " << (std::filesystem::file_size(argv[0]) == static_cast<std::uintmax_t>(status.st_size)) << " "
            << stat("/nowhere", &status) << " " << std::strerror(errno) << std::endl;
  std::cout << (std::filesystem::directory_iterator("/") != std::filesystem::directory_iterator()) << " " << sigabbrev_np(11) << std::endl;
}
"""
SAYS = "\n".join(["first", "made before main, 2 arguments", "of a thread", "caught", "waited", "59049 1.58496 2.71828 0.693147 6.40312",
                  "random", "0 1 -1 No such file or directory", "1 SEGV", "and undone", ""])


def command(*argv, **options):
    return subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True, **options)


def newest_by_objdump(path):
    """What another program says of the versions in the file: (2, 34)."""
    lines = command("objdump", "-T", path).stdout + command("readelf", "-V", path).stdout
    return max((tuple(int(part) for part in found.split(".")) for found in re.findall(r"GLIBC_(\d+(?:\.\d+)+)", lines)), default=(0,))


class Bundle(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("bin", "lib"):
            os.mkdir(os.path.join(self.folder, name))

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def compile(self, name, text, *flags):
        source = self.path(name + ".cc")
        with open(source, "w") as file:
            file.write(text)
        made = command("g++", "-std=c++20", "-O2", "-pthread", source, "-o", self.path("bin", name), *flags)
        self.assertEqual(made.returncode, 0, made.stdout)
        return self.path("bin", name)

    def libraries_of(self, program):
        """Its libraries but for the C library's and NVIDIA's beside it, as scripts/bundle does it."""
        for name, path in re.findall(r"(\S+) => (/\S+)", command("ldd", program).stdout):
            if not re.match(r"^(ld-linux.*|lib(c|m|mvec|dl|rt|pthread|resolv|util|anl)|lib(cuda|nvidia|nccl).*)\.so", name):
                to = self.path("lib", name)
                shutil.copyfile(path, to)
                subprocess.run(["patchelf", "--force-rpath", "--set-rpath", "$ORIGIN", to], check=True)
        subprocess.run(["patchelf", "--force-rpath", "--set-rpath", "$ORIGIN/../lib", program], check=True)

    def bind(self, *programs, **environment):
        libraries = [self.path("lib", name) for name in sorted(os.listdir(self.path("lib")))]
        return command(BIND, LIMIT, self.path("lib", "libcp_glibc.so"), *programs, *libraries, env=dict(os.environ, **environment))

    def expect_old_enough(self, *programs):
        files = list(programs) + [self.path("lib", name) for name in os.listdir(self.path("lib"))]
        for path in files:
            self.assertLessEqual(newest_by_objdump(path), (2, 28), path)
        checked = command(BIND, "--check", LIMIT, *files)
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_a_program_does_the_same_bound_to_an_older_c_library(self):
        # Also with what stands in for functions that the machine's C library has.
        for flags in ("", "-DCP_NONE_OF_THE_SYSTEM"):
            shutil.rmtree(self.path("lib"))
            os.mkdir(self.path("lib"))
            program = self.compile("all_of_it", PROGRAM)
            self.assertEqual(command(program, "none").stdout, SAYS)
            self.libraries_of(program)
            bound = self.bind(program, CFLAGS=flags)
            self.assertEqual(bound.returncode, 0, bound.stdout)
            self.expect_old_enough(program)
            ran = command(program, "none", env=dict(os.environ, LD_BIND_NOW="1"))
            self.assertEqual((ran.returncode, ran.stdout), (0, SAYS), flags)

    def test_what_the_older_c_library_has_not_is_named(self):
        program = self.compile("closes", '#include <unistd.h>\nint main() { closefrom(100); }\n')  # since 2.34
        if newest_by_objdump(program) <= (2, 28):
            self.skipTest("this machine's C library is an old one")
        checked = command(BIND, "--check", LIMIT, program)
        self.assertEqual(checked.returncode, 1)
        self.assertRegex(checked.stdout, r"closes needs GLIBC_2\.34, which is newer than 2\.28: .*closefrom")
        bound = self.bind(program)
        self.assertNotEqual(bound.returncode, 0)
        self.assertRegex(bound.stdout, r"closes needs closefrom of GLIBC_2\.34, and glibc 2\.28 has none")

    def test_cpsim_and_cprun_run_bound_to_an_older_c_library(self):
        programs = []
        for name in ("cpsim", "cprun"):
            if os.path.exists(os.path.join(BUILD, "bin", name)):
                shutil.copy(os.path.join(BUILD, "bin", name), self.path("bin", name))
                programs.append(self.path("bin", name))
        for program in programs:
            self.libraries_of(program)
        bound = self.bind(*programs)
        self.assertEqual(bound.returncode, 0, bound.stdout)
        self.expect_old_enough(*programs)
        scenario = os.path.join(ROOT, "examples", "scenarios", "redistribute.txtpb")
        for program in programs:
            what = ["redistribute", "--scenario", scenario] if program.endswith("cpsim") else ["--verify", scenario]
            ran = command(program, *what, env=dict(os.environ, LD_BIND_NOW="1", OPENBLAS_NUM_THREADS="1"))
            self.assertEqual(ran.returncode, 0, ran.stdout)
        refused = command(programs[0], "run", "--nope")  # by an exception
        self.assertEqual(refused.returncode, 2, refused.stdout)

    # What scripts/bundle_prove reads in a bundle, before it runs it.

    def shared_library(self, name, text="int f(void) { return 3; }\n"):
        with open(self.path("f.c"), "w") as file:
            file.write(text)
        subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname," + name, self.path("f.c"), "-o", self.path(name)], check=True)
        return self.path(name)

    def prove(self, program, *flags):
        self.bundle("glibc=2.28\ncuda=12\n", "cprun", program, *flags)
        return command(os.path.join(ROOT, "scripts", "bundle_prove"), self.folder, self.folder)

    def test_what_a_bundle_must_not_need_is_named(self):
        linked = ["-Wl,--no-as-needed", self.shared_library("libcudart.so.12"), self.shared_library("libnccl.so.2")]
        ran = self.prove("#include <unistd.h>\nint main() { closefrom(100); }\n", *linked)
        if newest_by_objdump(self.path("bin", "cprun")) > (2, 28):
            self.assertEqual(ran.returncode, 1, ran.stdout)
            self.assertRegex(ran.stdout, r"\ncprun +2\.34 +.*libcudart\.so\.12 libnccl\.so\.2")
            self.assertIn("cprun needs glibc 2.34, and the bundle is for 2.28", ran.stdout)
        ran = self.prove("int main() {}\n", *linked, self.shared_library("libother.so.1"))
        self.assertEqual(ran.returncode, 1, ran.stdout)
        self.assertIn("cprun needs libother.so.1, which is neither in the bundle nor glibc's nor NVIDIA's", ran.stdout)

    def test_a_bundle_of_another_cuda_is_told(self):
        text = '#include <cstdio>\nint main() { std::puts("libcublas.so.13 libcudnn.so.9"); }\n'
        ran = self.prove(text, "-Wl,--no-as-needed", self.shared_library("libcudart.so.13"))
        self.assertEqual(ran.returncode, 1, ran.stdout)
        self.assertIn("cprun is linked with libcudart.so.13 and opens libcublas.so.13, libcudnn.so.9 when first needed", ran.stdout)
        self.assertIn("cprun is not linked with libcudart.so.12", ran.stdout)
        self.assertIn("cprun is not linked with libnccl.so.2", ran.stdout)
        self.assertIn("cprun opens libcublas.so.13, of another CUDA", ran.stdout)

    def test_options_of_the_bundle(self):
        script = os.path.join(ROOT, "scripts", "bundle")
        for wrong in (["--cuda"], ["--cuda", "11"], ["--nope"], ["one", "two"]):
            ran = command(script, *wrong)
            self.assertEqual((ran.returncode, ran.stdout), (2, "usage: scripts/bundle [--cuda 12|13] [--prove] [FOLDER]\n"), wrong)
        ran = command(script, "--cuda", "12", self.path("made"), env=dict(os.environ, CP_CUDA12="/nowhere", CP_BUNDLE_BUILD=self.path("none")))
        self.assertEqual(ran.returncode, 1)
        self.assertIn("none is no build folder", ran.stdout)

    # What `run` says of a machine.

    def bundle(self, needs, name="cprun", text="int main() { return 7; }\n", *flags):
        program = self.compile(name, text, *flags)
        shutil.copy(os.path.join(ROOT, "scripts", "bundle_run"), self.path("run"))
        os.chmod(self.path("run"), 0o755)
        with open(self.path("needs"), "w") as file:
            file.write(needs)
        return program

    def run_it(self, *arguments, driver=""):
        with open(self.path("driver"), "w") as file:
            file.write(driver)
        return command(self.path("run"), *arguments, env=dict(os.environ, CP_DRIVER_VERSION_FILE=self.path("driver"), PYTHON="/bin/false"))

    def test_an_old_c_library_is_told_with_what_helps(self):
        self.bundle("glibc=9.9\ncuda=\n")
        ran = self.run_it("cprun")
        self.assertEqual(ran.returncode, 127)
        self.assertRegex(ran.stdout, r"C library is glibc \d+\.\d+, and this bundle needs 9\.9; run it in a container")
        self.assertRegex(self.run_it("check").stdout, r"MISSING: run it in a container of a system with glibc 9\.9")
        self.bundle("glibc=2.4\ncuda=\n")
        self.assertEqual(self.run_it("cprun").returncode, 7)
        checked = self.run_it("check")
        self.assertEqual((checked.returncode, checked.stdout.splitlines()[-1]), (0, "run: all is there"))

    def test_what_the_loader_refuses_is_shown(self):
        # A library with the version that the program needs, in whose place one comes that has it not.
        for version in ("NEW_2", "OLD_1"):
            with open(self.path(version + ".map"), "w") as file:
                file.write(version + " { global: f; };\n")
            with open(self.path("f.c"), "w") as file:
                file.write("int f(void) { return 3; }\n")
            folder = self.path(version)
            os.mkdir(folder)
            subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libf.so.1", "-Wl,--version-script=" + self.path(version + ".map"),
                            self.path("f.c"), "-o", os.path.join(folder, "libf.so.1")], check=True)
        self.bundle("glibc=2.4\ncuda=\n", "cprun", 'extern "C" int f(); int main() { return f(); }\n', self.path("NEW_2", "libf.so.1"),
                    "-Wl,-rpath," + self.path("lib"))
        missing = self.run_it("cprun")
        self.assertEqual(missing.returncode, 127)
        self.assertIn("run: not found: libf.so.1; install", missing.stdout)
        shutil.copy(self.path("OLD_1", "libf.so.1"), self.path("lib"))
        refused = self.run_it("cprun")
        self.assertEqual(refused.returncode, 127, refused.stdout)
        self.assertRegex(refused.stdout, r"the loader refuses cprun:\n.*version `NEW_2' not found \(required by")
        self.assertRegex(self.run_it("check").stdout, r"MISSING: the loader says: .*NEW_2")
        shutil.copy(self.path("NEW_2", "libf.so.1"), self.path("lib"))
        self.assertEqual(self.run_it("cprun").returncode, 3)

    def test_the_driver_is_told_and_what_an_old_one_needs(self):
        self.bundle("glibc=2.4\ncuda=13\n")
        old = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc version 12.2.0\n"
        new = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)  Tue Sep\n"
        told = self.run_it("check", driver=old).stdout
        self.assertRegex(told, r"\ndriver +550\.54\.15")
        if "newer user part" not in told:
            self.assertRegex(told, r"MISSING: CUDA 13 needs driver 580; install the driver 580 or later; or, .*cuda-compat-13-0")
            ran = self.run_it("cprun", driver=old)
            self.assertEqual(ran.returncode, 7)  # on CPUs it may run
            self.assertIn("the driver is 550.54.15, and CUDA 13 needs 580: nothing runs on a GPU", ran.stdout)
        self.assertRegex(self.run_it("check", driver=new).stdout, r"\ndriver +580\.95\.05\n")
        self.assertEqual(self.run_it("cprun", driver=new).stdout, "")
        self.assertRegex(self.run_it("check").stdout, r"\ndriver +none\n +MISSING: NVIDIA's driver 580 or later")
        self.bundle("glibc=2.4\ncuda=12\n")
        self.assertRegex(self.run_it("check", driver=old).stdout, r"\ndriver +550\.54\.15\n")

    def test_the_newer_cudnn_is_taken_unless_one_is_named(self):
        self.bundle("glibc=2.4\ncuda=13\n", "cprun", '#include <cstdio>\n#include <cstdlib>\n'
                    'int main() { const char* path = std::getenv("LD_LIBRARY_PATH"); std::puts(path ? path : "none"); }\n')
        for folder, version in (("system", "9.14.0"), ("named", "9.8.0"), ("python", "9.19.0")):
            os.mkdir(self.path(folder))
            open(self.path(folder, "libcudnn.so." + version), "w").close()
            os.symlink("libcudnn.so." + version, self.path(folder, "libcudnn.so.9"))

        def script(name, *lines):
            with open(self.path(name), "w") as file:
                file.write("#!/bin/sh\n" + "\n".join(lines) + "\n")
            os.chmod(self.path(name), 0o755)
            return self.path(name)

        known = ["\tlibcudnn.so.9 (libc6,x86-64) => " + self.path("system", "libcudnn.so.9"),
                 "\tlibcublas.so.13 (libc6,x86-64) => " + self.path("system", "libcublas.so.13")]
        ldconfig = script("ldconfig", "cat <<E", *known, "E")

        def folders(python, **more):
            environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
            # The script of Python that asks for folders alone says nothing here.
            asked = script("asked", "grep -q cudnnGetVersion && echo '{}' || true".format(python))
            return command(self.path("run"), "cprun", env=dict(environment, CP_LDCONFIG=ldconfig, PYTHON=asked, **more)).stdout

        self.assertIn(self.path("python"), folders("91900 " + self.path("python")))
        self.assertNotIn(self.path("python"), folders("91400 " + self.path("python")))
        self.assertNotIn(self.path("python"), folders(""))
        self.assertNotIn(self.path("python"), folders("91900 " + self.path("python"), LD_LIBRARY_PATH=self.path("named")))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: bundle_test.py BUILD_FOLDER [TEST...]")
    BUILD = os.path.abspath(sys.argv.pop(1))
    for needed in ("patchelf", "g++", "objdump"):
        if shutil.which(needed) is None:
            sys.exit("bundle_test.py: {} is missing; scripts/setup installs it".format(needed))
    unittest.main()
