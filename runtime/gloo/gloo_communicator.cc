#include "runtime/gloo/gloo_communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/transport/unbound_buffer.h>

#include "shared/base/checksum.h"
#include "shared/base/index.h"
#include "shared/kernels/elements.h"

namespace cp::runtime {
namespace {

using Function = GlooCall::Function;

// Above the prefixes of Gloo's own collectives, which are small numbers (gloo/types.h).
constexpr std::uint64_t kSlotPrefix = std::uint64_t{0x80} << 56;

// Transfers of an exchange go in pieces of this size, so that transfers to several peers advance together.
// Chosen, not measured: a smaller piece costs more waits (gloo_reduction.cc), a larger one lets one peer wait
// longer for its turn.
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 20;

}  // namespace

GlooCommunicator::GlooCommunicator(Group group, std::int32_t index, std::shared_ptr<gloo::Context> context,
                                   Checksums checksums, std::shared_ptr<PassedPayloads> passed)
    : group_(std::move(group)),
      index_(index),
      mode_(checksums),
      context_(std::move(context)),
      passed_(std::move(passed)),
      reduction_(context_, index_, size()) {}

void GlooCommunicator::reserve(const Plan& plan, const Collective& collective) {
  const auto dtype = [&](const View& view) { return plan.buffers.at(idx(view.buffer)).dtype; };
  if (const auto* scatter = std::get_if<ReduceScatter>(&collective))
    reduction_.reserve(scatter->out.numel() * size_bytes(dtype(scatter->out)));
  if (const auto* reduce = std::get_if<AllReduce>(&collective))
    reduction_.reserve(reduction_.part_bytes(dtype(reduce->in), reduce->in.numel()));
}

// Why it waits for nothing for 1 ms: closing connections would tell the peers, but would not wake the threads
// that wait for them here. A wait that times out makes Gloo do both, for all waits of the context. Any
// timeout does; 1 ms is the shortest in Gloo's unit, since 0 means that there is none (gloo/common/error.h).
void GlooCommunicator::abort() {
  std::byte nothing{};
  const auto buffer = context_->createUnboundBuffer(&nothing, sizeof nothing);
  try {
    buffer->waitRecv(std::chrono::milliseconds(1));
  } catch (const gloo::IoException&) {
  }
}

OpRecord GlooCommunicator::run(const Collective& collective, const HostMemory& memory, std::int64_t iteration,
                               std::int64_t sequence, const Digest& digest) {
  calls_.clear();
  next_tag(digest);
  const auto at = [&](const View& view) { return memory.at(view, iteration); };
  const auto blocks = [&](const std::vector<Transfer>& transfers) {
    std::vector<Block> all;
    for (const Transfer& transfer : transfers) {
      all.push_back({transfer.peer, at(transfer.view), transfer.view.numel(), memory.dtype(transfer.view)});
    }
    return all;
  };
  std::visit(Overloaded{[&](const AllGather& op) {
                          all_gather(memory.dtype(op.in), at(op.in), at(op.out), op.in.numel());
                        },
                        [&](const ReduceScatter& op) {
                          reduce_scatter(op.op, memory.dtype(op.in), at(op.in), at(op.out), op.out.numel());
                        },
                        [&](const AllReduce& op) {
                          all_reduce(op.op, memory.dtype(op.in), at(op.in), at(op.out), op.in.numel());
                        },
                        [&](const AllToAll& op) {
                          all_to_all(memory.dtype(op.in), at(op.in), at(op.out), op.in.numel() / size());
                        },
                        [&](const Broadcast& op) {
                          broadcast(op.root, memory.dtype(op.out), index_ == op.root ? at(op.in) : nullptr,
                                    at(op.out), op.out.numel());
                        },
                        [&](const Exchange& op) { exchange(blocks(op.sends), blocks(op.recvs)); }},
             collective);
  OpRecord record = observed_record(calls_, group_, index_);
  if (mode_ != Checksums::off) record.checksums = take_checksums(collective);
  if (mode_ == Checksums::each) {
    next_tag(digest);
    compare_at_once(record, sequence);
  }
  return record;
}

// The lowest 8 bits of a tag count collectives, and the upper 24 are of the digest. The counter keeps 256
// collectives in a row apart, whatever their digests are; members are never that far apart. 24 bits of two
// digests are equal by chance once in 16 million times; the rendezvous then compares the whole digests.
void GlooCommunicator::next_tag(const Digest& digest) {
  tag_ = static_cast<std::uint32_t>(digest.low) << 8 | ((tag_ + 1) & 0xff);
}

// ---- checksums ------------------------------------------------------------------------------------------------------

// In an all_reduce each member makes a part of the results and sends it to all others, in odd slots
// (gloo_reduction.h). All members must have the same results, so their checksums are folded in the order of
// the members that made them. This rank's own part is what it sent to any other member, for example the next.
PayloadChecksums GlooCommunicator::take_checksums(const Collective& collective) {
  PayloadChecksums checksums;
  const bool is_all_reduce = std::holds_alternative<AllReduce>(collective);
  for (std::int32_t peer = 0; peer < size(); ++peer) {
    const PassedPayloads::Connection& passed = passed_->of(idx(peer));
    for (const auto& [direction, sums] :
         {std::pair(&passed.sent, &checksums.sent), std::pair(&passed.received, &checksums.received)}) {
      sums->push_back(direction->odd == 0 ? direction->even : fold_checksum(direction->even, direction->odd));
    }
    if (!is_all_reduce) continue;
    const std::uint64_t made_by_peer =
        peer == index_ ? passed_->of(idx((index_ + 1) % size())).sent.odd : passed.received.odd;
    checksums.result = fold_checksum(checksums.result, made_by_peer);
  }
  passed_->clear();
  return checksums;
}

void GlooCommunicator::compare_at_once(const OpRecord& record, std::int64_t sequence) {
  struct Told {
    std::uint64_t sent = 0, result = 0;
  };
  const PayloadChecksums& own = *record.checksums;
  std::vector<Told> telling(group_.ranks.size()), told(group_.ranks.size());
  std::vector<Block> sends, recvs;
  constexpr std::int64_t kWords = sizeof(Told) / sizeof(std::int64_t);
  for (std::int32_t peer = 0; peer < size(); ++peer) {
    if (peer == index_) continue;
    telling[idx(peer)] = {own.sent[idx(peer)], own.result};
    sends.push_back({peer, reinterpret_cast<std::byte*>(&telling[idx(peer)]), kWords, DType::i64});
    recvs.push_back({peer, reinterpret_cast<std::byte*>(&told[idx(peer)]), kWords, DType::i64});
  }
  transfer(sends, recvs);
  passed_->clear();
  TransferPlace place{
      .operation = record.operation, .group = &group_, .sequence = sequence, .from = 0, .to = idx(index_)};
  std::map<Rank, std::uint64_t> results{{group_.ranks[idx(index_)], own.result}};
  for (; place.from < told.size(); ++place.from) {
    if (place.from == idx(index_)) continue;
    if (told[place.from].sent != own.received[place.from])
      throw changed_payload(place, told[place.from].sent, own.received[place.from]);
    results.emplace(group_.ranks[place.from], told[place.from].result);
  }
  if (const auto fault = unequal_results(place, results)) throw *fault;
}

// ---- collectives ----------------------------------------------------------------------------------------------------

// Every member sends to all others at once. Gloo's own all_gather is a ring, which passes a block on only
// when it has all of it, and waits for the slowest member at each step.
void GlooCommunicator::all_gather(DType dtype, std::byte* in, std::byte* out, std::int64_t count) {
  calls_.push_back({.function = Function::allgather, .dtype = dtype, .count = count});
  transfer_blocks(
      dtype, count, [&](std::int32_t) { return in; }, out);
}

void GlooCommunicator::all_to_all(DType dtype, std::byte* in, std::byte* out, std::int64_t count) {
  calls_.push_back({.function = Function::alltoall, .dtype = dtype, .count = count});
  transfer_blocks(
      dtype, count, [&](std::int32_t peer) { return in + peer * count * size_bytes(dtype); }, out);
}

// Each member begins with its neighbour. If all began with member 0, it would have to serve all others first.
void GlooCommunicator::transfer_blocks(DType dtype, std::int64_t count,
                                       const std::function<std::byte*(std::int32_t peer)>& in,
                                       std::byte* out) {
  const std::int64_t block_bytes = count * size_bytes(dtype);
  std::vector<Block> sends, recvs;
  for (std::int32_t step = 1; step < size(); ++step) {
    const std::int32_t to = (index_ + step) % size(), from = (index_ - step + size()) % size();
    sends.push_back({to, in(to), count, dtype});
    recvs.push_back({from, out + from * block_bytes, count, dtype});
  }
  transfer(sends, recvs);
  std::byte* own = out + index_ * block_bytes;
  if (in(index_) != own && count > 0) std::memcpy(own, in(index_), idx(block_bytes));
}

// It does not use Gloo's own collectives: Gloo has no reduce-scatter of this kind, and its all_reduce
// allocates memory at each call and adds up in another order on each member.
void GlooCommunicator::reduce_scatter(ReduceOp op, DType dtype, std::byte* in, std::byte* out,
                                      std::int64_t count) {
  reduction_.reduce_scatter(op, dtype, in, out, count, slot(),
                            [&](bool sends, std::int32_t peer, std::int64_t sent) {
                              calls_.push_back({.function = sends ? Function::send : Function::recv,
                                                .dtype = dtype,
                                                .count = sent,
                                                .peer = peer});
                            });
  calls_.push_back({.function = Function::reduce, .dtype = dtype, .count = count, .reduction = op});
}

void GlooCommunicator::all_reduce(ReduceOp op, DType dtype, std::byte* in, std::byte* out,
                                  std::int64_t count) {
  const std::int64_t results = reduction_.all_reduce(op, dtype, in, out, count, slot());
  calls_.push_back({.function = Function::allreduce, .dtype = dtype, .count = results, .reduction = op});
}

// Gloo refuses to broadcast nothing, so a broadcast of no elements is noted and left out, on every member
// alike. If the root broadcasts in place, Gloo is given the output only.
void GlooCommunicator::broadcast(std::int32_t root, DType dtype, std::byte* in, std::byte* out,
                                 std::int64_t count) {
  calls_.push_back({.function = Function::broadcast, .dtype = dtype, .count = count, .peer = root});
  if (count == 0) return;
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    gloo::BroadcastOptions options(context_);
    if (index_ == root && in != out) options.setInput(reinterpret_cast<T*>(in), idx(count));
    options.setOutput(reinterpret_cast<T*>(out), idx(count));
    options.setRoot(root);
    options.setTag(tag_);
    gloo::broadcast(options);
  });
}

// A slot has 64 bits, as Gloo's own have (gloo/types.h): 8 of the prefix, 32 of the tag, and 24 that number
// the transfers of one collective.
std::uint64_t GlooCommunicator::slot() const { return kSlotPrefix | std::uint64_t{tag_} << 24; }

void GlooCommunicator::exchange(const std::vector<Block>& sends, const std::vector<Block>& recvs) {
  for (const auto& [function, blocks] :
       {std::pair(Function::send, &sends), std::pair(Function::recv, &recvs)}) {
    for (const Block& block : *blocks)
      calls_.push_back(
          {.function = function, .dtype = block.dtype, .count = block.count, .peer = block.peer});
  }
  transfer(sends, recvs);
}

// The transfers go in pieces, at most two of each transfer at a time. So what is on its way stays in the
// processors' caches, and a member that is late holds up no more than that. Sends and receives are posted in
// turn. To post all of one kind first takes longer, since a send waits until its peer has posted the receive.
void GlooCommunicator::transfer(const std::vector<Block>& sends, const std::vector<Block>& recvs) {
  struct Flow {
    bool sends = false;
    std::int32_t peer = -1;
    std::uint64_t slot = 0;
    std::unique_ptr<gloo::transport::UnboundBuffer> buffer;
    std::int64_t bytes = 0;
  };
  std::vector<Flow> flows;
  std::map<std::int32_t, std::uint64_t> sent, received;  // transfers with each peer so far
  std::int64_t pieces = 0;
  const auto add = [&](bool is_send, const Block& block, std::uint64_t number) {
    const std::int64_t bytes = block.count * size_bytes(block.dtype);
    if (bytes == 0) return;
    flows.push_back(
        {is_send, block.peer, slot() + number, context_->createUnboundBuffer(block.data, idx(bytes)), bytes});
    pieces = std::max(pieces, (bytes + kPieceBytes - 1) / kPieceBytes);
  };
  for (std::size_t i = 0; i < std::max(sends.size(), recvs.size()); ++i) {
    if (i < sends.size()) add(true, sends[i], sent[sends[i].peer]++);
    if (i < recvs.size()) add(false, recvs[i], received[recvs[i].peer]++);
  }
  for (std::int64_t piece = 0; piece <= pieces; ++piece) {
    for (const Flow& flow : flows) {
      const std::int64_t begin = piece * kPieceBytes;
      if (begin >= flow.bytes) continue;
      const std::size_t bytes = idx(std::min(kPieceBytes, flow.bytes - begin));
      if (flow.sends) {
        flow.buffer->send(flow.peer, flow.slot, idx(begin), bytes);
      } else {
        flow.buffer->recv(flow.peer, flow.slot, idx(begin), bytes);
      }
    }
    for (const Flow& flow : flows) {
      if (piece == 0 || (piece - 1) * kPieceBytes >= flow.bytes) continue;
      flow.sends ? flow.buffer->waitSend() : flow.buffer->waitRecv();
    }
  }
}

}  // namespace cp::runtime
