#include "sim/fabric/call.h"

#include <algorithm>
#include <array>

namespace cp::sim {
namespace {

void resolve_transfers(const std::vector<Transfer>& transfers, std::int64_t iteration,
                       const HostMemory& memory, std::vector<TransferCall>& calls) {
  calls.clear();
  for (const Transfer& transfer : transfers) {
    calls.push_back({.peer = transfer.peer,
                     .dtype = memory.dtype(transfer.view),
                     .numel = transfer.view.numel(),
                     .data = memory.at(transfer.view, iteration)});
  }
  const auto by_peer = [](const TransferCall& a, const TransferCall& b) { return a.peer < b.peer; };
  if (!std::is_sorted(calls.begin(), calls.end(), by_peer)) {
    std::stable_sort(calls.begin(), calls.end(), by_peer);
  }
}

}  // namespace

std::string_view name(Operation operation) {
  constexpr std::array<std::string_view, 6> kNames = {"all_gather", "reduce_scatter", "all_reduce",
                                                      "all_to_all", "broadcast",      "exchange"};
  return kNames[static_cast<std::size_t>(operation)];
}

Call resolve(const Collective& collective, std::int64_t iteration, const HostMemory& memory,
             std::int32_t index, std::int32_t group_size, ExchangeCall& exchange) {
  const auto in_out = [&](Operation operation, const auto& step, std::int64_t count) {
    return Call{.operation = operation,
                .dtype = memory.dtype(step.out),
                .count = count,
                .in = memory.at(step.in, iteration),
                .out = memory.at(step.out, iteration)};
  };
  return std::visit(
      Overloaded{
          [&](const AllGather& step) { return in_out(Operation::all_gather, step, step.in.numel()); },
          [&](const ReduceScatter& step) {
            Call call = in_out(Operation::reduce_scatter, step, step.out.numel());
            call.reduction = step.op;
            return call;
          },
          [&](const AllReduce& step) {
            Call call = in_out(Operation::all_reduce, step, step.in.numel());
            call.reduction = step.op;
            return call;
          },
          [&](const AllToAll& step) {
            return in_out(Operation::all_to_all, step, step.in.numel() / group_size);
          },
          [&](const Broadcast& step) {
            return Call{.operation = Operation::broadcast,
                        .dtype = memory.dtype(step.out),
                        .root = step.root,
                        .count = step.out.numel(),
                        .in = step.root == index ? memory.at(step.in, iteration) : nullptr,
                        .out = memory.at(step.out, iteration)};
          },
          [&](const Exchange& step) {
            resolve_transfers(step.sends, iteration, memory, exchange.sends);
            resolve_transfers(step.recvs, iteration, memory, exchange.recvs);
            exchange.counts = step.counts;
            const auto& first = step.sends.empty() ? step.recvs : step.sends;
            return Call{.operation = Operation::exchange,
                        .dtype = first.empty() ? DType::f32 : memory.dtype(first.front().view),
                        .exchange = &exchange};
          },
      },
      collective);
}

}  // namespace cp::sim
