#include "sim/fabric/matching.h"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::sim {
namespace {

bool same_arguments(const Call& a, const Call& b) {
  if (a.operation != b.operation || a.inputs != b.inputs) return false;
  if (a.operation == Operation::exchange) return a.exchange->counts == b.exchange->counts;
  return a.dtype == b.dtype && a.reduction == b.reduction && a.root == b.root && a.count == b.count;
}

// The arguments of a call as (field, value), in the order in which messages name them.
using Fields = std::vector<std::pair<std::string, std::string>>;

Fields fields_of(const Call& call) {
  Fields fields{{"plan inputs", to_string(call.inputs)}, {"operation", std::string(name(call.operation))}};
  if (call.operation == Operation::exchange) {
    fields.emplace_back("counts", to_string(call.exchange->counts));
    return fields;
  }
  fields.emplace_back("dtype", std::string(name(call.dtype)));
  fields.emplace_back("count", str(call.count));
  if (call.reduction) fields.emplace_back("reduction", std::string(name(*call.reduction)));
  if (call.root >= 0) fields.emplace_back("root", str(call.root));
  return fields;
}

// The fields of `fields` that `others` lacks or has with another value.
std::string difference(const Fields& fields, const std::vector<const Fields*>& others) {
  std::vector<std::string> different;
  for (const auto& field : fields) {
    const bool shared = std::all_of(others.begin(), others.end(), [&](const Fields* other) {
      return std::find(other->begin(), other->end(), field) != other->end();
    });
    if (!shared) different.push_back(str(field.first, "=", field.second));
  }
  return different.empty() ? "nothing of its own" : join(different, ", ");
}

std::string ranks_have(const std::vector<Rank>& ranks, const std::string& what) {
  return str(ranks.size() == 1 ? "rank " : "ranks ", ranks_text(ranks),
             ranks.size() == 1 ? " has " : " have ", what);
}

// Members with equal arguments.
struct Party {
  Fields fields;
  std::vector<Rank> ranks;
};

std::vector<Party> parties_of(const Communicator& communicator) {
  std::map<Fields, std::vector<Rank>> by_fields;
  for (std::int32_t index = 0; index < communicator.size(); ++index) {
    by_fields[fields_of(communicator.slot(index).call)].push_back(
        communicator.group().ranks[static_cast<std::size_t>(index)]);
  }
  std::vector<Party> parties;
  parties.reserve(by_fields.size());
  for (auto& [fields, ranks] : by_fields) parties.push_back({fields, std::move(ranks)});
  std::stable_sort(parties.begin(), parties.end(),
                   [](const Party& a, const Party& b) { return a.ranks.size() > b.ranks.size(); });
  return parties;
}

Dissent dissent_of_parties(const std::vector<Party>& parties) {
  std::map<std::string, std::vector<Rank>> by_value;
  for (const Party& party : parties) by_value[std::to_string(by_value.size())] = party.ranks;
  return dissent_of(by_value);
}

std::string describe_parties(const std::vector<Party>& parties) {
  const bool tie = parties[0].ranks.size() == parties[1].ranks.size();
  std::vector<std::string> sentences;
  for (const Party& party : parties) {
    const bool majority = !tie && &party == &parties[0];
    std::vector<const Fields*> others;
    for (const Party& other : parties) {
      if (&other != &party && (tie || majority || &other == &parties[0])) others.push_back(&other.fields);
    }
    std::string sentence = ranks_have(party.ranks, difference(party.fields, others));
    if (majority) {
      sentences.push_back(str("the majority, ", sentence));
    } else {
      sentences.insert(tie || sentences.empty() ? sentences.end() : sentences.end() - 1,
                       tie ? sentence : str("minority: ", sentence));
    }
  }
  return str(tie ? "tie: " : "", join(sentences, "; "));
}

// ---- exchanges
// ------------------------------------------------------------------------------------------------------

std::span<TransferCall> with_peer(std::vector<TransferCall>& transfers, std::int32_t peer) {
  const auto [first, last] =
      std::equal_range(transfers.begin(), transfers.end(), TransferCall{.peer = peer},
                       [](const TransferCall& a, const TransferCall& b) { return a.peer < b.peer; });
  return {first, last};
}

bool same_transfer(const TransferCall& send, const TransferCall& recv) {
  return send.numel == recv.numel && send.dtype == recv.dtype;
}

// Gives each receive its send; false at the first that has none, or another count or dtype.
bool pair_transfers(Communicator& communicator) {
  std::size_t sends = 0, recvs = 0;
  for (std::int32_t from = 0; from < communicator.size(); ++from) {
    std::vector<TransferCall>& all = communicator.slot(from).call.exchange->sends;
    sends += all.size();
    recvs += communicator.slot(from).call.exchange->recvs.size();
    for (std::size_t begin = 0; begin < all.size();) {
      const std::int32_t to = all[begin].peer;
      const std::span<TransferCall> partners = with_peer(communicator.slot(to).call.exchange->recvs, from);
      for (TransferCall& recv : partners) {
        if (begin == all.size() || all[begin].peer != to || !same_transfer(all[begin], recv)) return false;
        recv.partner = &all[begin++];
      }
      if (begin < all.size() && all[begin].peer == to) return false;
    }
  }
  return sends == recvs;  // each send has its receive: is there a receive too many?
}

std::string transfers_text(std::span<const TransferCall> transfers) {
  std::vector<std::string> texts;
  for (const TransferCall& transfer : transfers)
    texts.push_back(str(transfer.numel, " ", name(transfer.dtype)));
  return texts.empty() ? "nothing" : join(texts, " + ");
}

struct Disagreement {
  std::int32_t from = 0, to = 0;
};

std::vector<Disagreement> disagreements_of(Communicator& communicator) {
  std::vector<Disagreement> found;
  for (std::int32_t from = 0; from < communicator.size(); ++from) {
    for (std::int32_t to = 0; to < communicator.size(); ++to) {
      const auto sends = with_peer(communicator.slot(from).call.exchange->sends, to);
      const auto recvs = with_peer(communicator.slot(to).call.exchange->recvs, from);
      if (!std::equal(sends.begin(), sends.end(), recvs.begin(), recvs.end(), same_transfer)) {
        found.push_back({from, to});
      }
    }
  }
  return found;
}

Digest counts_of(Communicator& communicator, std::vector<TransferCall> ExchangeCall::*side) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t> totals;
  for (std::int32_t index = 0; index < communicator.size(); ++index) {
    for (const TransferCall& transfer : communicator.slot(index).call.exchange->*side) {
      const bool sends = side == &ExchangeCall::sends;
      totals[sends ? std::pair{index, transfer.peer} : std::pair{transfer.peer, index}] += transfer.numel;
    }
  }
  std::vector<Count> counts;
  for (const auto& [pair, numel] : totals) {
    if (numel > 0) counts.push_back({.from = pair.first, .to = pair.second, .numel = numel});
  }
  return counts_digest(std::move(counts));
}

// The members to blame. All declared one count matrix: when the sends add up to it, the receivers are wrong,
// and the other way round. Failing that, the member that takes part in every disagreement, if there is just
// one.
std::set<std::int32_t> minority_of(Communicator& communicator,
                                   const std::vector<Disagreement>& disagreements) {
  const Digest declared = communicator.slot(0).call.exchange->counts;
  const bool sends_fit = counts_of(communicator, &ExchangeCall::sends) == declared;
  const bool recvs_fit = counts_of(communicator, &ExchangeCall::recvs) == declared;
  std::set<std::int32_t> minority;
  if (sends_fit != recvs_fit) {
    for (const Disagreement& pair : disagreements) minority.insert(sends_fit ? pair.to : pair.from);
    return minority;
  }
  minority = {disagreements[0].from, disagreements[0].to};
  for (const Disagreement& pair : disagreements) {
    std::erase_if(minority, [&](std::int32_t index) { return index != pair.from && index != pair.to; });
  }
  if (minority.size() != 1) minority.clear();
  return minority;
}

struct TransferMismatch {
  std::string text;
  Dissent dissent;
};

TransferMismatch describe_transfers(Communicator& communicator) {
  constexpr std::size_t kShown = 4;
  const std::vector<Rank>& ranks = communicator.group().ranks;
  const auto rank = [&](std::int32_t index) { return ranks[static_cast<std::size_t>(index)]; };
  const std::vector<Disagreement> disagreements = disagreements_of(communicator);
  std::vector<Rank> minority;
  for (const std::int32_t index : minority_of(communicator, disagreements)) minority.push_back(rank(index));

  std::vector<std::string> texts;
  for (const auto& [from, to] : disagreements) {
    if (texts.size() == kShown) {
      texts.push_back(str("and ", disagreements.size() - kShown, " pairs more"));
      break;
    }
    texts.push_back(str("rank ", rank(from), " sends ",
                        transfers_text(with_peer(communicator.slot(from).call.exchange->sends, to)),
                        " to rank ", rank(to), ", which expects ",
                        transfers_text(with_peer(communicator.slot(to).call.exchange->recvs, from))));
  }
  std::string text =
      str(minority.empty() ? "tie: "
                           : str("minority: ", ranks_have(minority, "other splits than their peers"), ": "),
          join(texts, "; "));
  std::sort(minority.begin(), minority.end());
  if (!minority.empty()) return {std::move(text), {.ranks = std::move(minority)}};
  std::set<Rank> either;
  for (const auto& [from, to] : disagreements) either.insert({rank(from), rank(to)});
  return {std::move(text), {.ranks = {either.begin(), either.end()}, .is_tie = true}};
}

}  // namespace

std::optional<Mismatch> find_mismatch(Communicator& communicator) {
  const Communicator::Slot& first = communicator.slot(0);
  bool agree = true;
  for (std::int32_t index = 1; index < communicator.size() && agree; ++index) {
    agree = same_arguments(communicator.slot(index).call, first.call);
  }
  if (agree && (first.call.operation != Operation::exchange || pair_transfers(communicator)))
    return std::nullopt;
  TransferMismatch what;
  if (agree) {
    what = describe_transfers(communicator);
    what.text = "exchange: " + what.text;
  } else {
    const std::vector<Party> parties = parties_of(communicator);
    what = {describe_parties(parties), dissent_of_parties(parties)};
  }
  return Mismatch{.text = str("collective #", first.sequence, " on ", to_string(communicator.group()),
                              " does not match: ", what.text),
                  .dissent = std::move(what.dissent),
                  .operation = std::string(name(first.call.operation)),
                  .group = canonical_name(communicator.group()),
                  .sequence = first.sequence};
}

}  // namespace cp::sim
