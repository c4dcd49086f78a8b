#include "sim/fabric/transfers.h"

#include <algorithm>
#include <cstring>

#include "shared/base/checksum.h"
#include "shared/base/index.h"
#include "shared/kernels/host_kernels.h"
#include "sim/base/numbers.h"

namespace cp::sim {
namespace {

constexpr std::int64_t kMostTurns = 1'000;  // that a transfer is delayed: each is a turn of a rank

// What lies where an addend should have arrived: as in memory that nobody has written (HostMemory).
constexpr std::byte kNeverWritten{0xFB};

std::uint64_t mix(std::uint64_t z) { return Numbers(z).next(); }

}  // namespace

Transfers::Transfers(std::int32_t size, bool checksums)
    : size_(size),
      checksums_(checksums),
      entries_(idx(size) * idx(size)),
      results_(idx(size)),
      late_(idx(size)) {}

std::vector<bool> Transfers::move(Communicator& communicator, std::span<const TransferFaultPlace> faults) {
  std::fill(entries_.begin(), entries_.end(), Entry{});
  std::fill(results_.begin(), results_.end(), 0);
  faults_ = faults;
  took_place_.assign(faults.size(), false);
  const Operation operation = communicator.slot(0).call.operation;
  if (operation == Operation::reduce_scatter) {
    reduce_scatter(communicator);
  } else if (operation == Operation::all_reduce) {
    all_reduce(communicator);
  } else {
    std::vector<Transfer> transfers = copies_of(communicator);
    for (std::size_t i = 0; i < faults.size(); ++i) {
      if (faults[i].kind != FaultKind::reorder || transfers.empty()) continue;
      reorder(transfers, faults[i].amount);
      took_place_[i] = true;
    }
    for (const Transfer& transfer : transfers) copy(transfer);
  }
  faults_ = {};
  return std::move(took_place_);
}

// ---- collectives that copy ------------------------------------------------------------------------------------------

std::vector<Transfers::Transfer> Transfers::copies_of(const Communicator& communicator) const {
  std::vector<Transfer> transfers;
  const auto add_all = [&](const auto& in_of, std::int32_t first, std::int32_t end) {
    for (std::int32_t to = 0; to < size_; ++to) {
      for (std::int32_t from = first; from < end; ++from) transfers.push_back(in_of(from, to));
    }
  };
  const auto block_bytes = [&](std::int32_t from) {
    const Call& call = communicator.slot(from).call;
    return call.count * size_bytes(call.dtype);
  };
  const auto out_of = [&](std::int32_t to) { return communicator.slot(to).call.out; };
  const Call& first = communicator.slot(0).call;
  switch (first.operation) {
    case Operation::all_gather:
      add_all(
          [&](std::int32_t from, std::int32_t to) {
            return Transfer{from, to, communicator.slot(from).call.in, out_of(to) + from * block_bytes(from),
                            block_bytes(from)};
          },
          0, size_);
      break;
    case Operation::all_to_all:
      add_all(
          [&](std::int32_t from, std::int32_t to) {
            return Transfer{from, to, communicator.slot(from).call.in + to * block_bytes(from),
                            out_of(to) + from * block_bytes(from), block_bytes(from)};
          },
          0, size_);
      break;
    case Operation::broadcast:
      add_all(
          [&](std::int32_t from, std::int32_t to) {
            return Transfer{from, to, communicator.slot(from).call.in, out_of(to), block_bytes(from)};
          },
          first.root, first.root + 1);
      break;
    case Operation::exchange:
      // From the receivers' side: each receive knows its send since the calls were matched.
      for (std::int32_t to = 0; to < size_; ++to) {
        for (const TransferCall& recv : communicator.slot(to).call.exchange->recvs) {
          transfers.push_back(
              {recv.peer, to, recv.partner->data, recv.data, recv.numel * size_bytes(recv.dtype)});
        }
      }
      break;
    case Operation::reduce_scatter:
    case Operation::all_reduce:
      break;  // no copies: each output is a sum over all members (below)
  }
  return transfers;
}

void Transfers::reorder(std::vector<Transfer>& transfers, std::int64_t seed) const {
  const auto key = [&](const Transfer& transfer) {
    const auto link =
        (static_cast<std::uint64_t>(transfer.from) << 32) + static_cast<std::uint64_t>(transfer.to);
    return mix(static_cast<std::uint64_t>(seed) ^ mix(link));
  };
  std::stable_sort(transfers.begin(), transfers.end(),
                   [&](const Transfer& a, const Transfer& b) { return key(a) < key(b); });
}

void Transfers::copy(const Transfer& transfer) {
  if (transfer.from == transfer.to) {  // in place there is nothing to move
    if (transfer.bytes > 0 && transfer.in != transfer.out)
      std::memcpy(transfer.out, transfer.in, idx(transfer.bytes));
    return;
  }
  note_sent(transfer);
  const Arrival arrival = arrive(transfer);
  std::vector<Late>& late = late_[idx(transfer.to)];
  std::int64_t turns = arrival.turns;
  for (const Late& earlier : late) {  // those of a pair do not overtake each other
    if (earlier.transfer.from == transfer.from) turns = std::max(turns, earlier.turns);
  }
  if (turns > 0) {
    late.push_back({transfer, {arrival.bytes.begin(), arrival.bytes.end()}, turns, arrival.counted});
    return;
  }
  std::copy(arrival.bytes.begin(), arrival.bytes.end(), transfer.out);
  note_received(transfer, {transfer.out, idx(transfer.bytes)}, arrival.counted);
}

bool Transfers::arrived(std::int32_t member) {
  std::vector<Late>& late = late_[idx(member)];
  bool all = true;
  for (Late& one : late) {
    if (--one.turns > 0) {
      all = false;
      continue;
    }
    if (one.turns < 0) continue;
    std::copy(one.bytes.begin(), one.bytes.end(), one.transfer.out);
    note_received(one.transfer, {one.transfer.out, idx(one.transfer.bytes)}, one.counted);
  }
  if (all) late.clear();
  return all;
}

// ---- collectives that reduce ----------------------------------------------------------------------------------------

// What `to` reads of another member: where that member has it, or in `room` where it arrives with a fault.
// Delayed addends are there in time; the receiver alone is late.
const std::byte* Transfers::addend(const Transfer& transfer, std::vector<std::byte>& room) {
  if (transfer.from == transfer.to) return transfer.in;
  note_sent(transfer);
  const Arrival arrival = arrive(transfer);
  const std::byte* found = transfer.in;
  if (arrival.bytes.data() != transfer.in || idx(transfer.bytes) != arrival.bytes.size()) {
    room.assign(idx(transfer.bytes), kNeverWritten);
    std::copy(arrival.bytes.begin(), arrival.bytes.end(), room.begin());
    found = room.data();
  }
  if (arrival.turns > 0) late_[idx(transfer.to)].push_back({{}, {}, arrival.turns, 0});
  note_received(transfer, {found, idx(transfer.bytes)}, arrival.counted);
  return found;
}

void Transfers::reduce_scatter(const Communicator& communicator) {
  std::vector<std::vector<std::byte>> rooms(idx(size_));
  std::vector<const std::byte*> addends(idx(size_));
  for (std::int32_t to = 0; to < size_; ++to) {
    const Call& call = communicator.slot(to).call;
    const std::int64_t bytes = call.count * size_bytes(call.dtype);
    if (bytes == 0) continue;
    for (std::int32_t from = 0; from < size_; ++from) {
      addends[idx(from)] =
          addend({from, to, communicator.slot(from).call.in + to * bytes, nullptr, bytes}, rooms[idx(from)]);
    }
    reduce(*call.reduction, call.dtype, addends, call.out, call.count);
  }
}

// Outputs may be the inputs: they are written when all have been read.
void Transfers::all_reduce(const Communicator& communicator) {
  const Call& first = communicator.slot(0).call;
  const std::int64_t bytes = first.count * size_bytes(first.dtype);
  if (bytes == 0) return;
  std::vector<const std::byte*> right(idx(size_)), addends(idx(size_));
  for (std::int32_t from = 0; from < size_; ++from) right[idx(from)] = communicator.slot(from).call.in;
  std::vector<std::byte> right_result(idx(bytes));
  reduce(*first.reduction, first.dtype, right, right_result.data(), first.count);

  std::vector<std::vector<std::byte>> rooms(idx(size_)), wrong_results(idx(size_));
  for (std::int32_t to = 0; to < size_; ++to) {
    for (std::int32_t from = 0; from < size_; ++from)
      addends[idx(from)] = addend({from, to, right[idx(from)], nullptr, bytes}, rooms[idx(from)]);
    if (addends == right) continue;
    std::vector<std::byte>& result = wrong_results[idx(to)];
    result.resize(idx(bytes));
    reduce(*first.reduction, first.dtype, addends, result.data(), first.count);
  }
  for (std::int32_t to = 0; to < size_; ++to) {
    const std::vector<std::byte>& wrong = wrong_results[idx(to)];
    const std::vector<std::byte>& result = wrong.empty() ? right_result : wrong;
    std::copy(result.begin(), result.end(), communicator.slot(to).call.out);
    if (checksums_) results_[idx(to)] = checksum(result);
  }
}

// ---- one transfer ---------------------------------------------------------------------------------------------------

void Transfers::note_sent(const Transfer& transfer) {
  Entry& noted = entry(transfer.from, transfer.to);
  noted.sent_bytes += transfer.bytes;
  if (checksums_ && transfer.bytes > 0)
    noted.sent = fold_checksum(noted.sent, checksum({transfer.in, idx(transfer.bytes)}));
}

void Transfers::note_received(const Transfer& transfer, std::span<const std::byte> found,
                              std::int64_t arrived_bytes) {
  if (transfer.out == nullptr && found.empty()) return;  // a late addend: noted when it was read
  Entry& noted = entry(transfer.from, transfer.to);
  noted.received_bytes += arrived_bytes;
  if (checksums_ && !found.empty()) noted.received = fold_checksum(noted.received, checksum(found));
}

const TransferFaultPlace* Transfers::take_fault(const Transfer& transfer) {
  for (std::size_t i = 0; i < faults_.size(); ++i) {
    const TransferFaultPlace& fault = faults_[i];
    const bool is_here = fault.from == transfer.from && fault.to == transfer.to;
    if (!is_here || took_place_[i] || fault.kind == FaultKind::reorder) continue;
    took_place_[i] = true;
    return &fault;
  }
  return nullptr;
}

Transfers::Arrival Transfers::arrive(const Transfer& transfer) {
  const std::size_t size = idx(transfer.bytes);
  Arrival arrival{.bytes = {transfer.in, size}, .counted = transfer.bytes};
  if (size == 0) return arrival;
  const auto behind = behind_.find({transfer.from, transfer.to});
  if (behind != behind_.end()) {
    behind->second.emplace_back(transfer.in, transfer.in + size);
    damaged_ = std::move(behind->second.front());
    behind->second.pop_front();
    arrival.bytes = std::span<const std::byte>(damaged_).first(std::min(size, damaged_.size()));
    arrival.counted = static_cast<std::int64_t>(arrival.bytes.size());
  }
  const TransferFaultPlace* fault = take_fault(transfer);
  if (fault == nullptr) return arrival;
  const auto keep = [&](std::size_t kept) {
    arrival.bytes = arrival.bytes.first(std::min(kept, arrival.bytes.size()));
    arrival.counted = static_cast<std::int64_t>(arrival.bytes.size());
  };
  switch (fault->kind) {
    case FaultKind::delay:
      arrival.turns = std::clamp<std::int64_t>(fault->amount, 1, kMostTurns) + 1;  // the next one is not late
      break;
    case FaultKind::duplicate:
      behind_[{transfer.from, transfer.to}].emplace_back(transfer.in, transfer.in + size);
      arrival.counted += transfer.bytes;
      break;
    case FaultKind::drop:
      keep(0);
      break;
    case FaultKind::truncate:
      keep(size - idx(std::clamp<std::int64_t>(fault->amount, 1, transfer.bytes)));
      break;
    case FaultKind::corrupt: {
      const std::size_t amount = idx(std::max<std::int64_t>(fault->amount, 0));
      std::vector<std::byte> bytes(arrival.bytes.begin(), arrival.bytes.end());
      bytes[amount % bytes.size()] ^= std::byte{1} << (amount / bytes.size() % 8);
      damaged_ = std::move(bytes);
      arrival.bytes = damaged_;
      break;
    }
    default:
      break;
  }
  return arrival;
}

// ---- what was noted -------------------------------------------------------------------------------------------------

std::vector<std::int64_t> Transfers::sent_bytes(std::int32_t member) const {
  std::vector<std::int64_t> bytes;
  for (std::int32_t to = 0; to < size_; ++to) bytes.push_back(entry(member, to).sent_bytes);
  return bytes;
}

std::vector<std::int64_t> Transfers::received_bytes(std::int32_t member) const {
  std::vector<std::int64_t> bytes;
  for (std::int32_t from = 0; from < size_; ++from) bytes.push_back(entry(from, member).received_bytes);
  return bytes;
}

std::optional<TransferFault> Transfers::find_fault(std::int32_t member, TransferPlace place) const {
  for (std::int32_t from = 0; from < size_; ++from) {
    const Entry& noted = entry(from, member);
    place.from = idx(from);
    if (noted.received_bytes != noted.sent_bytes)
      return wrong_bytes(place, noted.received_bytes, noted.sent_bytes);
    if (noted.received != noted.sent) return changed_payload(place, noted.sent, noted.received);
  }
  return std::nullopt;
}

std::optional<PayloadChecksums> Transfers::checksums(std::int32_t member) const {
  if (!checksums_) return std::nullopt;
  PayloadChecksums checksums{.sent = {}, .received = {}, .result = results_[idx(member)]};
  for (std::int32_t peer = 0; peer < size_; ++peer) {
    checksums.sent.push_back(entry(member, peer).sent);
    checksums.received.push_back(entry(peer, member).received);
  }
  return checksums;
}

}  // namespace cp::sim
