#include "sim/fabric/programs.h"

#include <algorithm>
#include <utility>

#include "shared/base/text.h"
#include "shared/plan/canonical.h"

namespace cp::sim {
namespace {

// How many collectives of a program are compared. Chosen: it bounds the time and the memory of a
// diagnosis.
constexpr std::size_t kMostEntries = std::size_t{1} << 20;

using Entries = std::vector<const RankProgram::Entry*>;

Entries unrolled(const KnownProgram& known) {
  Entries entries;
  if (known.program == nullptr) return entries;
  for (const RankProgram::Part& part : known.program->parts) {
    for (std::int64_t iteration = 0; iteration < part.count && entries.size() < kMostEntries; ++iteration) {
      for (const RankProgram::Entry& entry : part.entries) entries.push_back(&entry);
    }
  }
  return entries;
}

Entries on(const Communicator& communicator, const Entries& entries) {
  Entries found;
  for (const RankProgram::Entry* entry : entries) {
    if (entry->communicator == &communicator) found.push_back(entry);
  }
  return found;
}

const KnownProgram& known_of(Rank rank, std::span<const KnownProgram> by_rank) {
  return by_rank[static_cast<std::size_t>(rank)];
}

// Ranks that have no program are in every plan.
bool in_one_plan(std::span<const KnownProgram> by_rank) {
  int prepared = 0;
  for (const KnownProgram& known : by_rank) {
    if (known.program == nullptr) continue;
    if (prepared != 0 && known.prepared != prepared) return false;
    prepared = known.prepared;
  }
  return true;
}

std::string have(const std::vector<Rank>& ranks) {
  return str(cp::ranks_text(ranks), ranks.size() == 1 ? " has " : " have ");
}

// Most ranks last: "rank 2 has a, where ranks 0, 1 have b".
std::string describe(const std::map<std::string, std::vector<Rank>>& parties) {
  std::vector<std::pair<std::string, std::vector<Rank>>> ordered(parties.begin(), parties.end());
  std::stable_sort(ordered.begin(), ordered.end(),
                   [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::vector<std::string> texts;
  for (const auto& [what, ranks] : ordered) texts.push_back(have(ranks) + what);
  return join(texts, ", where ");
}

// The first position at which the members' collectives on the group differ.
std::optional<Diagnosis> compare_group(const Communicator& communicator,
                                       const std::vector<Entries>& by_rank) {
  std::vector<Entries> members;
  std::size_t longest = 0;
  for (const Rank rank : communicator.group().ranks) {
    members.push_back(on(communicator, by_rank[static_cast<std::size_t>(rank)]));
    longest = std::max(longest, members.back().size());
  }
  for (std::size_t at = 0; at < longest; ++at) {
    const auto entry = [&](const Entries& entries) { return at < entries.size() ? entries[at] : nullptr; };
    const RankProgram::Entry* first = entry(members.front());
    const bool agree =
        first != nullptr && std::all_of(members.begin(), members.end(), [&](const Entries& one) {
          return entry(one) != nullptr && entry(one)->arguments == first->arguments;
        });
    if (agree) continue;
    std::map<std::string, std::vector<Rank>> parties;
    for (std::size_t index = 0; index < members.size(); ++index) {
      const RankProgram::Entry* own = entry(members[index]);
      parties[own == nullptr ? "no more collective" : to_string(own->arguments)].push_back(
          communicator.group().ranks[index]);
    }
    const RankProgram::Entry* any = nullptr;
    for (const Entries& one : members) any = any == nullptr ? entry(one) : any;
    Diagnosis diagnosis{.dissent = dissent_of(parties),
                        .text = str("collective #", at, " on ", canonical_name(communicator.group()), ": ",
                                    describe(parties)),
                        .operation = std::string(name(any->arguments.operation)),
                        .group = canonical_name(communicator.group()),
                        .sequence = static_cast<std::int64_t>(at)};
    if (!diagnosis.dissent.ranks.empty()) return diagnosis;
  }
  return std::nullopt;
}

// Keeps the place of the first, and the ranks that fit all.
void add(std::optional<Diagnosis>& all, std::optional<Diagnosis> one) {
  if (!one) return;
  if (!all) {
    all = std::move(one);
    return;
  }
  const Dissent both = fit_both(all->dissent, one->dissent);
  const auto num_fitting = [&](const Dissent& dissent) {
    return std::count_if(dissent.ranks.begin(), dissent.ranks.end(), [&](Rank rank) {
      return std::find(both.ranks.begin(), both.ranks.end(), rank) != both.ranks.end();
    });
  };
  if (num_fitting(all->dissent) < num_fitting(one->dissent)) all = std::move(one);
  all->dissent = both;
}

}  // namespace

CallArguments arguments_of(const Call& call) {
  if (call.operation == Operation::exchange)
    return {.operation = call.operation, .counts = call.exchange->counts};
  return {.operation = call.operation,
          .dtype = call.dtype,
          .reduction = call.reduction,
          .root = call.root,
          .count = call.count,
          .counts = {}};
}

CallArguments arguments_of(const Plan& plan, const Collective& collective, std::int32_t group_size) {
  const auto data = [&](Operation operation, const View& view, std::int64_t parts = 1) {
    return CallArguments{.operation = operation,
                         .dtype = plan.buffers[static_cast<std::size_t>(view.buffer)].dtype,
                         .count = view.numel() / parts,
                         .counts = {}};
  };
  return std::visit(
      Overloaded{[&](const AllGather& op) { return data(Operation::all_gather, op.in); },
                 [&](const ReduceScatter& op) {
                   CallArguments arguments = data(Operation::reduce_scatter, op.out);
                   arguments.reduction = op.op;
                   return arguments;
                 },
                 [&](const AllReduce& op) {
                   CallArguments arguments = data(Operation::all_reduce, op.in);
                   arguments.reduction = op.op;
                   return arguments;
                 },
                 [&](const AllToAll& op) { return data(Operation::all_to_all, op.in, group_size); },
                 [&](const Broadcast& op) {
                   CallArguments arguments = data(Operation::broadcast, op.out);
                   arguments.root = op.root;
                   return arguments;
                 },
                 [&](const Exchange& op) {
                   return CallArguments{.operation = Operation::exchange, .counts = op.counts};
                 }},
      collective);
}

std::string to_string(const CallArguments& arguments) {
  if (arguments.operation == Operation::exchange)
    return str(name(arguments.operation), " with counts ", to_string(arguments.counts));
  std::string text = str(name(arguments.operation), " of ", arguments.count, " ", name(arguments.dtype));
  if (arguments.reduction) text += str(" by ", name(*arguments.reduction));
  if (arguments.root >= 0) text += str(" from root ", arguments.root);
  return text;
}

ErrorFacts Diagnosis::facts() const {
  return {.culprits = dissent.ranks,
          .is_tie = dissent.is_tie,
          .operation = operation,
          .group = group,
          .sequence = sequence};
}

std::optional<Diagnosis> diagnose_programs(std::span<const std::unique_ptr<Communicator>> communicators,
                                           std::span<const KnownProgram> by_rank) {
  if (!in_one_plan(by_rank)) return std::nullopt;
  std::vector<Entries> entries;
  for (const KnownProgram& known : by_rank) entries.push_back(unrolled(known));
  std::optional<Diagnosis> all;
  for (const auto& communicator : communicators) {
    const std::vector<Rank>& ranks = communicator->group().ranks;
    if (std::all_of(ranks.begin(), ranks.end(), [&](Rank rank) { return known_of(rank, by_rank).is_known; }))
      add(all, compare_group(*communicator, entries));
  }
  return all;
}

std::optional<Diagnosis> diagnose_order(std::span<const Communicator* const> communicators,
                                        std::span<const KnownProgram> by_rank) {
  if (!in_one_plan(by_rank)) return std::nullopt;
  std::optional<Diagnosis> all;
  const auto compare_pair = [&](const Communicator& a, const Communicator& b) {
    std::map<std::string, std::vector<Rank>>
        parties;  // by the groups' letters in the order of the collectives
    for (const Rank rank : a.group().ranks) {
      const std::vector<Rank>& others = b.group().ranks;
      if (std::find(others.begin(), others.end(), rank) == others.end()) continue;
      if (!known_of(rank, by_rank).is_known) continue;
      std::string order;
      for (const RankProgram::Entry* entry : unrolled(known_of(rank, by_rank))) {
        if (entry->communicator == &a) order += 'a';
        if (entry->communicator == &b) order += 'b';
      }
      parties[order].push_back(rank);
    }
    if (parties.size() < 2) return;
    const Dissent dissent = dissent_of(parties);
    add(all,
        Diagnosis{
            .dissent = dissent,
            .text = str(cp::ranks_text(dissent.ranks), dissent.ranks.size() == 1 ? " issues" : " issue",
                        " the collectives of ", canonical_name(a.group()), " and ", canonical_name(b.group()),
                        dissent.is_tie ? " in different orders" : " in another order than the others"),
            .operation = {},
            .group = canonical_name(a.group())});
  };
  for (std::size_t i = 0; i < communicators.size(); ++i) {
    for (std::size_t j = i + 1; j < communicators.size(); ++j)
      compare_pair(*communicators[i], *communicators[j]);
  }
  return all;
}

}  // namespace cp::sim
