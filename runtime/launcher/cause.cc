#include "runtime/launcher/cause.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <tuple>

#include "runtime/launcher/exit_code.h"

namespace cp::runtime {
namespace {

using namespace std::chrono_literals;

// Whether a signal killed it that no lost peer causes. A program that loses its peer may write into a closed
// socket (SIGPIPE), or let an exception escape (SIGABRT).
bool dies_of_itself(const Suspect& suspect) {
  return suspect.signal && *suspect.signal != SIGPIPE && *suspect.signal != SIGABRT;
}

// The suspect with the smaller order is the likelier cause.
auto order(const Suspect& suspect) {
  return std::tuple(mostly_consequence(suspect), suspect.pass, !dies_of_itself(suspect), suspect.rank);
}

}  // namespace

bool mostly_consequence(const Suspect& suspect) {
  if (suspect.report) return false;
  if (suspect.signal) return *suspect.signal == SIGPIPE;
  const auto kind = kind_of_exit_code(suspect.exit_code);
  return kind == ErrorKind::peer_lost || kind == ErrorKind::timeout || kind == ErrorKind::rendezvous ||
         kind == ErrorKind::cancelled;
}

void CauseFinder::add(Suspect suspect, Clock::time_point now) {
  if (suspects_.empty()) first_ = now;
  suspects_.push_back(std::move(suspect));
}

CauseFinder::Clock::time_point CauseFinder::deadline(std::chrono::milliseconds patience) const {
  return first_ + (std::all_of(suspects_.begin(), suspects_.end(), mostly_consequence) ? patience : 100ms);
}

const Suspect& CauseFinder::cause() const {
  const auto likeliest = [&](const auto& condition) {
    const Suspect* best = nullptr;
    for (const Suspect& suspect : suspects_) {
      if (condition(suspect) && (best == nullptr || order(suspect) < order(*best))) best = &suspect;
    }
    return best;
  };
  const Suspect& first = *likeliest([](const Suspect&) { return true; });
  if (!first.report && (!first.signal || dies_of_itself(first))) return first;
  if (first.report) {
    const Suspect* own_end = likeliest([&](const Suspect& suspect) {
      return suspect.rank == first.rank && !suspect.report && !mostly_consequence(suspect);
    });
    if (own_end != nullptr) return *own_end;
  }
  const Suspect* death = likeliest(dies_of_itself);
  return death == nullptr ? first : *death;
}

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? str("signal ", signal) : str("SIG", name);
}

std::string end_text(const Suspect& suspect) {
  return suspect.signal ? str("was killed by ", signal_name(*suspect.signal))
                        : str("ended with exit code ", suspect.exit_code);
}

}  // namespace cp::runtime
