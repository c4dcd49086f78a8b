#include "runtime/rendezvous/wire.h"

namespace cp::runtime {

void to_wire(const Digest& digest, proto::Digest& out) {
  out.set_high(digest.high);
  out.set_low(digest.low);
}

void to_wire(const Progress& progress, Message::Progress& out) {
  out.set_group(progress.group);
  out.set_sequence(progress.sequence);
  out.set_operation(progress.operation);
  to_wire(progress.digest, *out.mutable_digest());
  out.set_step(progress.step);
}

void to_wire(const Activity& activity, Message::Activity& out) {
  out.set_waits(activity.waits);
  out.set_moved(activity.moved);
  for (const Activity::Collective& collective : activity.collectives) {
    Message::Activity::Collective& to = *out.add_collectives();
    to.set_group(collective.group);
    to.set_sequence(collective.sequence);
    to.set_operation(collective.operation);
  }
}

void to_wire(const Failure& failure, Message::Failure& out) {
  out.set_code(static_cast<int>(failure.code));
  out.set_rank(failure.rank);
  out.set_host(failure.host);
  out.set_pid(failure.pid);
  out.set_reason(failure.message);
  to_wire(failure.progress, *out.mutable_progress());
  out.set_progress_age_ms(failure.progress_age.count());
}

void to_wire(const RankStatus& status, Message::Status& out) {
  out.set_rank(status.rank);
  out.set_state(static_cast<int>(status.state));
  out.set_host(status.host);
  out.set_pid(status.pid);
  out.set_silent_ms(status.silent_for.count());
  to_wire(status.latest, *out.mutable_latest());
  out.set_latest_age_ms(status.latest_age.count());
  for (const auto& [group, progress] : status.groups) to_wire(progress, *out.add_groups());
}

Digest from_wire(const proto::Digest& in) { return {in.high(), in.low()}; }

Progress from_wire(const Message::Progress& in) {
  return {printable(in.group()), in.sequence(), printable(in.operation()), from_wire(in.digest()), in.step()};
}

Activity from_wire(const Message::Activity& in) {
  Activity activity{in.waits(), {}, in.moved()};
  for (const auto& collective : in.collectives())
    activity.collectives.push_back(
        {printable(collective.group()), collective.sequence(), printable(collective.operation())});
  return activity;
}

Failure from_wire(const Message::Failure& in) {
  return {exit_code(in.code(), ExitCode::peer_lost),
          in.rank(),
          printable(in.host()),
          in.pid(),
          printable(in.reason()),
          from_wire(in.progress()),
          std::chrono::milliseconds(in.progress_age_ms())};
}

RankStatus from_wire(const Message::Status& in) {
  RankStatus status{.rank = in.rank(),
                    .state = static_cast<RankState>(in.state()),
                    .host = printable(in.host()),
                    .pid = in.pid(),
                    .silent_for = std::chrono::milliseconds(in.silent_ms()),
                    .latest = from_wire(in.latest()),
                    .latest_age = std::chrono::milliseconds(in.latest_age_ms()),
                    .groups = {}};
  for (const Message::Progress& progress : in.groups())
    status.groups[printable(progress.group())] = from_wire(progress);
  return status;
}

std::string printable(std::string_view text) {
  constexpr std::size_t kMostBytes = 4000;
  std::string out;
  for (const char c : text.substr(0, kMostBytes)) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    out.push_back(control && c != '\n' ? '?' : c);
  }
  if (text.size() > kMostBytes) out += "...";
  return out;
}

ExitCode exit_code(int number, ExitCode otherwise) {
  const auto code = static_cast<ExitCode>(number);
  switch (code) {
    case ExitCode::check_failed:
    case ExitCode::invalid_input:
    case ExitCode::collective_mismatch:
    case ExitCode::deadlock:
    case ExitCode::timeout:
    case ExitCode::peer_lost:
    case ExitCode::rendezvous:
    case ExitCode::authentication:
    case ExitCode::address_in_use:
    case ExitCode::bad_trace:
    case ExitCode::nondeterminism:
    case ExitCode::ledger:
    case ExitCode::infeasible:
      return code;
    case ExitCode::success:
      break;
  }
  return otherwise;
}

void throw_error(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::invalid_input:
      throw InvalidInput(message);
    case ExitCode::collective_mismatch:
      throw CollectiveMismatch(message);
    case ExitCode::timeout:
      throw Timeout(message);
    case ExitCode::peer_lost:
      throw PeerLost(message);
    case ExitCode::rendezvous:
      throw RendezvousError(message);
    case ExitCode::authentication:
      throw AuthenticationError(message);
    default:
      throw Error(code, message);
  }
}

}  // namespace cp::runtime
