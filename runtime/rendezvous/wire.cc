#include "runtime/rendezvous/wire.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cp::runtime {
namespace {

constexpr std::array<std::pair<ErrorKind, proto::ErrorKind>, kErrorKinds.size()> kKinds = {{
    {ErrorKind::check_failed, proto::CHECK_FAILED},
    {ErrorKind::invalid_input, proto::INVALID_INPUT},
    {ErrorKind::collective_mismatch, proto::COLLECTIVE_MISMATCH},
    {ErrorKind::deadlock, proto::DEADLOCK},
    {ErrorKind::timeout, proto::TIMEOUT},
    {ErrorKind::peer_lost, proto::PEER_LOST},
    {ErrorKind::rendezvous, proto::RENDEZVOUS},
    {ErrorKind::authentication, proto::AUTHENTICATION},
    {ErrorKind::address_in_use, proto::ADDRESS_IN_USE},
    {ErrorKind::bad_trace, proto::BAD_TRACE},
    {ErrorKind::ledger, proto::LEDGER},
    {ErrorKind::infeasible, proto::INFEASIBLE},
    {ErrorKind::cancelled, proto::CANCELLED},
}};

}  // namespace

proto::ErrorKind to_wire(ErrorKind kind) {
  const auto* const found = std::ranges::find(kKinds, kind, &std::pair<ErrorKind, proto::ErrorKind>::first);
  CP_INVARIANT(found != kKinds.end(), "no number for ", name(kind), " on the wire");
  return found->second;
}

ErrorKind from_wire(proto::ErrorKind in, ErrorKind otherwise) {
  const auto* const found = std::ranges::find(kKinds, in, &std::pair<ErrorKind, proto::ErrorKind>::second);
  return found == kKinds.end() ? otherwise : found->first;
}

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
  out.set_kind(to_wire(failure.kind));
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
  return {from_wire(in.kind(), ErrorKind::peer_lost),
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

}  // namespace cp::runtime
