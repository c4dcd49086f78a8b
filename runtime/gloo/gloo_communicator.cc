#include "runtime/gloo/gloo_communicator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <span>

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include "shared/kernels/elements.h"
#include "shared/kernels/host_kernels.h"

namespace cp::runtime {
namespace {

using Function = GlooCall::Function;

// Above the prefixes of Gloo's own collectives, which are small numbers (gloo/types.h).
constexpr std::uint64_t kExchangeSlotPrefix = std::uint64_t{0x80} << 56;

std::size_t to_size(std::int64_t value) { return static_cast<std::size_t>(value); }

// avg is a sum on the way, and divided by the group's size at the end.
ReduceOp on_the_way(ReduceOp op) { return op == ReduceOp::avg ? ReduceOp::sum : op; }

void divide(DType dtype, std::byte* data, std::int64_t count, std::int32_t divisor) {
  with_floating_type(dtype, [&]<class T>(std::type_identity<T>) {
    T* elements = reinterpret_cast<T*>(data);
    for (std::int64_t i = 0; i < count; ++i)
      elements[i] = convert<T>(load(elements[i]) / static_cast<float>(divisor));
  });
}

}  // namespace

GlooCommunicator::GlooCommunicator(Group group, std::int32_t index, gloo::rendezvous::Store& store,
                                   std::shared_ptr<gloo::transport::Device> transport,
                                   std::chrono::milliseconds timeout)
    : group_(std::move(group)), index_(index) {
  auto context = std::make_shared<gloo::rendezvous::Context>(index_, size());
  context->setTimeout(timeout);
  context->connectFullMesh(store, transport);
  context_ = std::move(context);
}

// To close connections tells the peers, but does not wake who waits for them here, and they may be out of reach. A wait that times
// out does both, for all waits of the context.
void GlooCommunicator::abort() {
  std::byte nothing{};
  const auto buffer = context_->createUnboundBuffer(&nothing, sizeof nothing);
  try {
    buffer->waitRecv(std::chrono::milliseconds(1));
  } catch (const gloo::IoException&) {
  }
}

OpRecord GlooCommunicator::run(const Collective& collective, const HostMemory& memory,
                               std::int64_t iteration) {
  calls_.clear();
  ++tag_;
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
  return observed_record(calls_, group_, index_);
}

// Gloo refuses some collectives of nothing: they are noted and left out, on every member alike. In its in-place forms only the
// output is set.

void GlooCommunicator::all_gather(DType dtype, std::byte* in, std::byte* out, std::int64_t count) {
  calls_.push_back({.function = Function::allgather, .dtype = dtype, .count = count});
  if (count == 0) return;
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    gloo::AllgatherOptions options(context_);
    if (in != out + index_ * count * size_bytes(dtype))
      options.setInput(reinterpret_cast<T*>(in), to_size(count));
    options.setOutput(reinterpret_cast<T*>(out), to_size(size() * count));
    options.setTag(tag_);
    gloo::allgather(options);
  });
}

// Gloo has no reduce-scatter of this kind: every member gets its blocks from all others and adds them up in the order of the
// group, which takes no more bytes and gives the same bits everywhere.
void GlooCommunicator::reduce_scatter(ReduceOp op, DType dtype, std::byte* in, std::byte* out,
                                      std::int64_t count) {
  const std::int64_t block_bytes = count * size_bytes(dtype);
  std::vector<std::byte> received(to_size(size() * block_bytes));
  std::vector<Block> sends, recvs;
  std::vector<const std::byte*> addends;
  for (std::int32_t peer = 0; peer < size(); ++peer) {
    std::byte* block = peer == index_ ? in + index_ * block_bytes : received.data() + peer * block_bytes;
    addends.push_back(block);
    if (peer == index_) continue;
    sends.push_back({peer, in + peer * block_bytes, count, dtype});
    recvs.push_back({peer, block, count, dtype});
  }
  exchange(sends, recvs);
  calls_.push_back({.function = Function::reduce, .dtype = dtype, .count = count, .reduction = op});
  reduce(op, dtype, addends, out, count);
}

void GlooCommunicator::all_reduce(ReduceOp op, DType dtype, std::byte* in, std::byte* out,
                                  std::int64_t count) {
  calls_.push_back({.function = Function::allreduce, .dtype = dtype, .count = count, .reduction = op});
  if (count == 0) return;
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    gloo::AllreduceOptions options(context_);
    if (in != out) options.setInput(reinterpret_cast<T*>(in), to_size(count));
    options.setOutput(reinterpret_cast<T*>(out), to_size(count));
    options.setReduceFunction([op, dtype](void* sum, const void* a, const void* b, std::size_t n) {
      const std::array inputs = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
      reduce(on_the_way(op), dtype, inputs, static_cast<std::byte*>(sum), static_cast<std::int64_t>(n));
    });
    options.setTag(tag_);
    gloo::allreduce(options);
  });
  if (op == ReduceOp::avg) divide(dtype, out, count, size());
}

void GlooCommunicator::all_to_all(DType dtype, std::byte* in, std::byte* out, std::int64_t count) {
  calls_.push_back({.function = Function::alltoall, .dtype = dtype, .count = count});
  if (count == 0) return;
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    gloo::AlltoallOptions options(context_);
    options.setInput(reinterpret_cast<T*>(in), to_size(size() * count));
    options.setOutput(reinterpret_cast<T*>(out), to_size(size() * count));
    options.setTag(tag_);
    gloo::alltoall(options);
  });
}

void GlooCommunicator::broadcast(std::int32_t root, DType dtype, std::byte* in, std::byte* out,
                                 std::int64_t count) {
  calls_.push_back({.function = Function::broadcast, .dtype = dtype, .count = count, .peer = root});
  if (count == 0) return;
  with_element_type(dtype, [&]<class T>(std::type_identity<T>) {
    gloo::BroadcastOptions options(context_);
    if (index_ == root && in != out) options.setInput(reinterpret_cast<T*>(in), to_size(count));
    options.setOutput(reinterpret_cast<T*>(out), to_size(count));
    options.setRoot(root);
    options.setTag(tag_);
    gloo::broadcast(options);
  });
}

std::unique_ptr<gloo::transport::UnboundBuffer> GlooCommunicator::start(Function function, const Block& block,
                                                                        std::uint64_t slot) {
  calls_.push_back({.function = function, .dtype = block.dtype, .count = block.count, .peer = block.peer});
  if (block.count == 0) return nullptr;
  auto buffer = context_->createUnboundBuffer(block.data, to_size(block.count * size_bytes(block.dtype)));
  if (function == Function::send) {
    buffer->send(block.peer, slot);
  } else {
    buffer->recv(block.peer, slot);
  }
  return buffer;
}

// Sends and receives are posted in turn: all of one kind first takes longer, since a send waits for its peer to post the receive.
void GlooCommunicator::exchange(const std::vector<Block>& sends, const std::vector<Block>& recvs) {
  using Buffers = std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>>;
  Buffers sending, receiving;
  std::map<std::int32_t, std::uint64_t> sent, received;  // transfers with each peer so far
  const auto start_one = [&](Function function, const Block& block, auto& number, Buffers& buffers) {
    const std::uint64_t slot = kExchangeSlotPrefix | (std::uint64_t{tag_} << 24) | number[block.peer]++;
    buffers.push_back(start(function, block, slot));
  };
  for (std::size_t i = 0; i < std::max(sends.size(), recvs.size()); ++i) {
    if (i < sends.size()) start_one(Function::send, sends[i], sent, sending);
    if (i < recvs.size()) start_one(Function::recv, recvs[i], received, receiving);
  }
  for (const auto& buffer : sending) {
    if (buffer) buffer->waitSend();
  }
  for (const auto& buffer : receiving) {
    if (buffer) buffer->waitRecv();
  }
}

}  // namespace cp::runtime
