#include "runtime/launcher/launcher.h"

#include <iostream>
#include <mutex>

#include "runtime/launcher/cause.h"
#include "runtime/launcher/exit_code.h"
#include "runtime/launcher/run.h"
#include "runtime/this_host.h"

namespace cp::runtime {

Launcher::Launcher(LaunchOptions options)
    : options_(std::move(options)), reports_(std::make_unique<FailureReports>()) {
  if (options_.argv.empty()) throw InvalidInput("no program to run");
  if (options_.nproc < 1) {
    throw InvalidInput(str("cannot run ", options_.nproc, " processes; use 1 or more"));
  }
  if (options_.out == nullptr) options_.out = &std::cout;
  if (options_.err == nullptr) options_.err = &std::cerr;
  if (options_.host.empty()) options_.host = host_name();
}

Launcher::~Launcher() = default;

LaunchResult Launcher::run() { return LauncherRun(options_, *reports_).finish(); }

void Launcher::fail(Rank rank, const std::string& text, ErrorKind kind) {
  reports_->add({.rank = rank, .signal = {}, .exit_code = exit_code(kind), .report = text, .pass = 0});
}

std::string summary(const LaunchResult& result) {
  if (result.first_failure) {
    const std::string& cause = result.first_failure->text;
    if (result.stopped == 0) return cause;
    return str(cause, "; ", result.stopped, result.stopped == 1 ? " other rank was" : " other ranks were",
               " stopped because of it");
  }
  return result.interrupted_by ? str("stopped by ", signal_name(*result.interrupted_by)) : "";
}

}  // namespace cp::runtime
