#include "tests/gpu/nccl_witness.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "shared/base/dtype.h"
#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::testing {
namespace {

// NCCL tells of these as of bytes.
bool is_in_bytes(const std::string& function) { return function == "AllGather" || function == "Broadcast"; }

std::string collective_text(const std::string& function, std::int64_t bytes, const std::string& type,
                            std::int32_t root) {
  std::string text = str(function, " of ", bytes, " bytes");
  if (!is_in_bytes(function)) text += ", " + type;
  if (function == "Broadcast") text += str(", root ", root);
  return text;
}

struct NcclType {
  std::string name;
  std::int64_t size_bytes = 1;
};
NcclType nccl_type(const std::string& name) {
  static const std::map<std::string, DType> kDtypes = {{"ncclFloat32", DType::f32},
                                                       {"ncclFloat16", DType::f16},
                                                       {"ncclBfloat16", DType::bf16},
                                                       {"ncclInt32", DType::i32},
                                                       {"ncclInt64", DType::i64}};
  const auto found = kDtypes.find(name);
  if (found == kDtypes.end()) return {name, 1};
  return {std::string(cp::name(found->second)), size_bytes(found->second)};
}

std::string function_of(const std::string& operation) {
  static const std::map<std::string, std::string> kFunctions = {{"all_gather", "AllGather"},
                                                                {"reduce_scatter", "ReduceScatter"},
                                                                {"all_reduce", "AllReduce"},
                                                                {"broadcast", "Broadcast"}};
  const auto found = kFunctions.find(operation);
  return found != kFunctions.end() ? found->second : "";
}

// Several transfers of the witness may be one record's. The sums have to be the same one after the other.
bool same_transfers(const std::vector<std::int64_t>& observed, const std::vector<std::int64_t>& witnessed) {
  std::size_t next = 0;
  for (const std::int64_t bytes : observed) {
    std::int64_t sum = 0;
    while (sum < bytes && next < witnessed.size()) sum += witnessed[next++];
    if (sum != bytes) return false;
  }
  return next == witnessed.size();
}

std::string difference(const MemberCalls& observed, const MemberCalls& witnessed) {
  const auto& a = observed.collectives;
  const auto& b = witnessed.collectives;
  if (a != b) {
    const auto at = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    const auto text = [at](const auto& all) { return at < all.size() ? all[at] : "nothing"; };
    return str("collective ", at, " is observed as ", text(a), ", and witnessed as ", text(b));
  }
  std::vector<MemberCalls::Way> ways;
  for (const auto* transfers : {&observed.transfers, &witnessed.transfers}) {
    for (const auto& [way, bytes] : *transfers) ways.push_back(way);
  }
  const auto of = [](const MemberCalls& calls, const MemberCalls::Way& way) {
    const auto found = calls.transfers.find(way);
    return found != calls.transfers.end() ? found->second : std::vector<std::int64_t>{};
  };
  for (const MemberCalls::Way& way : ways) {
    if (!same_transfers(of(observed, way), of(witnessed, way)))
      return str(way.first, " with peer ", way.second, " is observed as bytes ", join(of(observed, way)),
                 ", and witnessed as ", join(of(witnessed, way)));
  }
  return "";
}

std::string difference(const CommunicatorCalls& observed, const CommunicatorCalls& witnessed) {
  static const MemberCalls kNone;
  const auto of = [](const CommunicatorCalls& all, std::int32_t index) -> const MemberCalls& {
    const auto found = all.find(index);
    return found != all.end() ? found->second : kNone;
  };
  for (const auto* side : {&observed, &witnessed}) {
    for (const auto& [index, calls] : *side) {
      if (std::string what = difference(of(observed, index), of(witnessed, index)); !what.empty())
        return str("member ", index, ": ", what);
    }
  }
  return "";
}

// Of files with lines: "communicator NAME RANKS INDEX", and those of the witness.
WitnessedCalls read_files(const std::string& folder, const std::string& ending) {
  WitnessedCalls all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ending) continue;
    std::ifstream in(entry.path());
    std::string communicator;
    std::int32_t ranks = 0, self = 0;
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string function;
      words >> function;
      if (function == "communicator") {
        words >> communicator >> ranks >> self;
        continue;
      }
      std::int64_t count = 0;
      std::string type_name;
      std::int32_t peer = 0;
      words >> count >> type_name >> peer;
      if (ranks < 2) continue;
      const NcclType type = nccl_type(type_name);
      const bool is_transfer = function == "Send" || function == "Recv";
      if (is_transfer && peer == self) continue;
      MemberCalls& calls = all.communicators[communicator][self];
      if (is_transfer) {
        calls.transfers[{function, peer}].push_back(count * type.size_bytes);
      } else {
        calls.collectives.push_back(collective_text(function, count * type.size_bytes, type.name, peer));
      }
    }
  }
  return all;
}

}  // namespace

void add_observed(const std::vector<OpRecord>& observed, Rank rank, WitnessedCalls& calls) {
  for (const OpRecord& record : observed) {
    const std::vector<Rank>& ranks = record.group.ranks;
    if (ranks.size() < 2) continue;
    const auto self = static_cast<std::int32_t>(std::ranges::find(ranks, rank) - ranks.begin());
    const std::string function = function_of(record.operation);
    // Of a broadcast only the root sends, and the others receive from it alone.
    const std::int64_t bytes = std::max(std::ranges::max(record.sent),
                                        function == "Broadcast" ? std::ranges::max(record.received) : 0);
    if (!function.empty() && bytes == 0) continue;  // NCCL is not called
    MemberCalls made;
    if (!function.empty())
      made.collectives.push_back(
          collective_text(function, bytes, std::string(name(record.dtype)), record.root));
    for (std::size_t peer = 0; function.empty() && peer < ranks.size(); ++peer) {
      const auto index = static_cast<std::int32_t>(peer);
      if (record.sent[peer] > 0) made.transfers[{"Send", index}].push_back(record.sent[peer]);
      if (record.received[peer] > 0) made.transfers[{"Recv", index}].push_back(record.received[peer]);
    }
    if (made.empty()) continue;
    MemberCalls& all = calls.communicators[canonical_name(record.group)][self];
    for (std::string& collective : made.collectives) all.collectives.push_back(std::move(collective));
    for (const auto& [way, sizes] : made.transfers) all.transfers[way].push_back(sizes.front());
  }
}

void write_observed(const std::string& folder, Rank rank, const std::vector<OpRecord>& observed) {
  WitnessedCalls calls;
  add_observed(observed, rank, calls);
  std::ofstream out(str(folder, "/", rank, ".observed"));
  for (const auto& [communicator, members] : calls.communicators) {
    for (const auto& [index, member] : members) {
      out << "member " << index << " " << communicator << "\n";
      for (const std::string& collective : member.collectives) out << "collective " << collective << "\n";
      for (const auto& [way, sizes] : member.transfers)
        out << "transfers " << way.first << " " << way.second << " " << join(sizes, " ") << "\n";
    }
  }
}

WitnessedCalls read_observed(const std::string& folder) {
  WitnessedCalls all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".observed") continue;
    std::ifstream in(entry.path());
    MemberCalls* member = nullptr;
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string what, text;
      words >> what;
      if (what == "member") {
        std::int32_t index = 0;
        words >> index >> std::ws;
        std::getline(words, text);
        member = &all.communicators[text][index];
      } else if (what == "collective") {
        words >> std::ws;
        std::getline(words, text);
        member->collectives.push_back(text);
      } else {
        std::int32_t peer = 0;
        words >> text >> peer;
        for (std::int64_t bytes = 0; words >> bytes;) member->transfers[{text, peer}].push_back(bytes);
      }
    }
  }
  return all;
}

WitnessedCalls read_witness(const std::string& folder) { return read_files(folder, ".witness"); }

std::string difference(const WitnessedCalls& observed, const WitnessedCalls& witnessed) {
  std::map<std::string, CommunicatorCalls> left = witnessed.communicators;
  std::string wrong;
  for (const auto& communicator : observed.communicators) {
    const std::string& name = communicator.first;
    const CommunicatorCalls& calls = communicator.second;
    std::string nearest = "none was witnessed";
    const auto found = std::ranges::find_if(left, [&](const auto& other) {
      const std::string what = difference(calls, other.second);
      if (!what.empty()) nearest = what;
      return what.empty();
    });
    if (found != left.end()) {
      left.erase(found);
    } else {
      wrong += str("no communicator has the calls of ", name, ": ", nearest, "\n");
    }
  }
  for (const auto& [name, calls] : left)
    wrong += str("calls of communicator ", name, " with ", calls.size(), " members were not observed\n");
  return wrong;
}

std::size_t count(const WitnessedCalls& calls) {
  std::size_t all = 0;
  for (const auto& [name, members] : calls.communicators) {
    for (const auto& [index, member] : members) {
      all += member.collectives.size();
      for (const auto& [way, sizes] : member.transfers) all += sizes.size();
    }
  }
  return all;
}

}  // namespace cp::testing
