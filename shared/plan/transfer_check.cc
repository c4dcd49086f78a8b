#include "shared/plan/transfer_check.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "shared/plan/canonical.h"
#include "shared/plan/dissent.h"

namespace cp {
namespace {

// One collective as its members saw it; null for those that have no record of it.
struct Members {
  const Group* group = nullptr;
  std::vector<const OpRecord*> issued, observed;  // by index
};

// In the order of their sequence numbers, then of the groups.
using Collectives = std::map<std::tuple<std::int64_t, std::string, std::vector<Rank>>, Members>;

void collect(const RankTrace& trace, const std::vector<OpRecord>& records,
             std::vector<const OpRecord*> Members::*side, Collectives& collectives) {
  for (const OpRecord& record : records) {
    if (record.sequence < 0) continue;
    const auto self = std::find(record.group.ranks.begin(), record.group.ranks.end(), trace.rank);
    if (self == record.group.ranks.end()) continue;
    Members& members = collectives[{record.sequence, record.group.name, record.group.ranks}];
    members.group = &record.group;
    (members.*side).resize(record.group.ranks.size());
    (members.*side)[static_cast<std::size_t>(self - record.group.ranks.begin())] = &record;
  }
}

std::string hexadecimal(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(value >> shift) & 15];
  return text;
}

TransferFault of_transfer(const TransferPlace& place, const std::string& what) {
  const Rank sender = place.group->ranks[place.from], receiver = place.group->ranks[place.to];
  ErrorFacts facts{.culprits = {std::min(sender, receiver), std::max(sender, receiver)},
                   .sender = sender,
                   .receiver = receiver,
                   .operation = place.operation,
                   .group = canonical_name(*place.group),
                   .sequence = place.sequence};
  return TransferFault(str(place.operation, " #", place.sequence, " on ", canonical_name(*place.group),
                           ": from rank ", sender, " to rank ", receiver, " ", what),
                       std::move(facts));
}

TransferPlace place_of(const OpRecord& record, std::size_t from, std::size_t to) {
  return {record.operation, &record.group, record.sequence, from, to};
}

std::optional<TransferFault> find_wrong_bytes(const Members& members) {
  for (std::size_t to = 0; to < members.observed.size() && to < members.issued.size(); ++to) {
    const OpRecord *asked = members.issued[to], *got = members.observed[to];
    if (asked == nullptr || got == nullptr || asked->received.size() != got->received.size()) continue;
    for (std::size_t from = 0; from < got->received.size(); ++from) {
      if (asked->received[from] == got->received[from]) continue;
      return wrong_bytes(place_of(*got, from, to), got->received[from], asked->received[from]);
    }
  }
  return std::nullopt;
}

std::optional<TransferFault> find_changed_payload(const Members& members) {
  for (std::size_t to = 0; to < members.observed.size(); ++to) {
    const OpRecord* receiver = members.observed[to];
    if (receiver == nullptr || !receiver->checksums) continue;
    for (std::size_t from = 0; from < members.observed.size(); ++from) {
      const OpRecord* sender = members.observed[from];
      if (from == to || sender == nullptr || !sender->checksums) continue;
      const std::uint64_t sent = sender->checksums->sent.at(to);
      const std::uint64_t received = receiver->checksums->received.at(from);
      if (sent == received) continue;
      return changed_payload(place_of(*receiver, from, to), sent, received);
    }
  }
  return std::nullopt;
}

std::optional<TransferFault> find_unequal_results(const Members& members) {
  std::map<Rank, std::uint64_t> results;
  const OpRecord* record = nullptr;
  for (std::size_t index = 0; index < members.observed.size(); ++index) {
    const OpRecord* member = members.observed[index];
    if (member == nullptr || !member->checksums || member->checksums->result == 0) continue;
    results.emplace(member->group.ranks[index], member->checksums->result);
    record = member;
  }
  if (record == nullptr) return std::nullopt;
  return unequal_results(place_of(*record, 0, 0), results);
}

}  // namespace

TransferFault wrong_bytes(const TransferPlace& place, std::int64_t arrived, std::int64_t sent) {
  return of_transfer(place, str(arrived, " bytes arrived, but ", sent,
                                " were sent; the transfer was lost, cut or repeated on its way"));
}

TransferFault changed_payload(const TransferPlace& place, std::uint64_t sent, std::uint64_t received) {
  return of_transfer(place, str("the payload changed on its way: checksum ", hexadecimal(sent),
                                " where it was sent, ", hexadecimal(received), " where it arrived"));
}

std::optional<TransferFault> unequal_results(const TransferPlace& place,
                                             const std::map<Rank, std::uint64_t>& results) {
  std::map<std::string, std::vector<Rank>> ranks_by_result;
  for (const auto& [rank, result] : results) ranks_by_result[hexadecimal(result)].push_back(rank);
  const Dissent dissent = dissent_of(ranks_by_result);
  if (dissent.ranks.empty()) return std::nullopt;
  std::vector<std::string> texts;
  for (const auto& [result, ranks] : ranks_by_result)
    texts.push_back(str(ranks_text(ranks), ranks.size() == 1 ? " has " : " have ", result));
  return TransferFault(
      str(place.operation, " #", place.sequence, " on ", canonical_name(*place.group),
          ": the members' outputs must be equal bit for bit, but they differ: ", join(texts, ", ")),
      {.culprits = dissent.ranks,
       .is_tie = dissent.is_tie,
       .operation = place.operation,
       .group = canonical_name(*place.group),
       .sequence = place.sequence});
}

std::string_view name(Checksums checksums) {
  constexpr std::array<std::string_view, 3> kNames = {"off", "end", "each"};
  return kNames[static_cast<std::size_t>(checksums)];
}

Checksums parse_checksums(std::string_view text) {
  for (const Checksums checksums : {Checksums::off, Checksums::end, Checksums::each}) {
    if (text == name(checksums)) return checksums;
  }
  throw InvalidInput(str("checksums '", text, "' are unknown; use end, each or off"));
}

std::optional<TransferFault> find_transfer_fault(std::span<const RankTrace> traces) {
  Collectives collectives;
  for (const RankTrace& trace : traces) {
    collect(trace, trace.issued, &Members::issued, collectives);
    collect(trace, trace.observed, &Members::observed, collectives);
  }
  for (const auto& [key, members] : collectives) {
    if (auto fault = find_wrong_bytes(members)) return fault;
    if (auto fault = find_changed_payload(members)) return fault;
    if (auto fault = find_unequal_results(members)) return fault;
  }
  return std::nullopt;
}

}  // namespace cp
