#include "tests/cprun/two_machines.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <unistd.h>

#include "shared/base/text.h"

namespace cp::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPrefix = "cprun-test-";

// Those of a test program that was killed.
void remove_leftovers() {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/run/netns", error)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    const std::vector<std::string_view> parts = split(name, '-');  // cprun, test, pid, machine
    if (parts.size() == 4 && !fs::exists("/proc/" + std::string(parts[2]))) run({"ip", "netns", "del", name});
  }
}

}  // namespace

TwoMachines::TwoMachines() {
  if (geteuid() != 0) {
    missing_ = "two machines need network namespaces, and those need root";
    return;
  }
  std::error_code error;
  if (!fs::exists("/sbin/ip", error) && !fs::exists("/usr/sbin/ip", error) && !fs::exists("/bin/ip", error)) {
    missing_ = "two machines need the program ip (package iproute2)";
    return;
  }
  remove_leftovers();
  begun_ = true;
  make();
}

TwoMachines::~TwoMachines() {
  if (!begun_) return;
  for (const int machine : {0, 1}) run({"ip", "netns", "del", name(machine)});
}

std::string TwoMachines::name(int machine) const { return str(kPrefix, getpid(), "-", machine); }

bool TwoMachines::ip(const std::vector<std::string>& arguments) {
  std::vector<std::string> argv = {"ip"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  const ProgramEnd end = run(argv);
  if (end.exit_code != 0)
    missing_ = str("no network namespaces here: ip ", join(arguments, " "), ": ", end.err);
  return end.exit_code == 0;
}

bool TwoMachines::make() {
  if (!ip({"netns", "add", name(0)}) || !ip({"netns", "add", name(1)})) return false;
  if (!ip({"link", "add", "link0", "netns", name(0), "type", "veth", "peer", "name", "link0", "netns",
           name(1)}))
    return false;
  for (const int machine : {0, 1}) {
    const std::string address = str("10.213.0.", machine + 1, "/24");
    if (!ip({"-n", name(machine), "address", "add", address, "dev", "link0"}) ||
        !ip({"-n", name(machine), "link", "set", "link0", "up"}) ||
        !ip({"-n", name(machine), "link", "set", "lo", "up"}))
      return false;
  }
  return true;
}

std::unique_ptr<Program> TwoMachines::start(int machine, const std::vector<std::string>& argv,
                                            const std::vector<std::string>& environment) const {
  std::vector<std::string> words = {
      "ip",          "netns",   "exec",
      name(machine), "unshare", "--uts",
      "/bin/sh",     "-c",      str("hostname machine-", machine, " && exec \"$@\""),
      "sh"};
  words.insert(words.end(), argv.begin(), argv.end());
  return std::make_unique<Program>(words, environment);
}

void TwoMachines::cut_link() const { run({"ip", "-n", name(1), "link", "set", "link0", "down"}); }

}  // namespace cp::testing
